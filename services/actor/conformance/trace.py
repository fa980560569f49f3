"""What an environment did, step by step, kept as the few numbers that the checks need."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Tuple

import numpy as np
import numpy.typing as npt

from services.actor.envs.contract import AutoReset, EnvStep
from services.actor.envs.host_tensors import to_host
from services.common.schema import TensorSpec

MAX_FEATURES = 256  # of an observation; of larger ones every so-many-th number is looked at
MAX_ENDS = 2000  # whose surroundings are kept
MAX_EPISODES = 100_000  # that are kept
MAX_ORDINARY = 4000  # steps inside of episodes that they are compared with

Features = npt.NDArray[np.float64]  # [F] of a lane, or [B, F]


@dataclass(frozen=True)
class Episode:
    """One that began and ended before the doctor's eyes."""

    lane: int
    number: int  # in its lane; 0 began with the reset
    length: int  # transitions
    terminated: bool
    truncated: bool


@dataclass
class End:
    """What lies around the step that ended an episode."""

    acted_on: Features  # the observation before it
    observation: Features  # what it returned
    true_next: Optional[Features]
    same_final: bool  # the true next observation is exactly the one to act on
    truncated: bool  # and not terminated
    after: Optional[Features] = None  # what the following step returned; None: there was none
    after_valid: bool = True
    after_ended: bool = False


@dataclass
class Spread:
    """Mean, deviation and extremes of numbers that come in batches."""

    count: int = 0
    total: Any = 0.0
    squares: Any = 0.0
    low: float = np.inf
    high: float = -np.inf

    def add(self, values: npt.NDArray[Any]) -> None:
        """Take in <any>[N, ...]."""
        if len(values) == 0:
            return
        numbers = np.asarray(values, np.float64)
        self.count += len(numbers)
        self.total = self.total + numbers.sum(axis=0)
        self.squares = self.squares + np.square(numbers).sum(axis=0)
        self.low, self.high = min(self.low, float(numbers.min())), max(self.high, float(numbers.max()))

    @property
    def mean(self) -> Any:
        return self.total / max(self.count, 1)

    @property
    def deviation(self) -> Any:
        return np.sqrt(np.maximum(self.squares / max(self.count, 1) - np.square(self.mean), 0.0))


