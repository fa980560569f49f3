"""A sender whose process stops, and one whose buffer is full."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import grpc
import pytest

from services.actor import chunk_sender
from services.common.lifecycle import Lifecycle
from services.common.schema import ActionSpec, Schema, TensorSpec
from services.common.waits import Waits
from tests.conftest import Eventually, Serve
from tests.fakes import FakeLog
from tests.unit.actor.sending import ADD, STEPS, Replay, SenderTime, eventually_acknowledged, finish, numbered_chunk


def test_a_stop_without_a_replay_keeps_its_budget_and_counts_what_is_lost(
    make_sender: Any, lifecycle: Lifecycle, sender_time: SenderTime
) -> None:
    sender = make_sender("127.0.0.1:1")
    thread = lifecycle.spawn("sender", sender.run)
    for i in range(3):
        sender.put(numbered_chunk(i))
    began_s = sender_time.now_s
    lifecycle.stop("test")
    sender.close()
    thread.join(10)
    assert not thread.is_alive()
    passed_s = sender_time.now_s - began_s
    assert chunk_sender.FLUSH_BUDGET_S <= passed_s < chunk_sender.FLUSH_BUDGET_S + 0.06  # between two tries
    lifecycle.check()
    assert sender.dropped_steps == {"stopped": 3 * STEPS}
    assert sender.depth == 0
    sender.put(numbered_chunk(3))  # an environment that took long for its last step
    assert sender.dropped_steps == {"stopped": 4 * STEPS}


@pytest.mark.usefixtures("sender_time")
@pytest.mark.parametrize("is_queued_before", [True, False])
def test_a_stop_while_the_replay_refuses_the_token_drops_what_is_left_and_says_why(
    is_queued_before: bool,
    make_sender: Any,
    replay: Replay,
    serve: Serve,
    lifecycle: Lifecycle,
    log: FakeLog,
    eventually: Eventually,
) -> None:
    sender = make_sender(serve(ADD, replay))
    lifecycle.spawn("sender", sender.run)
    sender.put(numbered_chunk(0))
    eventually(lambda: sender.acknowledged_steps == STEPS)
    replay.refusal = grpc.StatusCode.UNAUTHENTICATED  # it was withdrawn
    if is_queued_before:
        for number in (1, 2):
            sender.put(numbered_chunk(number))
        eventually(lambda: sender.waiting_for)
    lifecycle.stop("test")
    if not is_queued_before:
        for number in (1, 2):
            sender.put(numbered_chunk(number))
    finish(sender, lifecycle)
    assert sender.dropped_steps == {"stopped": 2 * STEPS}
    assert sender.depth == 0
    assert log.events("warning") == ["the last chunks wait for the replay"]
    assert [values["reason"] for level, _event, values in log.lines if level == "warning"] == ["said so"]


@pytest.mark.usefixtures("patient_stop")
def test_a_token_that_is_replaced_within_the_stop_saves_what_is_left(
    make_sender: Any, replay: Replay, serve: Serve, lifecycle: Lifecycle, eventually: Eventually
) -> None:
    replay.refusal = grpc.StatusCode.UNAUTHENTICATED
    sender = make_sender(serve(ADD, replay))
    sender.put(numbered_chunk(0))
    lifecycle.stop("test")
    lifecycle.spawn("sender", sender.run)
    eventually(lambda: replay.refused)
    replay.refusal = None
    finish(sender, lifecycle)
    assert sender.dropped_steps == {}
    assert replay.steps().acknowledged == STEPS


@pytest.mark.usefixtures("patient_stop")
@pytest.mark.parametrize("how", ["refused", "fenced", "another schema"])
def test_a_stop_in_which_the_replay_takes_nothing_for_good_is_no_mistake(
    how: str,
    make_sender: Any,
    replay: Replay,
    serve: Serve,
    lifecycle: Lifecycle,
    log: FakeLog,
    eventually: Eventually,
    sender_time: SenderTime,
) -> None:
    address, newer = serve(ADD, replay), Lifecycle()
    senders = [make_sender(address, stopping=life.stopping) for life in (lifecycle, newer)]
    for number, (sender, life) in enumerate(zip(senders, (lifecycle, newer))):
        if number == 0 or how == "fenced":
            life.spawn("sender", sender.run)
            sender.put(numbered_chunk(number))
            eventually_acknowledged(sender, eventually)
    newer.stop("test")
    if how == "refused":
        replay.refusal = grpc.StatusCode.PERMISSION_DENIED
    if how == "another schema":
        replay._table = replay._make_table(Schema((TensorSpec("policy", "float32", (3,)),), ActionSpec(num_actions=2)))
    lifecycle.stop("test")
    known = len(replay.requests)
    for number in (2, 3):
        senders[0].put(numbered_chunk(number))
    finish(senders[0], lifecycle)
    assert replay.refused + len(replay.requests) - known == 1  # at once: no wait would mend it
    assert replay.refused == (how == "refused")
    assert sender_time.sleeps == (how == "another schema")  # which the replay asks for before it refuses it
    assert senders[0].dropped_steps == {"stopped": 2 * STEPS}
    assert log.events("warning") == ["the replay takes none of the last chunks"]


@pytest.mark.usefixtures("patient_stop")
def test_the_chunk_of_a_slow_last_step_is_delivered(
    make_sender: Any,
    replay: Replay,
    serve: Serve,
    lifecycle: Lifecycle,
    eventually: Eventually,
    sender_time: SenderTime,
) -> None:
    sender = make_sender(serve(ADD, replay))
    thread = lifecycle.spawn("sender", sender.run)
    lifecycle.stop("test")
    sender_time.now_s += 2 * chunk_sender.FLUSH_BUDGET_S  # nothing waits, so none of it is used
    sender.put(numbered_chunk(0))
    eventually_acknowledged(sender, eventually)
    known = sender_time.looks
    eventually(lambda: sender_time.looks > known)  # it waits for another
    sender_time.now_s += 2 * chunk_sender.FLUSH_BUDGET_S
    assert thread.is_alive()
    sender.put(numbered_chunk(1))
    finish(sender, lifecycle)
    assert replay.steps().acknowledged == 2 * STEPS
    assert sender.dropped_steps == {}


def test_a_full_buffer_holds_the_caller_until_the_stop_gives_up(
    make_sender: Any, lifecycle: Lifecycle, eventually: Eventually, sender_time: SenderTime
) -> None:
    waits = Waits(("replay_full", "replay_away"))
    sender = make_sender(
        "127.0.0.1:1", buffer_chunks=1, full=partial(waits.on, "replay_full"), away=partial(waits.on, "replay_away")
    )
    lifecycle.spawn("sender", sender.run)
    sender.put(numbered_chunk(0))
    eventually(lambda: sender.depth == 0)  # it is on its way
    eventually(lambda: waits.is_on("replay_away"))
    assert not waits.is_on("replay_full")
    sender.put(numbered_chunk(1))
    putting = threading.Thread(target=lambda: sender.put(numbered_chunk(2)))
    putting.start()
    eventually(lambda: waits.is_on("replay_full"))
    assert putting.is_alive()
    assert sender.depth == 1
    lifecycle.stop("test")
    putting.join(10)
    assert not putting.is_alive()
    finish(sender, lifecycle)
    assert sender.dropped_steps == {"stopped": 3 * STEPS}
    assert (sender.acknowledged_steps, sender.acknowledged_bytes) == (0, 0)
    assert not [reason for reason in ("replay_full", "replay_away") if waits.is_on(reason)]


@pytest.mark.usefixtures("patient_stop")
def test_a_full_buffer_in_a_stop_is_delivered_with_the_callers_chunk(
    make_sender: Any, replay: Replay, serve: Serve, lifecycle: Lifecycle
) -> None:
    sender = make_sender(serve(ADD, replay), buffer_chunks=1)
    sender.put(numbered_chunk(0))
    lifecycle.stop("test")
    lifecycle.spawn("sender", sender.run)
    sender.put(numbered_chunk(1))
    finish(sender, lifecycle)
    assert replay.steps().acknowledged == 2 * STEPS
    assert sender.dropped_steps == {}


def test_a_full_buffer_lets_the_caller_go_on_when_there_is_room(
    make_sender: Any, replay: Replay, serve: Serve, lifecycle: Lifecycle
) -> None:
    sender = make_sender(serve(ADD, replay), buffer_chunks=1)
    lifecycle.spawn("sender", sender.run)
    for i in range(10):
        sender.put(numbered_chunk(i))
        assert sender.depth <= 1
    finish(sender, lifecycle)
    assert replay.steps().acknowledged == 10 * STEPS
