from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from services.cli import certs_command
from services.common.errors import UserError
from services.common.security.renewed import RECHECK_S
from services.common.security.tokens import (
    ROLES,
    TokenBook,
    TokenFile,
    digest_of,
    format_book,
    new_token,
    parse_book,
)


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def _write(file: Path, text: str) -> None:
    """Replace a file, as a person or a tool would."""
    aside = file.with_name("aside")
    aside.write_text(text)
    aside.chmod(0o640)
    aside.replace(file)


def test_each_token_has_the_role_that_it_was_made_for(folder: Path) -> None:
    book = TokenBook(folder / "tokens.toml")
    for role in ROLES:
        token = TokenFile(folder / f"{role}.token").token()
        assert book.role_of(token) == role
        assert token not in (folder / "tokens.toml").read_text()  # servers know no secret
        for wrong in (token[:-1], token + "x", token.upper(), "", digest_of(token), new_token(role)):
            assert book.role_of(wrong) is None


def test_a_further_token_and_a_withdrawn_one_count_without_a_restart(folder: Path) -> None:
    clock = Clock()
    book = TokenBook(folder / "tokens.toml", clock)
    file = TokenFile(folder / "actor.token", clock)
    first = file.token()
    certs_command.run(["token", str(folder), "actor"], io.StringIO())
    assert file.token() == first  # it was asked for a moment ago
    clock.now_s += RECHECK_S
    second = file.token()
    assert second != first
    assert [book.role_of(first), book.role_of(second)] == ["actor", "actor"]
    certs_command.run(["token", str(folder), "actor", "--replace"], io.StringIO())
    clock.now_s += RECHECK_S
    assert [book.role_of(first), book.role_of(second), book.role_of(file.token())] == [None, None, "actor"]
    learner = (folder / "learner.token").read_text().strip()
    assert book.role_of(learner) == "learner"


def test_a_damaged_replacement_leaves_the_last_good_one_in_force(folder: Path) -> None:
    clock = Clock()
    book, file = TokenBook(folder / "tokens.toml", clock), TokenFile(folder / "actor.token", clock)
    token = file.token()
    for book_text, token_text in (("actor = 3", "two words"), ("[", ""), ('king = ["00"]', "\u00fc")):
        clock.now_s += RECHECK_S
        _write(folder / "tokens.toml", book_text)
        _write(folder / "actor.token", token_text)
        assert file.token() == token
        assert book.role_of(token) == "actor"
        assert "security.tokens" in book.problem
    clock.now_s += RECHECK_S
    (folder / "tokens.toml").unlink()
    assert book.role_of(token) == "actor"
    assert "cannot be read" in book.problem
    clock.now_s += RECHECK_S
    _write(folder / "tokens.toml", format_book({}))
    assert book.role_of(token) is None
    assert book.problem == ""


@pytest.mark.skipif(os.name != "posix", reason="rights of files are those of POSIX")
@pytest.mark.parametrize("mode", [0o644, 0o642])
def test_a_secret_that_all_can_read_is_refused(folder: Path, mode: int) -> None:
    for name, opened in (("actor.token", TokenFile), ("tokens.toml", TokenBook)):
        (folder / name).chmod(mode)
        with pytest.raises(UserError, match=rf"every user of this machine: run `chmod o-rw .*{name}`"):
            opened(folder / name)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("actor = [", "is not TOML"),
        ("king = []", "unknown role 'king'; roles are actor, learner"),
        ("actor = 'a'", "actor must be a list of SHA-256 digests"),
        ("actor = ['abc']", "actor must be a list of SHA-256 digests"),
    ],
)
def test_what_is_no_book_is_one_sentence(text: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        parse_book(text, Path("tokens.toml"))


def test_a_book_is_read_as_it_was_written() -> None:
    digests = {role: [digest_of(new_token(role)) for _ in range(2)] for role in ROLES}
    pairs = parse_book(format_book(digests), Path("x"))
    assert pairs == [(role, digest) for role in ROLES for digest in digests[role]]


@pytest.mark.parametrize("text", ["", "  \n", "two words", "\u00fcber"])
def test_what_is_no_token_is_refused(tmp_path: Path, text: str) -> None:
    _write(tmp_path / "token", text)
    with pytest.raises(UserError, match="holds no token"):
        TokenFile(tmp_path / "token")
