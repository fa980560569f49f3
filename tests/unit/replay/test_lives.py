from __future__ import annotations

from typing import Any, List, Tuple

import numpy as np
import pytest

from services.replay.admission import Admission
from services.replay.item_store import Intake, ItemStore
from services.replay.journal import Journal
from services.replay.lives import Lives
from services.replay.sampler_settings import SamplerSettings


class Recorder(Journal):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.told: List[Tuple[str, str, int]] = []
        self.full = ""

    def why_full(self) -> str:
        return self.full

    def entered(self, record: Any) -> None:
        self.told.append(("entered", record.name, record.incarnation))

    def closed(self, record: Any) -> None:
        self.told.append(("closed", record.name, record.incarnation))


@pytest.fixture
def parts(schema: Any, clock: Any) -> Any:
    store = ItemStore(capacity=64, schema=schema, n_step=3, discount=0.5, sampling=SamplerSettings())
    admission, journal = Admission(3), Recorder()
    return store, admission, journal, Lives(store, admission, journal, clock, max_silence_s=10.0)


def _insert(store: Any, admission: Admission, actor: str, chunk: Any) -> None:
    record = admission.actors[actor]
    group = admission.group_of(record, chunk)
    intake = Intake(np.zeros(chunk.num_lanes, np.bool_), 0, follows_gap=False, actor=record.index, now_s=0.0)
    group.open_keys = store.insert(chunk, group.open_keys, intake)


def test_a_newer_life_closes_the_windows_of_the_older_and_is_written_down(parts: Any, make_chunk: Any) -> None:
    store, admission, journal, lives = parts
    lives.enter("a", 1)
    lives.enter("a", 1)  # no news
    _insert(store, admission, "a", make_chunk())
    assert store.counters.unripe > 0
    lives.enter("a", 2)
    assert store.counters.unripe == 0
    assert journal.told == [("entered", "a", 1), ("entered", "a", 2)]


def test_only_the_living_life_leaves(parts: Any, make_chunk: Any) -> None:
    store, admission, journal, lives = parts
    lives.enter("a", 2)
    _insert(store, admission, "a", make_chunk())
    assert not lives.leave("a", 1)
    assert not lives.leave("b", 2)
    journal.full = "the log is full"
    assert not lives.leave("a", 2)  # it could not be written down
    assert store.counters.unripe > 0
    journal.full = ""
    assert lives.leave("a", 2)
    assert store.counters.unripe == 0
    assert journal.told[1:] == [("closed", "a", 2)]


def test_the_silent_are_closed_once(parts: Any, make_chunk: Any, clock: Any) -> None:
    store, admission, journal, lives = parts
    for actor in ("a", "b"):
        lives.enter(actor, 1)
    _insert(store, admission, "a", make_chunk())
    _insert(store, admission, "b", make_chunk())
    assert lives.expire() == []
    clock.now_s += 11.0
    admission.actors["b"].last_seen_s = clock.now_s
    journal.full = "the log is full"
    assert lives.expire() == []
    journal.full = ""
    assert lives.expire() == ["a"]
    assert lives.expire() == []
    assert journal.told[-1] == ("closed", "a", 1)
    assert store.counters.unripe > 0  # those of b
