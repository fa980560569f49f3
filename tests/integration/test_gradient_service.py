"""Helpers' pushes over real connections: taken once, refused for a reason, and never in the way of others."""

from __future__ import annotations

import gc
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Iterator

import numpy as np
import pytest

from services.common.rpc import Refused, Unavailable
from services.learner.gradients import GradientEncoder
from services.learner.gradients.wire import extend_checksum
from shoal.v1 import experience_pb2, gradients_pb2
from tests.conftest import Eventually
from tests.fakes import FakeClock
from tests.gradient_parties import SHAPES, Chief, Pusher, open_base, serving_chief

Status = gradients_pb2.PushStatus


@pytest.fixture
def chief() -> Iterator[Chief]:
    with serving_chief() as made:
        yield made


@pytest.fixture
def pusher(chief: Chief) -> Iterator[Pusher]:
    made = Pusher(chief)
    yield made
    made.close()


def test_a_gradient_becomes_the_step_and_is_answered_with_the_next_base(
    chief: Chief, pusher: Pusher, threads: ThreadPoolExecutor, eventually: Eventually
) -> None:
    joined = pusher.join()
    assert (joined.chief_incarnation, joined.newest_version) == (11, 0)
    assert joined.mode == gradients_pb2.GRADIENT_MODE_SYNCHRONOUS
    step = threads.submit(chief.step)  # publishes the first base, and waits
    eventually(lambda: chief.collaboration.waiting_for)
    assert "waiting for the gradient of helper-0 (lease ends in " in chief.collaboration.waiting_for
    response = pusher.push(pusher.request(value=2.0))
    step.result(10)
    assert (response.status, response.newest_version) == (Status.PUSH_STATUS_ACCEPTED, 102)
    (applied,) = chief.learner.applied
    np.testing.assert_allclose(applied["q.0.weight"], 1.0, rtol=1e-2)  # the mean with the chief's zeros
    assert chief.count("accepted_total") == 1
    assert 0 < chief.count("received_bytes_total") < 4 * 1230 == chief.count("raw_bytes_total")


def test_a_push_whose_connection_breaks_after_it_arrived_is_applied_once(
    chief: Chief, pusher: Pusher, threads: ThreadPoolExecutor, eventually: Eventually
) -> None:
    open_base(chief, pusher)
    request = pusher.request()
    threads.submit(pusher.push, request)
    eventually(pusher.pending)
    pusher.close()  # nobody hears the answer
    eventually(lambda: not pusher.pending())
    again = Pusher(chief)
    resent = threads.submit(again.push, request)
    eventually(again.pending)
    chief.step()
    assert resent.result(10).status == Status.PUSH_STATUS_ACCEPTED
    assert len(chief.learner.applied) == 1
    np.testing.assert_allclose(chief.learner.applied[0]["q.0.weight"], 0.5, rtol=1e-2)
    # And once more after the step: the first answer, and nothing waits for the next one.
    assert again.push(request).status == Status.PUSH_STATUS_ACCEPTED
    assert not chief.exchange._contributions._shares  # type: ignore[attr-defined]
    again.close()


def test_the_base_of_an_earlier_life_no_longer_exists(chief: Chief, pusher: Pusher) -> None:
    open_base(chief, pusher)
    response = pusher.push(pusher.request(chief_incarnation=10))
    assert response.status == Status.PUSH_STATUS_CHIEF_RESTARTED
    assert "earlier life of the chief" in response.reason
    assert chief.count("chief_restarted_total") == 1


def test_a_newer_life_takes_over_and_the_older_is_told_to_stop(
    chief: Chief, pusher: Pusher, threads: ThreadPoolExecutor, eventually: Eventually
) -> None:
    open_base(chief, pusher)
    old = threads.submit(pusher.push, pusher.request(value=5.0))
    eventually(pusher.pending)
    newer = Pusher(chief, incarnation=2)
    newer.join()
    response = old.result(10)
    assert response.status == Status.PUSH_STATUS_FENCED
    assert "a newer life of helper-0 has taken over" in response.reason
    assert pusher.push(pusher.request(2)).status == Status.PUSH_STATUS_FENCED
    assert pusher.join().fenced
    chief.step()
    np.testing.assert_array_equal(chief.learner.applied[0]["q.0.weight"], 0.0)  # nothing of the older's
    newer.close()


