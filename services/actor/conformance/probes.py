"""Experiments with an environment: seeds, actions at their bounds and beyond, memory that is used again."""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, Mapping, Tuple

import numpy as np
import numpy.typing as npt

from services.actor.conformance.finding import Finding, ok, warning
from services.actor.envs.contract import EnvStep, VectorEnv
from services.actor.envs.host_tensors import to_host
from services.common.schema import ActionSpec

PROBE_STEPS = 5  # after a reset, to compare what two actions do
AT_BOUND = 0.2  # share of random actions that lie on a bound


def random_actions(spec: ActionSpec, num_lanes: int, rng: np.random.Generator) -> npt.NDArray[Any]:
    """Uniform ones, a fifth of their numbers on a bound: <float32>[B, A] or <int64>[B]."""
    if spec.is_discrete:
        return rng.integers(0, spec.num_actions, num_lanes)
    low, high = (np.array(bound, np.float32) for bound in (spec.low, spec.high))
    shape = (num_lanes, len(low))
    action = np.clip(rng.uniform(low, high, shape).astype(np.float32), low, high)
    bound = np.where(rng.random(shape) < 0.5, low, high)
    return np.where(rng.random(shape) < AT_BOUND, bound, action)


def copied(observation: Mapping[str, Any]) -> Dict[str, npt.NDArray[Any]]:
    """Name -> array that the environment cannot change any more."""
    return {name: np.array(to_host(tensor)) for name, tensor in observation.items()}


class Buffers:
    """Tells whether arrays that were handed out are written to by the next step, and whether actions are."""

    def __init__(self) -> None:
        self._kept: List[Tuple[str, Any, npt.NDArray[Any]]] = []
        self._reused: Dict[str, None] = {}  # names, in the order of their discovery
        self._changed_actions = 0

    def keep(self, step: EnvStep) -> None:
        """Remember the arrays of a step and what they hold."""
        parts = [(f"observation {name!r}", tensor) for name, tensor in step.observation.items()]
        parts += [("reward", step.reward), ("terminated", step.terminated), ("truncated", step.truncated)]
        self._kept = [(name, tensor, np.array(to_host(tensor))) for name, tensor in parts]

    def look(self) -> None:
        """After the next step: compare."""
        for name, tensor, then in self._kept:
            if not np.array_equal(to_host(tensor), then, equal_nan=then.dtype.kind == "f"):
                self._reused[name] = None

    def note_action(self, sent: npt.NDArray[Any], before: npt.NDArray[Any]) -> None:
        """Compare an action after the step with what it was."""
        self._changed_actions += not np.array_equal(sent, before)

    def findings(self) -> Iterator[Finding]:
        """What was noticed."""
        if self._changed_actions:
            yield warning(
                "buffers",
                f"step wrote to the array of the actions in {self._changed_actions} calls",
                "copy it first: the policy may keep it",
            )
        elif self._reused:
            yield ok("buffers", f"the next step writes to {', '.join(self._reused)}, which is allowed: shoal copies")
        else:
            yield ok("buffers", "what step hands out is not changed by the next one")


def probe_seeds(env: VectorEnv, seed: int) -> Iterator[Finding]:
    """Whether `reset` obeys its seed, in one life of the environment."""
    first, again, other = (copied(env.reset(each)) for each in (seed, seed, seed + 1))
    yield from judge_seeds(first, again, other)


def judge_seeds(
    first: Mapping[str, npt.NDArray[Any]], again: Mapping[str, npt.NDArray[Any]], other: Mapping[str, npt.NDArray[Any]]
) -> Iterator[Finding]:
    """Compare the observations after resets with a seed, with the same one, and with another."""
    check = "seed"
    if not _same(first, again):
        yield warning(
            check,
            "two resets with the same seed begin differently",
            "let reset(seed) start all random numbers anew: evaluations compare policies on the same tasks",
        )
    elif _same(first, other):
        yield warning(
            check,
            "resets with different seeds begin alike",
            "use the seed, unless the task has one beginning alone: all actors would see the same episodes",
        )
    elif _all_lanes_alike(first):
        yield warning(
            check,
            "all lanes begin alike, though the seed changes how",
            "give each lane random numbers of its own: lanes that are alike teach the same",
        )
    else:
        yield ok(check, "reset(seed) begins alike with the same seed, otherwise with another")


def probe_bounds(env: VectorEnv, seed: int) -> Iterator[Finding]:
    """What actions do at the bounds, and beyond them, where no policy of shoal goes."""
    spec, lanes = env.action_spec, env.num_lanes
    if spec.is_discrete:
        ends = [np.full(lanes, number, np.int64) for number in (0, spec.num_actions - 1)]
    else:
        ends = [np.tile(np.array(bound, np.float32), (lanes, 1)) for bound in (spec.low, spec.high)]
    low, high = (_run(env, seed, end) for end in ends)
    if spec.num_actions == 1:
        yield ok("actions", "there is one alone")
    elif _same(low, high):
        yield warning(
            "actions",
            f"the lowest and the highest lead to the same observations and rewards for {PROBE_STEPS} steps",
            "check that step uses its action",
        )
    else:
        yield ok("actions", "the lowest and the highest lead elsewhere")
    if not spec.is_discrete:
        yield _beyond(env, seed, ends[1], high)


def _beyond(env: VectorEnv, seed: int, highest: npt.NDArray[Any], high: Mapping[str, npt.NDArray[Any]]) -> Finding:
    check = "beyond the bounds"
    width = np.array(env.action_spec.high, np.float32) - np.array(env.action_spec.low, np.float32)
    try:
        far = _run(env, seed, highest + width)
    except Exception as error:  # noqa: BLE001 (whatever it raises is a refusal)
        return ok(check, f"actions are refused ({type(error).__name__}); policies stay within")
    if not all(np.isfinite(column).all() for column in far.values()):
        return warning(check, "actions lead to values that are not finite", "clip actions in step, to be safe")
    if _same(high, far):
        return ok(check, "actions do what they do at the bounds")
    return ok(check, "actions go further than at the bounds; policies stay within")


def _run(env: VectorEnv, seed: int, action: npt.NDArray[Any]) -> Dict[str, npt.NDArray[Any]]:
    """What some steps of one action lead to, by name and step."""
    env.reset(seed)
    seen: Dict[str, npt.NDArray[Any]] = {}
    for number in range(PROBE_STEPS):
        step = env.step(action.copy())
        seen[f"reward {number}"] = np.array(to_host(step.reward), np.float32)
        seen.update({f"{name} {number}": tensor for name, tensor in copied(step.observation).items()})
    return seen


def _same(one: Mapping[str, npt.NDArray[Any]], other: Mapping[str, npt.NDArray[Any]]) -> bool:
    return all(np.array_equal(one[name], other[name], equal_nan=one[name].dtype.kind == "f") for name in one)


def _all_lanes_alike(observation: Mapping[str, npt.NDArray[Any]]) -> bool:
    return all(len(tensor) > 1 and bool((tensor == tensor[:1]).all()) for tensor in observation.values())
