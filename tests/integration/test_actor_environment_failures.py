"""An actor whose environment fails or hangs, with real servers: who is told, and what is lost."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from services.common.run_folder import RunFolder
from services.learner.parameter_service import ParameterServicer, Readers, Status, add_to_server
from services.learner.parameter_store import ACT, ParameterStore
from services.learner.version_reservation import VersionReservation
from shoal.v1 import parameters_pb2
from tests import failing_envs
from tests.acting_parties import (
    Peers,
    flags_of,
    seeded_parameters,
)
from tests.conftest import Eventually
from tests.fakes import RUN_ID, FakeLog


def test_a_group_that_fails_ends_the_actor_with_its_error(
    peers: Peers, make_acting: Any, eventually: Eventually
) -> None:
    acting = make_acting(
        **{"actor.lane_groups": 2, "env.factory": "tests.failing_envs:make_exploding", "env.kwargs": "{ after = 30 }"}
    )
    eventually(lambda: not acting._thread.is_alive())
    with pytest.raises(ValueError, match="physics exploded"):
        acting.finish()
    assert peers.replay.info().steps.acknowledged == acting.produced()


def test_a_step_that_hangs_is_named_to_whoever_asks_the_chief(
    tmp_path: Path, peers: Peers, make_acting: Any, eventually: Eventually
) -> None:
    store = ParameterStore(VersionReservation(tmp_path / "versions.json"))
    store.publish({ACT: seeded_parameters()}, 0)
    readers = Readers(time.monotonic, 1)
    peers.chief = ParameterServicer(  # type: ignore[assignment]
        run_id=RUN_ID,
        incarnation=1,
        store=store,
        readers=readers,
        folder=RunFolder(tmp_path),
        status=Status(run_state=parameters_pb2.RUN_STATE_TRAINING),
        num_actors=1,
        max_updates=10,
        waiting_for=lambda: "",
        fail=pytest.fail,
        log=FakeLog(),
    )
    peers.add_chief = add_to_server  # type: ignore[assignment]
    peers.go("chief")
    peers.come("chief")
    failing_envs.GO_ON.clear()
    acting = make_acting(**{"env.factory": "tests.failing_envs:make_hanging", "actor.max_step_s": 1.0})

    def told() -> str:
        return "".join(reader.waiting_for for reader in readers.living(5.0))

    eventually(lambda: told().startswith("the environment hangs: step has not returned for "))
    eventually(lambda: any("hangs: step has not returned" in event for event in acting.log.events("warning")))
    assert acting.metric("env_hangs_total") == 1
    assert acting.metric("env_call_seconds") > 1.0
    failing_envs.GO_ON.set()
    eventually(lambda: told() == "")
    eventually(lambda: acting.produced() > 0)
    eventually(lambda: "the environment goes on" in acting.log.events("info"))
    acting.finish()


@pytest.mark.parametrize(
    ("how", "code", "said"),
    [
        ("os._exit", 7, ""),
        ("sys.exit", 1, "shoal actor: environment 'tests.failing_envs:make_ending': the environment ended the process"),
        ("raise", 1, "ValueError: physics exploded"),
    ],
)
def test_a_simulator_that_breaks_down_ends_the_process_and_a_new_life_takes_over(
    how: str, code: int, said: str, peers: Peers
) -> None:
    ending = {"env.factory": "tests.failing_envs:make_ending", "env.kwargs": f'{{ how = "{how}", after = 40 }}'}
    command = [sys.executable, "-m", "services.actor", *flags_of(peers, **ending, **{"actor.name": "actor-0"})]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    incarnations, acknowledged = [], []
    for _ in range(2):
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=environ)
        assert ended.returncode == code, ended.stderr
        assert said in ended.stderr
        if how == "sys.exit":
            assert len(ended.stderr.splitlines()) == 1
        info = peers.replay.info()
        incarnations.append(info.actors[0].incarnation)
        acknowledged.append(info.steps.acknowledged)
    assert incarnations[0] != incarnations[1]
    assert 0 < acknowledged[0] < acknowledged[1]
