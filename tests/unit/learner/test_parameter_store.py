from __future__ import annotations

from pathlib import Path
from typing import Any, List

import numpy as np
import pytest
import safetensors.numpy

from services.common.errors import UserError
from services.common.parameter_set import decode_set, digest_of
from services.learner import parameter_store, published_set
from services.learner.parameter_store import ACT, AVERAGE, LEARN, ParameterStore
from services.learner.published_set import PublishedSet
from services.learner.version_history import VersionRecord
from services.learner.version_reservation import RESERVED_BLOCK, VersionReservation
from tests.fakes import FakeClock


def _store(folder: Path, **values: Any) -> ParameterStore:
    return ParameterStore(VersionReservation(folder / "versions.json"), **values)


def _parameters(bias: float, size: int = 1) -> Any:
    return {"policy.bias": np.full(size, bias, np.float32)}


def _publish(store: ParameterStore, bias: float, updates: int = 0) -> PublishedSet:
    return store.publish({ACT: _parameters(bias)}, updates)


def _bias(published: Any) -> float:
    return float(decode_set(published.data)["policy.bias"][0])


def test_the_newest_set_travels_with_its_digest(tmp_path: Path) -> None:
    assert _store(tmp_path).newest is None
    store = _store(tmp_path)
    _publish(store, 1, 10)
    published = _publish(store, 2, 20)
    assert store.newest is published
    assert (published.version, published.updates) == (2, 20)
    np.testing.assert_array_equal(safetensors.numpy.load(published.data)["policy.bias"], [2])
    assert published.digest == digest_of(published.data)
    assert len(published.digest) == 32
    assert [record[:2] for record in store.history()] == [(1, 10), (2, 20)]


def test_sets_that_belong_together_have_one_version(tmp_path: Path) -> None:
    store = _store(tmp_path)
    acting = store.publish({ACT: _parameters(1), AVERAGE: _parameters(0.5)}, 20)
    average: Any = store.newest_of(AVERAGE)
    assert (average.version, average.updates) == (acting.version, acting.updates) == (1, 20)
    assert (_bias(acting), _bias(average)) == (1.0, 0.5)
    assert acting.digest != average.digest
    assert store.find_held(1, average.digest) is average
    assert store.find_held(1, acting.digest) is acting
    assert store.find_held(1, "0" * 32) is None
    assert store.newest_of(LEARN) is None


def test_sets_to_learn_from_share_the_counter_and_leave_the_history_alone(tmp_path: Path) -> None:
    store = _store(tmp_path)
    versions = [_publish(store, 0, 0).version]
    for updates in range(1, 2001):
        versions.append(store.publish_learn(_parameters(updates), updates).version)
        if updates % 1000 == 0:
            versions.append(_publish(store, updates, updates).version)
    assert versions == list(range(1, len(versions) + 1))
    assert len(store.history()) == 3
    assert store.updates_of_learn(2) == 1
    assert store.updates_of_learn(versions[-2]) == 2000
    assert store.updates_of_learn(1) is None
    assert store.lag_of_reader(LEARN, 2, 2000) == 1999
    assert store.lag_of_reader(LEARN, 10**6, 2000) == 0


def test_of_sets_to_learn_from_the_last_few_thousand_are_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parameter_store, "LEARN_WINDOW", 3)
    store = _store(tmp_path)
    for updates in range(1, 6):
        store.publish_learn(_parameters(1), updates)
    assert [store.updates_of_learn(version) for version in range(1, 6)] == [None, None, 3, 4, 5]


def test_a_set_that_nobody_asks_for_is_not_serialized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: List[Any] = []
    encode = published_set.encode_set
    monkeypatch.setattr(published_set, "encode_set", lambda *given: encoded.append(given) or encode(*given))
    store = _store(tmp_path)
    for updates in range(100):
        _publish(store, updates, updates)
        store.publish_learn(_parameters(updates), updates)
    assert encoded == []
    newest: Any = store.newest_of(LEARN)
    assert not newest.is_serialized
    assert _bias(newest) == 99
    assert newest.is_serialized
    assert len(encoded) == 1


