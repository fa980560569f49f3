"""Tokens: a random secret for each role. Clients hold the secret, servers the SHA-256 of those that they accept."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
import sys
import time
from pathlib import Path
from typing import Callable, Dict, List, Optional, Tuple

from services.common.errors import UserError
from services.common.log import Log
from services.common.security.renewed import Renewed

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROLES = ("actor", "learner", "evaluator", "operator", "monitor")
PREFIX = "shoal-"  # lets scanners for leaked secrets know one
OTHERS = stat.S_IROTH | stat.S_IWOTH
DIGEST_LENGTH = 64  # hex digits


def new_token(role: str) -> str:
    """A secret of 256 random bits for `role`."""
    return f"{PREFIX}{role}-{secrets.token_urlsafe(32)}"


def digest_of(token: str) -> str:
    """SHA-256 of a token, 64 hex digits. The secret is random and long, so that a plain hash does not give it away."""
    return hashlib.sha256(token.encode()).hexdigest()


class TokenFile:
    """A client's own token, read anew when the file was replaced."""

    def __init__(self, file: Path, clock: Callable[[], float] = time.monotonic, log: Optional[Log] = None) -> None:
        """Read it.

        Raises:
            UserError: it cannot be read, others may read it, or it holds no token.
        """

        def read() -> str:
            token = _read_secret(file, "security.token").strip()
            if not token or len(token.split()) != 1 or not token.isascii():
                raise UserError(f"security.token = {str(file)!r} holds no token; `shoal certs init` makes some")
            return token

        self._token = Renewed([file], read, name="security.token", clock=clock, log=log)

    def token(self) -> str:
        """The token that counts now; the last good one while the file cannot be read."""
        return self._token.value()


class TokenBook:
    """The tokens that a server accepts, by role; read anew when the file was replaced."""

    def __init__(self, file: Path, clock: Callable[[], float] = time.monotonic, log: Optional[Log] = None) -> None:
        """Read it.

        Raises:
            UserError: it cannot be read, others may read it, or it is no such file.
        """

        def read() -> List[Tuple[str, str]]:
            return parse_book(_read_secret(file, "security.tokens"), file)

        self._digests = Renewed([file], read, name="security.tokens", clock=clock, log=log)

    @property
    def problem(self) -> str:
        """Why the present file is not in force, one sentence; empty where it is."""
        return self._digests.problem

    def role_of(self, token: str) -> Optional[str]:
        """The role of a token, or None. Takes as long for a wrong token as for a right one."""
        presented = digest_of(token)
        found: Optional[str] = None
        for role, digest in self._digests.value():
            if hmac.compare_digest(presented, digest):
                found = role
        return found


def _read_secret(file: Path, option_name: str) -> str:
    """The text of a file that not every user of the machine may read.

    Raises:
        UserError: it cannot be read, or others may read it.
    """
    try:
        mode = file.stat().st_mode
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{option_name} = {str(file)!r} cannot be read: {error}") from None
    if os.name == "posix" and mode & OTHERS:
        raise UserError(
            f"{option_name} = {str(file)!r} can be read or changed by every user of this machine: "
            f"run `chmod o-rw {file}`"
        )
    return text


def parse_book(text: str, file: Path) -> List[Tuple[str, str]]:
    """(role, digest) pairs of a token book.

    Raises:
        UserError: it is not TOML of known roles with lists of SHA-256 digests.
    """
    what = f"security.tokens = {str(file)!r}"
    try:
        book = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{what} is not TOML: {error}") from None
    pairs: List[Tuple[str, str]] = []
    for role, digests in book.items():
        if role not in ROLES:
            shown = repr(role) if role.isalpha() else "that may be a token and is not shown"  # in any log
            raise UserError(f"{what} has an unknown role {shown}; roles are {', '.join(ROLES)}")
        if not isinstance(digests, list) or not all(_is_digest(digest) for digest in digests):
            raise UserError(f"{what}: {role} must be a list of SHA-256 digests, as `shoal certs token` writes them")
        pairs += [(role, digest) for digest in digests]
    return pairs


def format_book(digests: Dict[str, List[str]]) -> str:
    """A token book as text."""
    lines = ["# SHA-256 of each token that is accepted, by role. Take a line away to withdraw a token."]
    for role in ROLES:
        lines += [f"{role} = [", *(f'    "{digest}",' for digest in digests.get(role, [])), "]"]
    return "\n".join(lines) + "\n"


def _is_digest(value: object) -> bool:
    return (
        isinstance(value, str) and len(value) == DIGEST_LENGTH and all(letter in "0123456789abcdef" for letter in value)
    )
