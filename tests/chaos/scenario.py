"""What a scenario is, and what came of one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Callable, List, Mapping, Optional, Tuple

from tests.chaos.accounting import Account
from tests.chaos.system import LOOPBACK

if TYPE_CHECKING:
    from tests.chaos.trial import Trial


@dataclass(frozen=True)
class Scenario:
    """A system, and what is done to it."""

    name: str
    kind: str  # heading of the table
    text: str  # what happens, in a few words
    inject: Callable[[Trial], None]
    layout: str = LOOPBACK
    with_helper: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)  # keys of the run file
    env_kwargs: str = ""  # further arguments of the environment, as TOML
    needs: Tuple[str, ...] = ()  # of the machine
    quick: bool = False  # part of --quick
    begins: bool = True  # the system is started and trains before the fault; else `inject` starts it
    to_the_bar: bool = False  # training goes on to its last update, and must have learned its task


@dataclass(frozen=True)
class Measure:
    """How long something took, and may take."""

    what: str
    seconds: float
    limit_s: float

    @property
    def is_late(self) -> bool:
        return self.seconds > self.limit_s


@dataclass
class Outcome:
    """What came of a scenario."""

    scenario: Scenario
    seed: int
    seconds: float = 0.0
    measures: List[Measure] = field(default_factory=list)
    account: Optional[Account] = None
    counted_lost: int = 0  # steps that the replay itself counts as lost with the damaged part of the ring
    lost_updates: Optional[int] = None  # the most that one kill of the learner cost
    notes: List[str] = field(default_factory=list)
    faults: List[str] = field(default_factory=list)
    not_tested: str = ""  # why it was left out

    @property
    def verdict(self) -> str:
        if self.not_tested:
            return "NOT TESTED"
        return "FAILED" if self.faults else "passed"

    def judge(self) -> None:
        """Turn what was measured and counted into faults."""
        self.faults += [
            f"{measure.what} took {measure.seconds:.1f} s, more than {measure.limit_s:.1f} s"
            for measure in self.measures
            if measure.is_late
        ]
        if self.account is None:
            if not self.not_tested and not self.faults:
                self.faults.append("the steps were not accounted for")
            return
        if self.account.lost != self.counted_lost:
            self.faults.append(f"{self.account.lost - self.counted_lost} acknowledged steps are lost")
        if self.account.doubled:
            self.faults.append(f"{self.account.doubled} steps are there twice")
        if not self.account.acknowledged:
            self.faults.append("no step was acknowledged: the scenario shows nothing")
        self.faults += self.account.faults
