from __future__ import annotations

from pathlib import Path
from typing import Callable, List

import pytest

from services.common.errors import UserError
from services.common.security.renewed import RECHECK_S, Renewed
from tests.fakes import FakeClock, FakeLog


class Numbers:
    """A file of a number, and how often it was read."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.reads = 0
        self.before_end: Callable[[], None] = lambda: None

    def read(self) -> int:
        self.reads += 1
        try:
            number = int(self.file.read_text())
        except (OSError, ValueError):
            raise UserError(f"{self.file.name} holds no number") from None
        self.before_end()
        return number

    def write(self, text: str) -> None:
        aside = self.file.with_name("aside")
        aside.write_text(text)
        aside.replace(self.file)


@pytest.fixture
def numbers(tmp_path: Path) -> Numbers:
    made = Numbers(tmp_path / "number")
    made.write("1")
    return made


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def _renewed(numbers: Numbers, clock: FakeClock, log: FakeLog, recheck_s: float = RECHECK_S) -> Renewed[int]:
    return Renewed([numbers.file], numbers.read, name="x.number", clock=clock, recheck_s=recheck_s, log=log)


def test_a_replaced_file_counts_after_the_next_look(numbers: Numbers, clock: FakeClock, log: FakeLog) -> None:
    value = _renewed(numbers, clock, log)
    numbers.write("2")
    assert (value.value(), numbers.reads) == (1, 1)
    clock.now_s += RECHECK_S
    assert value.value() == 2
    assert log.events() == ["the replaced x.number is in force"]
    clock.now_s += RECHECK_S
    assert (value.value(), numbers.reads) == (2, 2)  # what did not change is not read again


def test_with_no_pause_each_call_looks(numbers: Numbers, clock: FakeClock, log: FakeLog) -> None:
    value = _renewed(numbers, clock, log, recheck_s=0)
    for number in (2, 3):
        numbers.write(str(number))
        assert value.value() == number


@pytest.mark.parametrize("is_gone", [False, True])
def test_what_cannot_be_used_leaves_the_last_one_and_is_said_once(
    numbers: Numbers, clock: FakeClock, log: FakeLog, is_gone: bool
) -> None:
    value = _renewed(numbers, clock, log, recheck_s=0)
    numbers.file.unlink() if is_gone else numbers.write("none")
    assert [value.value() for _ in range(3)] == [1, 1, 1]
    assert value.problem == "number holds no number"
    assert log.lines == [
        (
            "warning",
            "the replaced x.number cannot be used: the earlier one stays in force",
            {"why": "number holds no number"},
        )
    ]
    numbers.write("4")
    assert (value.value(), value.problem) == (4, "")


def test_a_file_that_is_replaced_while_it_is_read_is_read_again(
    numbers: Numbers, clock: FakeClock, log: FakeLog
) -> None:
    later: List[str] = ["22"]

    def replace() -> None:
        if later:
            numbers.write(later.pop())

    numbers.before_end = replace
    value = _renewed(numbers, clock, log, recheck_s=0)
    assert value.value() == 22
    later.append("333")
    numbers.write("0")
    assert [value.value(), value.value()] == [22, 333]


def test_what_cannot_be_used_at_first_is_an_error(numbers: Numbers, clock: FakeClock, log: FakeLog) -> None:
    numbers.write("none")
    with pytest.raises(UserError, match="holds no number"):
        _renewed(numbers, clock, log)
