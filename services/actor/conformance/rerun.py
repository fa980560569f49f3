"""Steps an environment with the actions of a quarantined lane, and looks for values that are not finite."""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, Mapping, Optional

import numpy as np
import numpy.typing as npt

from services.actor.conformance.probes import random_actions
from services.actor.envs.contract import EnvStep, VectorEnv
from services.actor.envs.host_tensors import to_host
from services.common.chunk import TERMINATED, TRUNCATED
from services.common.sick_lane import SickLane

ROUNDS = 20  # resets, each of all lanes
TOLERANCE = 1e-5  # relative, between what was recorded and what is seen


def rerun_exactly(env: VectorEnv, sick: SickLane, seed: int) -> Iterator[str]:
    """Repeat a lane's whole life, from the reset to the bad step; other lanes act at random.

    Args:
        env: as the actor built it.
        sick: holds every step of the lane's life.
        seed: of the actor's environment.
    """
    rng = np.random.default_rng(seed)
    lane = sick.lane
    observation = env.reset(seed)
    for row in range(sick.step + 1):
        differs = _difference(sick, observation, row)
        if differs:
            yield (
                f"not the same: {differs} in step {row}, so the environment is not repeatable from its seed;"
                " `shoal doctor env` tells more"
            )
            return
        found = _not_finite({f"observation.{name}": to_host(tensor)[lane] for name, tensor in observation.items()})
        if found:
            yield f"again: {', '.join(found)} not finite before step {row}"
            return
        actions = random_actions(env.action_spec, env.num_lanes, rng)
        actions[lane] = sick.columns["action"][row]
        step = env.step(actions)
        found = _not_finite(_outcome(step, lane))
        if found:
            yield f"again: {', '.join(found)} not finite after step {row}"
            return
        observation = step.observation
    yield f"not again: {sick.step + 1} steps with the same observations and actions, and all that followed is finite"


def rerun_from_elsewhere(env: VectorEnv, sick: SickLane, seed: int) -> Iterator[str]:
    """Try the recorded actions in fresh episodes: a fault of the simulator that hangs on them may show.

    Args:
        env: as the actor built it.
        sick: holds the lane's last steps.
        seed: of the first round; the next have the following ones.
    """
    actions = sick.columns["action"][_episode_start(sick) :]
    sick_lanes = 0
    what: Dict[str, None] = {}  # names, in the order of their discovery
    for number in range(ROUNDS):
        env.reset(seed + number)
        healthy = np.ones(env.num_lanes, np.bool_)
        for action in actions:
            step = env.step(np.repeat(action[None], env.num_lanes, axis=0))
            for lane in np.flatnonzero(healthy).tolist():
                found = _not_finite(_outcome(step, lane))
                what.update(dict.fromkeys(found))
                healthy[lane] = not found
        sick_lanes += int((~healthy).sum())
    tried = f"{ROUNDS * env.num_lanes} episodes with the last {len(actions)} actions"
    if sick_lanes:
        yield f"again: in {sick_lanes} of {tried}, {', '.join(what)} not finite"
    else:
        yield f"not again: {tried}, and all that followed is finite"


def _episode_start(sick: SickLane) -> int:
    """Row behind the last end before the bad step; 0 where the dump does not reach back to one."""
    ended = (sick.columns["flags"][:-1] & (TERMINATED | TRUNCATED)) != 0
    return int(np.flatnonzero(ended)[-1]) + 1 if ended.any() else 0


def _difference(sick: SickLane, observation: Mapping[str, Any], row: int) -> Optional[str]:
    for name, tensor in observation.items():
        seen = np.asarray(to_host(tensor)[sick.lane], np.float64)
        recorded = np.asarray(sick.columns[f"observation.{name}"][row], np.float64)
        if not np.allclose(seen, recorded, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True):
            return f"observation {name!r} differs from the dump's"
    return None


def _outcome(step: EnvStep, lane: int) -> Dict[str, npt.NDArray[Any]]:
    """What a step led to in a lane."""
    found = {"reward": np.atleast_1d(to_host(step.reward)[lane])} if to_host(step.valid)[lane] else {}
    for member in ("true_next_observation", "observation"):
        for name, tensor in (getattr(step, member) or {}).items():
            found[f"{member}.{name}"] = to_host(tensor)[lane]
    return found


def _not_finite(columns: Mapping[str, npt.NDArray[Any]]) -> List[str]:
    return [name for name, column in columns.items() if column.dtype.kind == "f" and not np.isfinite(column).all()]
