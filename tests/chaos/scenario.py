"""What a scenario is, and what came of one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Callable, List, Mapping, Optional, Tuple

from tests.chaos.accounting import Account
from tests.chaos.system import LOOPBACK

if TYPE_CHECKING:
    from tests.chaos.trial import Trial

MAX_STRAIN = 3.0  # how much wider limits become on a busy machine; beyond, what is late shows nothing
# Success of an evaluation after the fault. An untrained policy has 0, and the small networks level off at 0.7 to 0.9 of
# ten episodes.
SMALL_BAR = 0.5


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
    resends: float = 0.0  # chance that a message is sent again in each of the ways that there are
    needs: Tuple[str, ...] = ()  # of the machine
    quick: bool = False  # part of --quick
    begins: bool = True  # the system is started and trains before the fault; else `inject` starts it
    bar: float = SMALL_BAR  # success that an evaluation after the fault must reach
    may_reset: bool = False  # the replay may give up acknowledged steps if it counts them; nowhere else


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
    stranded: int = 0  # steps that it gave up though their rows are whole: their successors were in the damaged part
    lost_updates: Optional[int] = None  # the most that one kill of the learner cost
    notes: List[str] = field(default_factory=list)
    faults: List[str] = field(default_factory=list)
    late: List[str] = field(default_factory=list)  # what came too late; a fault unless the machine is too busy to tell
    strain: float = 1.0  # the most by which the machine was slower than it should be
    not_tested: str = ""  # why it was left out, or shows nothing

    @property
    def verdict(self) -> str:
        if self.faults:
            return "FAILED"
        return "NOT TESTED" if self.not_tested else "passed"

    def judge(self) -> None:
        """Turn what was measured and counted into faults."""
        self.late += [
            f"{measure.what} took {measure.seconds:.1f} s, more than {measure.limit_s:.1f} s"
            for measure in self.measures
            if measure.is_late
        ]
        if self.late and self.strain > MAX_STRAIN:
            self.not_tested = f"the machine is {self.strain:.1f} times too slow: {'; '.join(self.late)}"
        else:
            self.faults += self.late
        self._judge_steps()

    def _judge_steps(self) -> None:
        if self.account is None:
            if not self.not_tested and not self.faults:
                self.faults.append("the steps were not accounted for")
            return
        given_up = self.counted_lost + self.stranded
        if given_up and not self.scenario.may_reset:
            self.faults.append(f"the replay gave up {given_up} acknowledged steps; counted or not, none may go")
        if self.account.lost != self.counted_lost:
            self.faults.append(f"{self.account.lost - self.counted_lost} acknowledged steps are lost")
        if self.account.doubled:
            self.faults.append(f"{self.account.doubled} steps are there twice")
        if not self.account.acknowledged:
            self.faults.append("no step was acknowledged: the scenario shows nothing")
        self.faults += self.account.faults