def test_a_published_set_keeps_the_values_of_its_time(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    weights = torch.zeros(3)
    store = _store(tmp_path)
    published = store.publish({ACT: {"policy.bias": weights.numpy()}}, 0)
    learn = store.publish_learn({"policy.bias": weights.numpy()[1:]}, 0)
    weights += 1.0  # the learner goes on before anybody asks
    assert (_bias(published), _bias(learn)) == (0.0, 0.0)


def test_a_set_travels_in_the_dtype_that_was_chosen_and_sets_to_learn_from_in_float32(tmp_path: Path) -> None:
    store = _store(tmp_path, wire_dtype="float16")
    parameters = {"policy.bias": np.linspace(-1, 1, 1000, dtype=np.float32)}
    acting, learn = store.publish({ACT: parameters}, 0), store.publish_learn(parameters, 0)
    assert len(acting.data) < 0.6 * len(learn.data)
    np.testing.assert_array_equal(decode_set(learn.data)["policy.bias"], parameters["policy.bias"])
    assert acting.digest == digest_of(acting.data)


def test_a_value_that_does_not_fit_publishes_nothing(tmp_path: Path) -> None:
    store = _store(tmp_path, wire_dtype="float16")
    with pytest.raises(UserError, match=r"'policy\.bias' holds a value of magnitude 70000"):
        _publish(store, 7e4)
    assert store.newest is None
    assert store.history() == []
    assert _publish(store, 1.0).version == 1


def test_lag_is_in_updates_and_never_negative(tmp_path: Path) -> None:
    store = _store(tmp_path, history=[VersionRecord(1, 0), VersionRecord(4, 20), VersionRecord(9, 50)])
    versions = np.array([1, 4, 9, 9, 1], np.int64)
    np.testing.assert_array_equal(store.lag(versions, 60), [60, 40, 10, 10, 60])
    np.testing.assert_array_equal(store.lag(versions, 30), [30, 10, 0, 0, 30])  # a chief that resumed behind
    np.testing.assert_array_equal(store.updates_of(versions), [0, 20, 50, 50, 0])
    assert store.unknown_versions == 0


def test_a_version_that_nobody_knows_counts_as_fresh_and_is_counted(tmp_path: Path) -> None:
    store = _store(tmp_path, history=[VersionRecord(4, 20), VersionRecord(9, 50)])
    versions = np.array([0, 1, 5, 8, 10, 2**60, -1], np.int64)
    np.testing.assert_array_equal(store.lag(versions, 60), np.zeros(7))
    assert store.unknown_versions == 7
    np.testing.assert_array_equal(store.age_s(versions), np.zeros(7))
    np.testing.assert_array_equal(_store(tmp_path).lag(versions, 60), np.zeros(7))
    assert len(store.lag(np.zeros(0, np.int64), 60)) == 0


def test_ages_are_seconds_since_the_publishing(tmp_path: Path, clock: FakeClock) -> None:
    store = _store(tmp_path, clock=clock)
    _publish(store, 1)
    clock.now_s += 3
    _publish(store, 2)
    clock.now_s += 4
    np.testing.assert_array_equal(store.age_s(np.array([1, 2, 2])), [7.0, 4.0, 4.0])


def test_a_restarted_chief_publishes_above_its_history(tmp_path: Path) -> None:
    first = _store(tmp_path)
    _publish(first, 1)
    second = _store(tmp_path, history=first.history())
    assert _publish(second, 1).version == RESERVED_BLOCK + 1
    assert [record.version for record in second.history()] == [1, RESERVED_BLOCK + 1]


def test_the_two_newest_sets_are_found_and_older_ones_only_while_they_are_held(tmp_path: Path) -> None:
    store = _store(tmp_path)
    store.hold_newest("evaluator")  # nothing to hold yet
    first = _publish(store, 1)
    store.hold_newest("evaluator")
    second = _publish(store, 2)
    assert store.find(ACT, 1) is first
    assert store.find(ACT, 2) is second
    assert store.find(ACT, 3) is None
    assert store.find(LEARN, 1) is None
    _publish(store, 3)
    assert store.find(ACT, 1) is first
    assert store.find(ACT, 2) is second
    _publish(store, 4)
    assert store.find(ACT, 1) is first
    assert store.find(ACT, 2) is None
    store.hold_newest("evaluator")
    assert store.find(ACT, 1) is None


def test_two_evaluators_hold_a_set_each(tmp_path: Path) -> None:
    store = _store(tmp_path)
    first = _publish(store, 1)
    store.hold_newest("one")
    second = _publish(store, 2)
    store.hold_newest("other")
    _publish(store, 3)
    assert store.find(ACT, 1) is first
    assert store.find(ACT, 2) is second


def test_an_evaluator_that_is_gone_holds_nothing(tmp_path: Path, clock: FakeClock) -> None:
    store = _store(tmp_path, clock=clock)
    for number in range(1, 4):
        _publish(store, number)
        store.hold_newest(f"evaluator-{number}")
    _publish(store, 4)
    _publish(store, 5)
    assert store.num_sets == 5
    clock.now_s += parameter_store.HOLD_LEASE_S + 1
    _publish(store, 6)
    assert store.num_sets == 2
    assert store.find(ACT, 1) is None


def test_evaluators_that_come_again_and_again_under_other_names_hold_a_few_sets(
    tmp_path: Path, clock: FakeClock
) -> None:
    store = _store(tmp_path, clock=clock)
    for number in range(50):
        _publish(store, number)
        clock.now_s += 1
        store.hold_newest(f"evaluator-{number}")
    assert store.num_sets <= 2 + parameter_store.MAX_HOLDERS


def test_a_reader_slower_than_the_publishing_gets_to_an_end(tmp_path: Path, clock: FakeClock) -> None:
    store = _store(tmp_path, clock=clock)
    first = _publish(store, 1)
    for updates in range(20):
        store.note_fetch(first, "slow", is_last_part=False)
        clock.now_s += 1
        _publish(store, 2, updates)
        _publish(store, 3, updates)
        assert store.find(ACT, first.version) is first
        assert store.num_sets == 2
    store.note_fetch(first, "slow", is_last_part=True)
    _publish(store, 4, 20)
    assert store.find(ACT, first.version) is None


@pytest.mark.parametrize(
    ("pause_s", "pauses"), [(parameter_store.DOWNLOAD_LEASE_S + 1, 1), (5.0, 1 + parameter_store.MAX_DOWNLOAD_S / 5)]
)
def test_a_reader_that_pauses_or_never_ends_is_not_waited_for(
    pause_s: float, pauses: float, tmp_path: Path, clock: FakeClock
) -> None:
    store = _store(tmp_path, clock=clock)
    first = _publish(store, 1)
    store.note_fetch(first, "slow", is_last_part=False)
    _publish(store, 2)
    for _ in range(int(pauses)):
        assert store.find(ACT, 1) is first
        store.note_fetch(first, "slow", is_last_part=False)
        clock.now_s += pause_s
    _publish(store, 3)
    assert store.find(ACT, 1) is None


def test_however_many_readers_fetch_two_sets_of_a_role_are_kept(tmp_path: Path, clock: FakeClock) -> None:
    store = _store(tmp_path, clock=clock)
    for number in range(300):
        published = store.publish({ACT: _parameters(1), AVERAGE: _parameters(2)}, number)
        learn = store.publish_learn(_parameters(3), number)
        store.note_fetch(published, f"actor-{number}", is_last_part=False)
        store.note_fetch(learn, f"helper-{number}", is_last_part=False)
        clock.now_s += 0.1
        assert store.num_sets <= 6


def test_digests_of_what_was_fetched_are_remembered_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parameter_store, "MAX_DIGESTS", 2)
    store = _store(tmp_path)
    digests = []
    for number in range(3):
        published = _publish(store, number)
        store.note_fetch(published, "actor-0", is_last_part=True)
        digests.append(published.digest)
    assert [store.digest_of(ACT, version) for version in (1, 2, 3)] == ["", *digests[1:]]
    assert store.digest_of(LEARN, 3) == ""


def test_updates_of_versions_are_looked_up_and_lost_ones_are_marked(tmp_path: Path) -> None:
    assert _store(tmp_path).known_updates_of(np.array([1, 2])).tolist() == [-1, -1]
    store = ParameterStore(
        VersionReservation(tmp_path / "versions.json", 5), [VersionRecord(1, 0), VersionRecord(5, 40)]
    )
    assert store.known_updates_of(np.array([5, 0, 1, 3, 9])).tolist() == [40, -1, 0, -1, -1]
    published = _publish(store, 1, 60)
    assert store.known_updates_of(np.array([published.version, 5])).tolist() == [60, 40]
