"""Calls that the rate limiter holds: who waits, for what, whose turn it is, and how a wait ends."""

from __future__ import annotations

import threading
import time
from typing import Any, List, Set

from services.replay.table import InsertStatus, SampleStatus
from tests.conftest import Eventually
from tests.table_states import LIMITED


def test_every_blocked_actor_has_its_turn(make_table: Any, make_chunk: Any, eventually: Eventually) -> None:
    table = make_table(clock=time.monotonic, **LIMITED, max_waiting_inserts=2)
    names, stop = "abcde", threading.Event()
    outside: Set[str] = set()  # found the room full since the last draw

    def act(name: str) -> None:
        sequence = 0
        while not stop.is_set():
            answer = table.insert(name, 1, make_chunk(sequence=sequence), max_wait_s=0.1)
            sequence += answer.status is InsertStatus.APPLIED
            if "wait already" in answer.reason:
                outside.add(name)
            if answer.status is not InsertStatus.APPLIED:
                time.sleep(0.002)

    threads = [threading.Thread(target=act, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    while table.info().limiter.sampled_items <= 3000:
        eventually(lambda: outside | {waiter.peer_name for waiter in table.info().waiters} == set(names))
        outside.clear()
        assert table.sample(1, 16, max_wait_s=10.0).status is SampleStatus.OK
    stop.set()
    for thread in threads:
        thread.join(10.0)
    steps = [actor.acknowledged_steps for actor in table.info().actors]
    assert len(steps) == 5
    assert min(steps) > 0.5 * max(steps)


def test_an_introduction_waits_for_nobody(make_table: Any, make_chunk: Any, feed: Any) -> None:
    table = make_table(**LIMITED)
    assert feed(table, 5)[-1] == InsertStatus.BLOCKED
    assert table.insert("b", 1, make_chunk(T=0), max_wait_s=0.0).status is InsertStatus.APPLIED


def test_the_ratio_holds_either_side_and_says_why(make_table: Any, make_chunk: Any, feed: Any) -> None:
    table = make_table(**LIMITED)
    # 8 steps a chunk; the first crosses min_size_to_sample with 6 items and owes 2 x 2, each further one 16.
    assert feed(table, 5) == [InsertStatus.APPLIED] * 4 + [InsertStatus.BLOCKED]
    blocked = table.insert("a", 1, make_chunk(sequence=4), max_wait_s=0.0)
    assert (blocked.status, blocked.next_sequence) == (InsertStatus.BLOCKED, 4)
    assert blocked.retry_after_s > 0.0
    assert "the learner must sample" in blocked.reason
    while table.sample(4, 16, max_wait_s=0.0).status is SampleStatus.OK:
        pass
    starved = table.sample(4, 16, max_wait_s=0.0)
    assert "actors must insert" in starved.reason
    assert table.insert("a", 1, make_chunk(sequence=4), max_wait_s=0.0).status is InsertStatus.APPLIED
    info = table.info().limiter
    assert (info.inserted_items, info.sampled_items) == (40, 64)
    assert "samples owed" in info.explanation


def test_waiters_are_named_and_woken(make_table: Any, make_chunk: Any, feed: Any, eventually: Eventually) -> None:
    table = make_table(clock=time.monotonic, **LIMITED, max_waiting_inserts=1)
    samples: List[Any] = []
    sampler = threading.Thread(target=lambda: samples.append(table.sample(4, 16, max_wait_s=30.0, waiter="chief")))
    sampler.start()
    eventually(lambda: table.info().limiter.sample_blocked)
    [waiter] = table.info().waiters
    assert (waiter.peer_name, waiter.call) == ("chief", "Sample")
    assert "actors must insert" in waiter.reason
    feed(table, 1)
    sampler.join(10.0)
    assert samples[0].status is SampleStatus.OK
    statuses = feed(table, 20)
    sequence = statuses.count(InsertStatus.APPLIED) + 1
    inserts: List[Any] = []
    chunk = make_chunk(sequence=sequence)
    inserter = threading.Thread(target=lambda: inserts.append(table.insert("a", 1, chunk, max_wait_s=30.0)))
    inserter.start()
    eventually(lambda: table.info().limiter.insert_blocked)
    crowded = table.insert("b", 1, make_chunk(), max_wait_s=30.0)
    assert crowded.status is InsertStatus.BLOCKED
    assert "1 other inserts wait already" in crowded.reason
    while inserter.is_alive():
        table.sample(1, 16, max_wait_s=0.1)
        inserter.join(0.01)
    assert inserts[0].status is InsertStatus.APPLIED
    assert table.info().waiters == []
    assert table.check_valid() is None


def test_a_wait_ends_in_time(make_table: Any) -> None:
    table = make_table(clock=time.monotonic)
    start_s = time.monotonic()
    assert table.sample(1, 1, max_wait_s=0.05).status is SampleStatus.WAITING
    assert 0.04 < time.monotonic() - start_s < 5.0


def test_a_newer_life_overtakes_a_waiting_insert(
    make_table: Any, make_chunk: Any, feed: Any, eventually: Eventually
) -> None:
    table = make_table(clock=time.monotonic, **LIMITED)
    applied = feed(table, 10).count(InsertStatus.APPLIED)
    answers: List[Any] = []
    chunk = make_chunk(sequence=applied)
    thread = threading.Thread(target=lambda: answers.append(table.insert("a", 1, chunk, max_wait_s=30.0)))
    thread.start()
    eventually(lambda: table.info().limiter.insert_blocked)
    table.insert("a", 2, make_chunk(T=0), max_wait_s=0.0)
    while thread.is_alive():
        table.sample(4, 16, max_wait_s=0.1)
        thread.join(0.01)
    assert answers[0].status is InsertStatus.FENCED
    assert table.check_valid() is None


def test_an_interruption_wakes_everyone(make_table: Any, feed: Any, eventually: Eventually) -> None:
    table = make_table(clock=time.monotonic)
    answers: List[Any] = []
    thread = threading.Thread(target=lambda: answers.append(table.sample(1, 1, max_wait_s=30.0)))
    thread.start()
    eventually(lambda: table.info().limiter.sample_blocked)
    table.interrupt("the replay is stopping")
    thread.join(10.0)
    assert answers[0].reason == "the replay is stopping"
    assert table.sample(1, 1, max_wait_s=30.0).reason == "the replay is stopping"
