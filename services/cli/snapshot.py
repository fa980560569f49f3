"""What is known of a run at one moment: plain values, from which the live view and the status line are drawn."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, Mapping, Optional, Tuple

from services.cli.waits import Wait


@dataclass(frozen=True)
class ProcessState:
    """A process as its launcher sees it."""

    name: str
    state: str  # "running", "starts again in 0.4 s", "ended", "fenced", ...
    restarts: int = 0
    healthy: bool = True


@dataclass(frozen=True)
class ReplayState:
    """The replay's last answer."""

    rows: int
    capacity_rows: int
    items: int
    acknowledged_steps: int
    steps_per_s: float
    samples_per_s: float  # items drawn
    insert_blocked: bool
    sample_blocked: bool
    limiter: str  # one sentence with the arithmetic
    overwritten_steps: int = 0
    quarantined_steps: int = 0
    lost_tail_steps: int = 0
    draining: bool = False
    silent_s: float = 0.0  # since that answer


@dataclass(frozen=True)
class LagPart:
    """How old trained items were lately when they had passed one part of their way."""

    name: str  # "acting", "in_flight", "ring", "prefetch"
    p50_updates: float
    p95_updates: float
    mean_s: float


@dataclass(frozen=True)
class LearnerState:
    """The learner's last answer."""

    run_state: str  # "waiting", "training", "finished"
    version: int
    updates: int
    max_updates: int
    updates_per_s: float
    training_s: float
    lag_p50_updates: float
    lag_p95_updates: float
    evaluated_version: int  # 0: none yet
    success_rate: float  # -1: the environment reports none
    mean_return: float
    best_version: int
    best_success_rate: float
    best_mean_return: float
    non_finite_updates: int = 0  # stopped since the learner's last start
    prefetched_batches: int = 0  # that wait to be trained on
    lag_parts: Tuple[LagPart, ...] = ()
    drain: str = ""  # how far a drain is; empty: there is none
    scores: Tuple[float, ...] = ()  # success rates of all evaluations seen, or returns where there is no success
    silent_s: float = 0.0

    @property
    def eta_s(self) -> Optional[float]:
        """Seconds to the last update at the present pace; None while there is no pace."""
        return (self.max_updates - self.updates) / self.updates_per_s if self.updates_per_s > 0 else None

    @property
    def has_success(self) -> bool:
        return self.success_rate >= 0


@dataclass(frozen=True)
class ActorState:
    """An actor as the replay sees it."""

    steps: int  # acknowledged
    steps_per_s: float
    version: int
    dropped_steps: int = 0
    buffered_steps: int = 0  # behind its last chunk
    silent_s: float = 0.0  # since its last chunk


@dataclass(frozen=True)
class ReaderState:
    """A process that fetches parameters, as the learner sees it."""

    role: str  # "actor", "helper", "evaluator"
    version: int
    lag_updates: int  # behind the newest
    silent_s: float  # since it asked
    drained: bool = False


@dataclass(frozen=True)
class HelperState:
    """A helper as the learner sees it."""

    pushes: int
    pushes_per_s: float
    lease_left_s: float  # 0: it is taken for gone
    is_awaited: bool  # the step waits for its gradient


@dataclass(frozen=True)
class TrainingState:
    """What replay and learner answered."""

    replay: Optional[ReplayState] = None
    learner: Optional[LearnerState] = None
    actors: Mapping[str, ActorState] = field(default_factory=dict)
    readers: Mapping[str, ReaderState] = field(default_factory=dict)
    helpers: Mapping[str, HelperState] = field(default_factory=dict)
    waits: Tuple[Wait, ...] = ()
    problem: str = ""  # why nothing is known


@dataclass(frozen=True)
class Snapshot:
    """The whole run."""

    run: str
    phase: str  # "starting", "training", "finishing", "stopping"
    elapsed_s: float
    processes: Tuple[ProcessState, ...]
    training: TrainingState = field(default_factory=TrainingState)

    @property
    def waits(self) -> Dict[str, str]:
        """By process, what it waits for; of several things the one that it waits for longest."""
        longest: Dict[str, Wait] = {}
        for wait in self.training.waits:
            before = longest.get(wait.who)
            if before is None or (wait.since_s or 0.0) > (before.since_s or 0.0):
                longest[wait.who] = wait
        return {name: wait.short() for name, wait in longest.items()}