class LookedAtClock(FakeClock):
    """Counts how often it is asked, which shows that leases were looked at again."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def __call__(self) -> float:
        self.asked += 1
        return super().__call__()


def test_a_step_goes_on_when_the_lease_of_a_dead_helper_ends(
    threads: ThreadPoolExecutor, eventually: Eventually
) -> None:
    clock = LookedAtClock()
    with serving_chief(lease_s=0.5) as chief:
        chief.exchange._helpers._clock = clock
        living, dead = Pusher(chief), Pusher(chief, "dead")
        open_base(chief, living, dead)
        dead.close()
        answer = threads.submit(living.push, living.request())
        eventually(living.pending)
        step = threads.submit(chief.step)
        eventually(lambda: [view.name for view in chief.exchange.views() if view.is_awaited] == ["dead"])
        clock.now_s += 0.4  # the lease runs yet
        asked = clock.asked
        eventually(lambda: clock.asked > asked + 10)  # only the step asks now, and at each look a few times
        assert not step.done()
        clock.now_s += 0.2
        step.result(10)
        assert answer.result(10).status == Status.PUSH_STATUS_ACCEPTED
        assert len(chief.learner.applied) == 1
        living.close()


def test_who_abstains_does_not_hold_the_step_up(
    chief: Chief, pusher: Pusher, threads: ThreadPoolExecutor, eventually: Eventually
) -> None:
    open_base(chief, pusher)
    answer = threads.submit(pusher.push, pusher.request(num_samples=0, segments=[], crc32c=0))
    eventually(pusher.pending)
    chief.step()
    assert answer.result(10).status == Status.PUSH_STATUS_ACCEPTED
    assert chief.count("abstained_total") == 1
    assert chief.count("contributors") == 1


def test_what_is_not_finite_is_refused_once_and_for_all_and_the_step_goes_on(chief: Chief, pusher: Pusher) -> None:
    open_base(chief, pusher)
    sick = GradientEncoder("none", 1024, False, "none").encode(
        {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}
    )
    sick.segments[0].data = np.full(SHAPES[sick.segments[0].tensor], np.nan, np.float32).tobytes()
    crc = 0
    for segment in sick.segments:
        crc = extend_checksum(crc, segment, segment.scales, segment.data)
    request = pusher.request(segments=sick.segments, crc32c=crc)
    for _ in range(2):
        response = pusher.push(request)
        assert response.status == Status.PUSH_STATUS_NON_FINITE
        assert "NaN" in response.reason
    chief.step()  # waits for nobody
    np.testing.assert_array_equal(chief.learner.applied[0]["q.0.bias"], 0.0)
    assert chief.count("non_finite_total") == 2


def test_damaged_bytes_are_asked_for_again_and_the_same_sequence_is_then_taken(
    chief: Chief, pusher: Pusher, threads: ThreadPoolExecutor, eventually: Eventually
) -> None:
    open_base(chief, pusher)
    request = pusher.request()
    damaged = pusher.request(crc32c=request.crc32c ^ 1)
    response = pusher.push(damaged)
    assert response.status == Status.PUSH_STATUS_BAD_CHECKSUM
    answer = threads.submit(pusher.push, request)
    eventually(pusher.pending)
    chief.step()
    assert answer.result(10).status == Status.PUSH_STATUS_ACCEPTED
    assert chief.count("bad_checksum_total") == 1


def test_a_late_gradient_is_too_stale(chief: Chief, pusher: Pusher) -> None:
    open_base(chief, pusher)
    late = pusher.request()
    chief.exchange.open(chief._publish(), 1)
    response = pusher.push(late)
    assert response.status == Status.PUSH_STATUS_TOO_STALE
    assert response.reason == "the gradient is of version 101, and the chief takes gradients of 102"


def wrong_shape(pusher: Pusher) -> Any:
    encoded = GradientEncoder("none", 1024, False, "none").encode({"q.0.bias": np.zeros(31, np.float32)})
    return pusher.request(segments=encoded.segments, crc32c=encoded.crc32c)


def oversize(pusher: Pusher) -> Any:
    request = pusher.request()
    request.segments[0].data = b"\0" * 200_000
    return request


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (wrong_shape, r"has shape \[31\], the parameter \[30\]"),
        (oversize, r"has 20\d+ bytes in 2 segments; the parameters take 70948 in 2 at most"),
        (lambda pusher: pusher.request(num_samples=0), "is of 0 items and 2 segments"),
        (lambda pusher: pusher.request(num_samples=2**31), "of 1 to 16777216 items"),
        (lambda pusher: pusher.request(sequence=0), "counted from 1"),
    ],
)
def test_a_push_that_cannot_be_right_is_refused_for_good(
    chief: Chief, pusher: Pusher, make: Any, sentence: str
) -> None:
    open_base(chief, pusher)
    with pytest.raises(Refused, match=sentence):
        pusher.push(make(pusher))
    chief.step()  # waits for nobody
    assert chief.count("invalid_total") == 1


def test_a_further_helper_is_refused_with_a_sentence(chief: Chief) -> None:
    pushers = [Pusher(chief, f"helper-{number}") for number in range(4)]
    for pusher in pushers[:3]:
        pusher.join()
    with pytest.raises(Refused, match=r"3 helpers take part.*raise gradients.max_helpers"):
        pushers[3].join()
    with pytest.raises(Refused, match=r"gradients\.max_helpers"):
        pushers[3].push(pushers[3].request(base_version=1))
    for pusher in pushers:
        pusher.close()


def test_who_is_no_helper_of_this_run_is_refused(chief: Chief, pusher: Pusher) -> None:
    stranger = Pusher(chief, digest="f" * 16)
    with pytest.raises(Refused, match="batches of schema ffffffffffffffff, the chief of 0123456789abcdef"):
        stranger.join()
    stranger.peer.role = experience_pb2.ROLE_ACTOR
    with pytest.raises(Refused, match="is no helper"):
        stranger.join()
    stranger.peer.run_id = "other"
    with pytest.raises(Refused, match="belongs to run 'other'"):
        stranger.join()
    stranger.close()


def test_before_the_first_actor_a_helper_is_asked_to_come_again() -> None:
    chief = Chief()
    pusher = Pusher(chief)
    with pytest.raises(Unavailable, match="waits for the first actor"):
        pusher.join()
    chief.begin()
    assert pusher.join().chief_incarnation == 11
    pusher.close()
    chief.stop()


def _threads_beside_pools() -> int:
    """A pool, which is bounded, may start its last thread at any call; those of a server's are named rpc."""
    return sum(not thread.name.startswith(("ThreadPoolExecutor", "rpc_")) for thread in threading.enumerate())