@dataclass
class Trace:
    """All that was seen of an environment of B lanes."""

    num_lanes: int
    autoreset: AutoReset
    specs: Tuple[TensorSpec, ...]
    calls: int = 0  # of step
    begun: Optional[Features] = None  # [B, F], what the first reset returned
    step_seconds: float = 0.0
    ends: List[End] = field(default_factory=list)
    num_ends: int = 0
    episodes: List[Episode] = field(default_factory=list)
    ordinary: List[Features] = field(default_factory=list)  # moves inside of episodes, [N, F] each
    num_ordinary: int = 0
    reward: Spread = field(default_factory=Spread)
    junk_reward: Spread = field(default_factory=Spread)  # of rows that are no transitions
    features: Spread = field(default_factory=Spread)
    metrics: Dict[str, Spread] = field(default_factory=dict)
    sick_metrics: List[str] = field(default_factory=list)
    not_finite: Dict[str, Tuple[int, int, int]] = field(default_factory=dict)  # name -> first call, lane; count
    num_valid: int = 0
    num_invalid: int = 0
    unmarked: int = 0  # next_step: rows after an end that claim to be transitions
    overmarked: int = 0  # rows that deny to be transitions, and follow no end
    lost_finals: int = 0  # truncated, and no true next observation
    dropped_finals: int = 0  # the same where the user accepts it

    def __post_init__(self) -> None:
        self._length = np.zeros(self.num_lanes, np.int64)
        self._number = np.zeros(self.num_lanes, np.int64)
        self._ended = np.zeros(self.num_lanes, np.bool_)
        self._open: Dict[int, End] = {}

    def note(self, acted_on: Mapping[str, Any], step: EnvStep) -> None:
        """Take in a step of the right form.

        Args:
            acted_on: the observation before it, copied before the step.
            step: its flags are arrays of numbers.
        """
        self.calls += 1
        terminated, truncated, valid = (
            to_host(flag).astype(np.bool_) for flag in (step.terminated, step.truncated, step.valid)
        )
        ended = terminated | truncated
        self._note_values(step, valid)
        before, now = self._features(acted_on), self._features(step.observation)
        if self.begun is None:
            self.begun = before
        self.features.add(before[np.isfinite(before).all(axis=1)])
        self._close_ends(now, valid, ended)
        self._note_flags(valid)
        inside = valid & ~ended & ~self._ended
        if self.num_ordinary < MAX_ORDINARY:
            self.ordinary.append(now[inside] - before[inside])
            self.num_ordinary += int(inside.sum())
        self._length += valid
        finals = valid & ended
        if finals.any():
            self._note_ends(step, before, now, np.flatnonzero(finals).tolist(), terminated, truncated)
        self._ended = finals if self.autoreset is AutoReset.NEXT_STEP else ended

    def _note_values(self, step: EnvStep, valid: npt.NDArray[np.bool_]) -> None:
        reward = to_host(step.reward)
        self.num_valid += int(valid.sum())
        self.num_invalid += int((~valid).sum())
        self._look_for("reward", np.where(valid, reward, 0.0))
        healthy = np.isfinite(reward)
        self.reward.add(reward[valid & healthy])
        self.junk_reward.add(reward[~valid & healthy])
        for member in ("observation", "true_next_observation"):
            for name, tensor in (getattr(step, member) or {}).items():
                self._look_for(f"{member} {name!r}", to_host(tensor))
        for name, column in step.metrics.items():
            numbers = to_host(column)
            if numbers.dtype.kind not in "biuf" or not np.isfinite(numbers).all():
                if name not in self.sick_metrics:
                    self.sick_metrics.append(name)
                continue
            self.metrics.setdefault(name, Spread()).add(numbers)

    def _look_for(self, name: str, column: npt.NDArray[Any]) -> None:
        if column.dtype.kind != "f" or np.isfinite(column).all():
            return
        lanes = np.flatnonzero(~np.isfinite(column.reshape(len(column), -1)).all(axis=1))
        call, lane, count = self.not_finite.get(name, (self.calls, int(lanes[0]), 0))
        self.not_finite[name] = (call, lane, count + len(lanes))

    def _note_flags(self, valid: npt.NDArray[np.bool_]) -> None:
        if self.autoreset is AutoReset.NEXT_STEP:
            self.unmarked += int((self._ended & valid).sum())
            # A lane may end again in its reset row; the row behind that is none either.
            self.overmarked += int((~self._ended & ~valid & (self._length > 0)).sum())
        else:
            self.overmarked += int((~valid).sum())

    def _close_ends(self, now: Features, valid: npt.NDArray[np.bool_], ended: npt.NDArray[np.bool_]) -> None:
        for lane, end in self._open.items():
            end.after, end.after_valid, end.after_ended = now[lane], bool(valid[lane]), bool(ended[lane])
        self._open = {}

    def _note_ends(
        self,
        step: EnvStep,
        before: Features,
        now: Features,
        lanes: List[int],
        terminated: npt.NDArray[np.bool_],
        truncated: npt.NDArray[np.bool_],
    ) -> None:
        true_next = None if step.true_next_observation is None else self._features(step.true_next_observation)
        dropped = np.zeros(self.num_lanes, np.bool_) if step.no_final is None else to_host(step.no_final)
        for lane in lanes:
            was_cut = bool(truncated[lane] and not terminated[lane])
            if true_next is None and was_cut and self.autoreset is not AutoReset.NEXT_STEP:
                self.dropped_finals += bool(dropped[lane])
                self.lost_finals += not dropped[lane]
            if len(self.episodes) < MAX_EPISODES:
                number, length = int(self._number[lane]), int(self._length[lane])
                self.episodes.append(Episode(lane, number, length, bool(terminated[lane]), bool(truncated[lane])))
            self._number[lane] += 1
            self._length[lane] = 0
            self.num_ends += 1
            if len(self.ends) < MAX_ENDS:
                final = None if true_next is None else true_next[lane]
                same = final is not None and bool(np.array_equal(final, now[lane]))
                self._open[lane] = End(before[lane], now[lane], final, same, was_cut)
                self.ends.append(self._open[lane])

    def _features(self, observation: Mapping[str, Any]) -> Features:
        """[B, F], the numbers of all tensors in the order of the specs."""
        flat = np.concatenate(
            [to_host(observation[spec.name]).reshape(self.num_lanes, -1) for spec in self.specs], axis=1
        )
        stride = -(-flat.shape[1] // MAX_FEATURES)
        return np.array(flat[:, ::stride], np.float64)
