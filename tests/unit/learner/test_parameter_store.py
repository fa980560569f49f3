from __future__ import annotations

import json
from pathlib import Path
from typing import Any, List

import numpy as np
import pytest
import safetensors.numpy

from services.common.errors import UserError
from services.learner.parameter_store import RESERVED_BLOCK, ParameterStore, VersionReservation, digest_of


def _store(folder: Path, **values: Any) -> ParameterStore:
    return ParameterStore(VersionReservation(folder / "versions.json"), **values)


def _parameters(bias: float) -> Any:
    return {"policy.bias": np.full(1, bias, np.float32)}


@pytest.mark.parametrize("taken", [0, 1, RESERVED_BLOCK, RESERVED_BLOCK + 1])
def test_no_life_of_the_chief_reuses_a_version(taken: int, tmp_path: Path) -> None:
    file = tmp_path / "versions.json"
    used: Any = []
    for _life in range(3):  # each is killed: nothing is written at its end
        reservation = VersionReservation(file)
        used += [reservation.take() for _ in range(taken)]
    assert len(set(used)) == len(used)
    assert used == sorted(used)
    assert used[:1] == ([1] if taken else [])


def test_a_version_is_reserved_on_disk_before_it_is_used(tmp_path: Path) -> None:
    file = tmp_path / "versions.json"
    reservation = VersionReservation(file)
    assert not file.exists()
    for _ in range(2 * RESERVED_BLOCK + 1):
        version = reservation.take()
        assert version <= json.loads(file.read_text())["reserved"]


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"reserved": "x"}', '{"reserved": null}'])
def test_a_damaged_reservation_is_told_and_not_started_anew(text: str, tmp_path: Path) -> None:
    file = tmp_path / "versions.json"
    file.write_text(text)
    with pytest.raises(UserError, match="cannot be read"):
        VersionReservation(file)
    assert file.read_text() == text


def test_a_full_disk_gives_no_version(tmp_path: Path) -> None:
    (tmp_path / "folder").write_text("a file where the folder must be")
    with pytest.raises(UserError, match="cannot write"):
        VersionReservation(tmp_path / "folder" / "versions.json").take()


def test_the_newest_set_travels_with_its_digest(tmp_path: Path) -> None:
    assert _store(tmp_path).newest is None
    store = _store(tmp_path)
    store.publish(_parameters(1), 10)
    published = store.publish(_parameters(2), 20)
    assert store.newest is published
    assert (published.version, published.updates) == (2, 20)
    np.testing.assert_array_equal(safetensors.numpy.load(published.data)["policy.bias"], [2])
    assert published.digest == digest_of(published.data)
    assert len(published.digest) == 32
    assert store.history() == [(1, 10), (2, 20)]


def test_lag_is_in_updates_and_never_negative(tmp_path: Path) -> None:
    store = _store(tmp_path, history=[(1, 0), (4, 20), (9, 50)])
    versions = np.array([1, 4, 9, 9, 1], np.int64)
    np.testing.assert_array_equal(store.lag(versions, 60), [60, 40, 10, 10, 60])
    np.testing.assert_array_equal(store.lag(versions, 30), [30, 10, 0, 0, 30])  # a chief that resumed behind


def test_a_version_that_nobody_knows_counts_as_fresh(tmp_path: Path) -> None:
    store = _store(tmp_path, history=[(4, 20), (9, 50)])
    versions = np.array([0, 1, 5, 8, 10, 2**60, -1], np.int64)
    np.testing.assert_array_equal(store.lag(versions, 60), np.zeros(7))
    np.testing.assert_array_equal(_store(tmp_path).lag(versions, 60), np.zeros(7))
    assert len(store.lag(np.zeros(0, np.int64), 60)) == 0


def test_a_restarted_chief_publishes_above_its_history(tmp_path: Path) -> None:
    first = _store(tmp_path)
    first.publish(_parameters(1), 0)
    second = _store(tmp_path, history=first.history())
    assert second.publish(_parameters(1), 0).version == RESERVED_BLOCK + 1
    versions: List[int] = [version for version, _ in second.history()]
    assert versions == [1, RESERVED_BLOCK + 1]


def test_the_two_newest_sets_are_found_and_older_ones_only_while_they_are_held(tmp_path: Path) -> None:
    store = _store(tmp_path)
    store.hold_newest("evaluator")  # nothing to hold yet
    first = store.publish(_parameters(1), 1)
    store.hold_newest("evaluator")
    second = store.publish(_parameters(2), 2)
    assert store.find(1) is first
    assert store.find(2) is second
    assert store.find(3) is None
    store.publish(_parameters(3), 3)
    assert store.find(1) is first
    assert store.find(2) is second
    store.publish(_parameters(4), 4)
    assert store.find(1) is first
    assert store.find(2) is None
    store.hold_newest("evaluator")
    assert store.find(1) is None


def test_two_evaluators_hold_a_set_each(tmp_path: Path) -> None:
    store = _store(tmp_path)
    first = store.publish(_parameters(1), 1)
    store.hold_newest("one")
    second = store.publish(_parameters(2), 2)
    store.hold_newest("other")
    store.publish(_parameters(3), 3)
    assert store.find(1) is first
    assert store.find(2) is second


def test_updates_of_versions_are_looked_up_and_lost_ones_are_marked(tmp_path: Path) -> None:
    assert _store(tmp_path).known_updates_of(np.array([1, 2])).tolist() == [-1, -1]
    store = ParameterStore(VersionReservation(tmp_path / "versions.json", 5), [(1, 0), (5, 40)])
    assert store.known_updates_of(np.array([5, 0, 1, 3, 9])).tolist() == [40, -1, 0, -1, -1]
    published = store.publish({"w": np.zeros(1, np.float32)}, 60)
    assert store.known_updates_of(np.array([published.version, 5])).tolist() == [60, 40]
