"""Tokens: a random secret for each role. Clients hold the secret, servers the SHA-256 of those that they accept."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
import sys
import threading
import time
from pathlib import Path
from typing import Callable, Dict, List, Optional, Tuple

from services.common.errors import UserError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROLES = ("actor", "learner", "evaluator", "operator", "monitor")
PREFIX = "shoal-"  # lets scanners for leaked secrets know one
RECHECK_S = 1.0  # a file that was replaced is noticed within this
OTHERS = stat.S_IROTH | stat.S_IWOTH
DIGEST_LENGTH = 64  # hex digits


def new_token(role: str) -> str:
    """A secret of 256 random bits for `role`."""
    return f"{PREFIX}{role}-{secrets.token_urlsafe(32)}"


def digest_of(token: str) -> str:
    """SHA-256 of a token, 64 hex digits. The secret is random and long, so that a plain hash does not give it away."""
    return hashlib.sha256(token.encode()).hexdigest()


class _Watched:
    """A small file that is read again when it was replaced: secrets are changed without a restart."""

    def __init__(self, file: Path, option_name: str, clock: Callable[[], float]) -> None:
        self._file = file
        self._option_name = option_name
        self._clock = clock
        self._lock = threading.Lock()
        self._seen: Optional[Tuple[int, int, int]] = None
        self._checked_at = 0.0

    def text(self) -> Optional[str]:
        """What the file holds, if that may have changed since the last call; None if not.

        Raises:
            UserError: it cannot be read, or others may read it.
        """
        with self._lock:
            if self._seen is not None and self._clock() - self._checked_at < RECHECK_S:
                return None
            self._checked_at = self._clock()
            try:
                found = self._file.stat()
                state = (found.st_ino, found.st_mtime_ns, found.st_size)
                if state == self._seen:
                    return None
                text = self._file.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise UserError(f"{self._option_name} = {str(self._file)!r} cannot be read: {error}") from None
            if os.name == "posix" and found.st_mode & OTHERS:
                raise UserError(
                    f"{self._option_name} = {str(self._file)!r} can be read or changed by every user of this machine: "
                    f"run `chmod o-rw {self._file}`"
                )
            self._seen = state
            return text


class TokenFile:
    """A client's own token, read anew when the file was replaced."""

    def __init__(self, file: Path, clock: Callable[[], float] = time.monotonic) -> None:
        """Read it.

        Raises:
            UserError: it cannot be read, others may read it, or it holds no token.
        """
        self._watched = _Watched(file, "security.token", clock)
        self._file = file
        self._token = ""
        self._take(self._watched.text() or "")

    def token(self) -> str:
        """The token that counts now; the last good one while the file cannot be read."""
        try:
            text = self._watched.text()
            if text is not None:
                self._take(text)
        except UserError:
            pass
        return self._token

    def _take(self, text: str) -> None:
        token = text.strip()
        if not token or len(token.split()) != 1 or not token.isascii():
            raise UserError(f"security.token = {str(self._file)!r} holds no token; `shoal certs init` makes some")
        self._token = token


class TokenBook:
    """The tokens that a server accepts, by role; read anew when the file was replaced."""

    def __init__(self, file: Path, clock: Callable[[], float] = time.monotonic) -> None:
        """Read it.

        Raises:
            UserError: it cannot be read, others may read it, or it is no such file.
        """
        self._watched = _Watched(file, "security.tokens", clock)
        self._file = file
        self._digests: List[Tuple[str, str]] = []  # (role, digest)
        self.problem = ""  # why the present file is not in force, one sentence
        self._digests = parse_book(self._watched.text() or "", file)

    def role_of(self, token: str) -> Optional[str]:
        """The role of a token, or None. Takes as long for a wrong token as for a right one."""
        self._refresh()
        presented = digest_of(token)
        found: Optional[str] = None
        for role, digest in self._digests:
            if hmac.compare_digest(presented, digest):
                found = role
        return found

    def _refresh(self) -> None:
        """Take a replaced file; one that is wrong leaves the last good one in force, and says so in `problem`."""
        try:
            text = self._watched.text()
            if text is not None:
                self._digests = parse_book(text, self._file)
                self.problem = ""
        except UserError as error:
            self.problem = str(error)


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
