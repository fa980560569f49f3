"""`shoal certs`: a private CA, certificates of machines, and tokens bound to a role."""

from __future__ import annotations

import argparse
import datetime as dt
from pathlib import Path
from typing import Dict, List, Sequence, TextIO

from services.common.errors import EXIT_OK, UserError
from services.common.files import FILE_MODE, write_atomically
from services.common.security.certificates import load_certificates
from services.common.security.tokens import ROLES, digest_of, format_book, new_token, parse_book

BOOK = "tokens.toml"
LEAF_DAYS = 365


def run(words: Sequence[str], out: TextIO) -> int:
    """Run `shoal certs WORDS`.

    Raises:
        UserError: what the user can mend.
    """
    options = parser().parse_args(list(words))
    folder = Path(options.path)
    if options.what == "init":
        _init(folder, out)
    elif options.what == "issue":
        _issue(folder, options.name, options.host, options.days, out)
    elif options.what == "token":
        _token(folder, options.role, options.replace, out)
    else:
        _show(folder, out)
    return EXIT_OK


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    made = argparse.ArgumentParser(
        prog="shoal certs",
        description="Make what services beyond one machine need: a private CA, a certificate for each machine, and a "
        "token for each role.",
        allow_abbrev=False,
    )
    commands = made.add_subparsers(dest="what", metavar="COMMAND", required=True)
    init = commands.add_parser("init", help="make a CA, and a token for each role")
    init.add_argument("path", metavar="DIR", help="folder to make; keep ca-key.pem of it on one machine alone")
    issue = commands.add_parser("issue", help="make the certificate of a machine")
    issue.add_argument("path", metavar="DIR", help="folder of the CA")
    issue.add_argument("name", metavar="NAME", help="of the machine: writes NAME.pem and NAME-key.pem")
    issue.add_argument("host", metavar="HOST", nargs="+", help="name or address that others reach it by")
    issue.add_argument("--days", type=int, default=LEAF_DAYS, help=f"until it ends; {LEAF_DAYS} unless given")
    token = commands.add_parser("token", help="make a further token")
    token.add_argument("path", metavar="DIR", help="folder of the CA")
    token.add_argument("role", choices=ROLES, help="what the token may do")
    token.add_argument("--replace", action="store_true", help="withdraw all earlier tokens of the role")
    show = commands.add_parser("show", help="say whose a certificate is and when it ends")
    show.add_argument("path", metavar="FILE|DIR", help="a certificate, or a folder of them")
    return made


def _init(folder: Path, out: TextIO) -> None:
    from services.cli.authority import Authority

    Authority.create(folder)
    digests: Dict[str, List[str]] = {}
    for role in ROLES:
        token = new_token(role)
        digests[role] = [digest_of(token)]
        write_atomically(folder / f"{role}.token", token.encode() + b"\n", FILE_MODE)
    write_atomically(folder / BOOK, format_book(digests).encode(), FILE_MODE)
    out.write(
        f"{folder} holds a CA (ca.pem, ca-key.pem), a token for each role ({', '.join(ROLES)}) and {BOOK}, the list "
        f"that services accept.\nNext: `shoal certs issue {folder} NAME HOST...` for each machine.\n"
    )


def _issue(folder: Path, name: str, hosts: Sequence[str], days: int, out: TextIO) -> None:
    from services.cli.authority import CA_DAYS, Authority

    if not 1 <= days <= CA_DAYS:
        raise UserError(f"--days {days} is not possible; give 1 to {CA_DAYS}")
    file, key = Authority(folder).issue(name, hosts, days)
    out.write(f"{file} and {key} are for {', '.join(hosts)}, and end in {days} days.\n")


def _token(folder: Path, role: str, replace: bool, out: TextIO) -> None:
    book = folder / BOOK
    if not book.exists():
        raise UserError(f"{str(folder)!r} holds no {BOOK}; make one with `shoal certs init {folder}`")
    digests: Dict[str, List[str]] = {}
    for known, digest in parse_book(book.read_text(encoding="utf-8"), book):
        digests.setdefault(known, []).append(digest)
    token = new_token(role)
    digests[role] = [*([] if replace else digests.get(role, [])), digest_of(token)]
    write_atomically(
        book, format_book(digests).encode(), FILE_MODE
    )  # first: a token that nobody accepts yet is of no use
    write_atomically(folder / f"{role}.token", token.encode() + b"\n", FILE_MODE)
    others = "earlier ones are withdrawn" if replace else "earlier ones stay good"
    out.write(f"{folder / f'{role}.token'} is the new token of {role}; {others}. Copy {book} to the services.\n")


def _show(path: Path, out: TextIO) -> None:
    from services.cli.authority import host_names

    files = sorted(path.glob("*.pem")) if path.is_dir() else [path]
    files = [file for file in files if not file.name.endswith("-key.pem")]
    if not files:
        raise UserError(f"{str(path)!r} holds no certificate")
    now = dt.datetime.now(dt.timezone.utc)
    for file in files:
        certificate = load_certificates(file)[0]
        ends = certificate.not_valid_after_utc
        days = (ends - now).days
        when = f"ends {ends:%Y-%m-%d}, in {days} days" if ends > now else f"ENDED {ends:%Y-%m-%d}"
        names = ", ".join(host_names(certificate))
        out.write(f"{file}: {certificate.subject.rfc4514_string()}; {when}{f'; for {names}' if names else ''}\n")
