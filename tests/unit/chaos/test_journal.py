from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.chaos.journal import Answer, JournalWriter, read_journals

ANSWER = Answer("actor-0", 7, 0, 3, 30, 10, 8, True, 12.5)


def test_what_was_answered_is_read_back_life_by_life(tmp_path: Path) -> None:
    other = replace(ANSWER, actor="actor-1", life=9, acknowledged=False, resent=True)
    for answer in (ANSWER, replace(ANSWER, sequence=4), other):
        JournalWriter(tmp_path / "journals", answer.actor, answer.life).add(answer)
    assert read_journals(tmp_path / "journals") == [ANSWER, replace(ANSWER, sequence=4), other]
    assert read_journals(tmp_path / "journals", "actor-1-*.jsonl") == [other]


def test_half_a_line_is_no_answer(tmp_path: Path) -> None:
    JournalWriter(tmp_path, "actor-0", 7).add(ANSWER)
    file = next(tmp_path.iterdir())
    whole = file.read_bytes()
    for end in range(len(whole)):
        file.write_bytes(whole + whole[:end])
        assert read_journals(tmp_path) == [ANSWER]
