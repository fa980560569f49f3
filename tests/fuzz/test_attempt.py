from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.fuzz import attempt as module
from tests.fuzz import corpus_files
from tests.fuzz.attempt import attempt
from tests.fuzz.corpus_files import inputs_of
from tests.fuzz.targets import TARGETS


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Of a corpus of its own: fails at `fail`, and takes for ever over `hang`."""

    def look(data: bytes, folder: Path) -> None:
        assert data != b"fail"
        if data == b"hang":
            time.sleep(30)

    monkeypatch.setitem(TARGETS, "test", look)
    monkeypatch.setattr(corpus_files, "CORPUS", tmp_path)
    return "test"


def test_what_meets_a_valid_result_is_not_kept(target: str) -> None:
    assert attempt(target, b"fine")
    assert inputs_of(target) == []


@pytest.mark.parametrize(("data", "word"), [(b"fail", "AssertionError"), (b"hang", "TimeoutError")])
def test_what_fails_or_hangs_is_kept(
    data: bytes, word: str, target: str, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if data == b"hang":
        monkeypatch.setattr(module, "HANGS_S", 1)
    assert not attempt(target, data)
    assert inputs_of(target) == [data]
    assert word in capsys.readouterr().err
