"""Each adapter's episodes through chunks into items, against what its simulator wrote on paper."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Tuple

import numpy as np
import pytest

from services.actor.chunk_writer import ChunkWriter
from services.actor.envs.contract import VectorEnv
from services.actor.envs.gymnasium_adapter import GymnasiumVector, vectorize
from services.actor.envs.isaac_gym import IsaacGym
from services.actor.envs.isaac_lab import IsaacLab
from services.actor.envs.lost_tails import DropLostTails
from services.actor.envs.masked_reset import MaskedReset
from services.agent.algorithm import Decision
from services.common.schema import Schema
from services.replay.admission import InsertStatus
from services.replay.items import StepOutcome
from services.replay.table import Table, TableSettings
from tests.simulator_fakes import FakeLabEnv, FakeManiSkill, FakeVecTask, PaperEnv, PaperLane, to_fake

LANES, STEPS, DISCOUNT = 3, 43, 0.5
Built = Tuple[VectorEnv, List[PaperLane]]
Item = Tuple[float, float, float]  # return, discount, bootstrap observation


def _single(autoreset: str) -> Built:
    made: List[PaperEnv] = []

    def make() -> PaperEnv:
        made.append(PaperEnv(len(made)))
        return made[-1]

    env: Any = vectorize(make, LANES, autoreset)
    return MaskedReset(env) if autoreset == "disabled" else env, [each.lane for each in made]


def _isaac_gym(resets_before_physics: bool, device: str = "cuda:0") -> Built:
    task = FakeVecTask(LANES, resets_before_physics=resets_before_physics, device=device)

    def send(array: Any) -> Any:
        tensor = to_fake(array)
        tensor.device = device
        return tensor

    return IsaacGym(task, to_device=send, set_seed=lambda _seed: None), task.lanes


def _isaac_lab(final_obs: bool = True) -> Built:
    env = FakeLabEnv(LANES, final_obs=final_obs)
    return IsaacLab(env, to_device=to_fake), env.lanes


def _maniskill() -> Built:
    env = FakeManiSkill(LANES)
    return GymnasiumVector(env, autoreset="same_step"), env.lanes


ADAPTERS: Dict[str, Callable[[], Built]] = {
    "gymnasium, same_step": lambda: _single("same_step"),
    "gymnasium, next_step": lambda: _single("next_step"),
    "gymnasium, disabled": lambda: _single("disabled"),
    "Isaac Gym, reset after physics": lambda: _isaac_gym(False),
    "Isaac Gym, reset before physics": lambda: _isaac_gym(True),
    "Isaac Gym, tensors of the CPU": lambda: _isaac_gym(False, "cpu"),
    "Isaac Lab": _isaac_lab,
    "ManiSkill": _maniskill,
}


def items_of(env: VectorEnv, n_step: int, chunk_steps: int) -> Tuple[Dict[float, Item], int]:
    """Act, and return the items by the observation that they start with, and how many steps were lost."""
    schema = Schema(env.observation_spec, env.action_spec)
    table = Table(
        TableSettings(capacity=4096, n_step=n_step, discount=DISCOUNT, max_batch_size=8, max_actor_silence_s=1.0),
        schema,
        clock=lambda: 0.0,
    )
    writer = ChunkWriter(schema, num_lanes=LANES, chunk_steps=chunk_steps, autoreset=env.autoreset, clock=lambda: 0.0)
    nothing, sequence = np.full(LANES, np.nan, np.float32), 0

    def send(chunk: Any) -> None:
        nonlocal sequence
        chunk.sequence = sequence
        sequence += 1
        chunk.check(schema)
        assert table.insert("actor", 1, chunk, max_wait_s=0.0).status is InsertStatus.APPLIED

    def value(observation: Any) -> Any:
        return np.full(len(observation["policy"]), np.nan, np.float32)

    observation = env.reset(7)
    for number in range(STEPS):
        action = np.full((LANES, 2), 0.01 * number, np.float32)
        writer.record_decision(observation, Decision(action, nothing, nothing), 1)
        step = env.step(action)
        chunk = writer.record_outcome(step, value, newest_version=1)
        if chunk is not None:
            send(chunk)
        observation = step.observation
    tail = writer.cut(observation, value)
    if tail is not None:
        send(tail)
    ring = table.store.ring
    assert table.check_valid() is None
    slots = np.flatnonzero(ring.status == StepOutcome.ITEM)
    boot = ring.observation["policy"][ring.slots(ring.bootstrap_key[slots]), 0]
    found = {
        float(ring.observation["policy"][slot, 0]): (
            float(ring.n_step_return[slot]),
            float(ring.discount[slot]),
            float(final),
        )
        for slot, final in zip(slots, boot)
    }
    assert len(found) == len(slots)
    return found, int(np.count_nonzero(ring.status == StepOutcome.LOST))


def expected(lanes: List[PaperLane], n_step: int, *, both_is_time_out: bool, keeps_final: bool = True) -> Any:
    """The same on paper: items, and the number of steps that must be lost."""
    items: Dict[float, Item] = {}
    lost = 0
    for log in (lane.log for lane in lanes):
        for start, first in enumerate(log):
            total, weight, boot = 0.0, 1.0, first.observation
            for step in log[start : start + n_step]:
                terminated = step.terminated and not (both_is_time_out and step.truncated)
                if step.truncated and not terminated and not keeps_final:
                    break  # its successor was seen by nobody: bootstrap where it was taken
                total += weight * step.reward
                weight = 0.0 if terminated else weight * DISCOUNT
                boot = step.led_to
                if step.terminated or step.truncated:
                    break
            if boot == first.observation:
                lost += 1
            else:
                items[first.observation] = (total, weight, boot)
    return items, lost


def compare(found: Dict[float, Item], want: Dict[float, Item]) -> None:
    assert set(found) == set(want)
    for start, (total, discount, boot) in want.items():
        assert found[start][:2] == (total, discount), start
        if discount:
            assert found[start][2] == boot, start


@pytest.mark.parametrize("chunk_steps", [1, 4, 50])
@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("name", list(ADAPTERS))
def test_every_item_is_what_the_simulator_did(name: str, n_step: int, chunk_steps: int) -> None:
    env, lanes = ADAPTERS[name]()
    if chunk_steps == 1:
        # A chunk of one step leaves no row to cut running episodes at, so the last steps have no successor yet.
        found, lost = items_of(env, n_step, chunk_steps)
        want, _ = expected(lanes, n_step, both_is_time_out="Isaac Gym" in name)
        assert lost == 0
        assert found
        compare(found, {start: item for start, item in want.items() if start in found})
        assert len(want) - len(found) <= LANES * n_step
        return
    found, lost = items_of(env, n_step, chunk_steps)
    want, _ = expected(lanes, n_step, both_is_time_out="Isaac Gym" in name)
    compare(found, want)
    assert lost == 0
    ends = [step for lane in lanes for step in lane.log if step.terminated or step.truncated]
    assert len({(step.terminated, step.truncated) for step in ends}) == 3, "not every kind of end was seen"


@pytest.mark.parametrize("n_step", [1, 3])
def test_tails_without_final_observation_are_dropped_and_counted(n_step: int) -> None:
    env, lanes = _isaac_lab(final_obs=False)
    found, lost = items_of(DropLostTails(env), n_step, 4)
    want, want_lost = expected(lanes, n_step, both_is_time_out=False, keeps_final=False)
    compare(found, want)
    assert lost == want_lost > 3