def test_cancelled_calls_leave_nothing_behind(chief: Chief, pusher: Pusher, eventually: Eventually) -> None:
    """Pushes that are cancelled while they wait, over and over: one gradient a helper is kept, no thread, no memory."""
    open_base(chief, pusher)
    request = pusher.request()

    def cancel(times: int) -> None:
        for _ in range(times):
            call = pusher.stub.Push.future(request, timeout=20)
            eventually(pusher.pending)
            call.cancel()
            eventually(lambda: not pusher.pending())

    threads_before = _threads_beside_pools()  # no call is under way, for which gRPC's client would have one
    cancel(20)  # the first ones fill pools
    gc.collect()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    cancel(150)
    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    eventually(lambda: _threads_beside_pools() <= threads_before)
    assert after - before < 100_000  # a gradient alone has 5 kB: 150 of them would show
    assert chief.exchange.check_valid() is None
    chief.step()
    assert len(chief.learner.applied) == 1


def test_waiting_pushes_leave_threads_for_others(
    chief: Chief, threads: ThreadPoolExecutor, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.learner.gradient_service.PUSH_WAIT_S", 60.0)  # until the step, or the call's end
    pushers = [Pusher(chief, f"helper-{number}") for number in range(3)]
    absent = pushers[0]
    open_base(chief, *pushers)
    for pusher in pushers[1:]:
        # Two calls each: the first one's client is gone, and the chief does not know yet.
        for _ in range(2):
            threads.submit(pusher.push, pusher.request(), timeout_s=40.0)

    def all_wait() -> bool:
        return all(chief.exchange._helpers.find(p.peer.name).num_waiting == 2 for p in pushers[1:])  # type: ignore[union-attr]

    eventually(all_wait)
    absent.join()
    assert all_wait()  # it had a thread of its own, and was not served on one that a push gave back
    threads.submit(absent.push, absent.request())
    chief.step()
    for pusher in pushers:
        pusher.close()


def test_asynchronous_pushes_are_answered_at_once(threads: ThreadPoolExecutor) -> None:
    chief = Chief(mode="asynchronous", accumulate=3, max_lag_updates=1)
    assert [event for event in chief.log.events("warning") if "late gradients hurt" in event]
    chief.begin()
    pusher = Pusher(chief)
    assert pusher.join().mode == gradients_pb2.GRADIENT_MODE_ASYNCHRONOUS
    chief.step()
    base = chief.exchange.newest_version
    assert pusher.push(pusher.request(1)).status == Status.PUSH_STATUS_ACCEPTED
    chief.step()
    assert chief.learner.updates == 1
    response = pusher.push(pusher.request(2, base_version=base))
    assert (response.status, response.weight) == (Status.PUSH_STATUS_SCALED, 0.5)
    chief.step()
    chief.step()
    assert chief.learner.updates == 2
    assert pusher.push(pusher.request(3, base_version=base)).status == Status.PUSH_STATUS_TOO_STALE
    pusher.close()
    chief.stop()


def test_too_few_places_for_the_contributors_are_warned_of() -> None:
    chief = Chief(mode="asynchronous", accumulate=2)
    assert [event for event in chief.log.events("warning") if "gradients.accumulate is less" in event]
    chief.stop()
    chief = Chief(mode="asynchronous", accumulate=3)
    assert not [event for event in chief.log.events("warning") if "gradients.accumulate is less" in event]
    chief.stop()
