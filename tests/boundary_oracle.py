"""The boundary oracle: every item of the replay, recomputed from what a scripted environment really did.

`python -m tests.boundary_oracle` runs all scenarios and prints a table; the exit code is 1 unless every item is right.
With `--mapped` the ring lies in a folder, and the table is dropped and comes back from it every few chunks.

A counter environment numbers its observations and pays distinct powers of 3, so that a sum of rewards says which
steps are in it. Its episodes end as scripted; an actor reports the facts in chunks; the table makes items. The oracle
keeps its own log of what happened to each lane, in the plainest code there is, and asks of each step: is there
exactly one item, at the right key, with the right return, discount and bootstrap observation?
"""

from __future__ import annotations

import itertools
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Tuple

import numpy as np

from services.common.chunk import TERMINATED, TRUNCATED, VALID, Chunk, FinalObservations
from services.common.ring_layout import RingFormat
from services.common.schema import ActionSpec, Schema, TensorSpec
from services.replay.admission import InsertStatus
from services.replay.items import StepOutcome
from services.replay.ring_folder import RingFolder
from services.replay.table import Table, TableSettings

SCHEMA = Schema((TensorSpec("policy", "float64", (1,)),), ActionSpec((-1.0,), (1.0,)))
DISCOUNT = 0.5  # sums of powers of 3 and of 1/2 are exact in float32
NUM_LANES = 2
CHUNK_STEPS = 5
NUM_STEPS = 22  # of each life of an actor
SMALL_CAPACITY, LARGE_CAPACITY = 37, 4096  # the small one has its seam at another place in every round
SEGMENT_BYTES = 1 << 18  # of the chunk log

ENDS = ("terminal", "time_out", "both", "killed", "nan", "stopped", "dropped")
RESETS = ("same_step", "next_step", "disabled")
N_STEPS = (1, 3, 5)
EPISODE_LENGTHS = (4, 1, 6, 2, 9, 3, 1, 1, 7)


@dataclass(frozen=True)
class Scenario:
    end: str
    reset: str
    n_step: int
    wraps: bool
    first_cut: int  # steps of the first chunk; 0: as long as the others
    num_actors: int


def scenarios() -> Iterator[Scenario]:
    """The whole cross product."""
    for values in itertools.product(ENDS, RESETS, N_STEPS, (False, True), range(CHUNK_STEPS), (1, 3)):
        yield Scenario(*values)


@dataclass
class Row:
    """One environment step of one lane, as it really was."""

    observation: float
    reward: float
    terminated: bool
    truncated: bool
    valid: bool
    led_to: float  # the true next observation
    has_final: bool = False  # what it led to was sent along as a final observation
    key: int = -1  # where the oracle expects it in the ring


class CounterLane:
    """One lane of the counter environment; each observation has a number of its own."""

    def __init__(self, scenario: Scenario, first_number: int, lane: int) -> None:
        self._scenario = scenario
        self._number = first_number
        self._lane = lane
        self._episode = lane  # lanes go through the lengths at different places
        self._age = 0
        self._resetting = False
        self.observation = self._next_number()

    def _next_number(self) -> float:
        self._number += 1
        if self._scenario.end == "nan" and self._lane == 0 and self._number % 13 == 6:
            return float("nan")
        return float(self._number)

    def _ends(self) -> Tuple[bool, bool]:
        if self._age < EPISODE_LENGTHS[self._episode % len(EPISODE_LENGTHS)]:
            return False, False
        by_turns = ("terminal", "time_out", "both")[self._episode % 3]
        end = self._scenario.end if self._scenario.end in ("terminal", "time_out", "both") else by_turns
        return end in ("terminal", "both"), end in ("time_out", "both")

    def step(self) -> Row:
        acted_on = self.observation
        if self._resetting:  # next_step: the action is ignored, the reward is junk
            self._resetting = False
            self.observation = self._next_number()
            return Row(acted_on, 1e6, False, False, False, self.observation)
        reward = 3.0 ** (self._number % 9)
        self._age += 1
        terminated, truncated = self._ends()
        led_to = self._next_number()
        self.observation = led_to
        if terminated or truncated:
            self._episode += 1
            self._age = 0
            if self._scenario.reset == "next_step":
                self._resetting = True
            else:  # same_step does it itself, with disabled the caller does it at once
                self.observation = self._next_number()
        return Row(acted_on, reward, terminated, truncated, True, led_to)


@dataclass
class Actor:
    """One actor's present life."""

    name: str
    incarnation: int
    lanes: List[CounterLane]
    sequence: int = 0
    first_step: int = 0
    lost_chunk: bool = False  # the table learns of it with the next chunk


@dataclass
class Verdict:
    """What the oracle found."""

    items: int = 0  # expected items that were looked for, each once for every time it was looked at
    wrong: List[str] = field(default_factory=list)


BREAK = None  # in a lane's log: nothing that follows belongs to what came before
Log = List[Optional[Row]]
Expected = Tuple[str, float, float, float]  # what, return, discount, bootstrap observation


def expect(log: Log, start: int, scenario: Scenario) -> Expected:
    """What the step at `start` of a lane's log must have come to, step by step."""
    total, weight = 0.0, 1.0
    for place in range(start, start + scenario.n_step):
        row = log[place]
        assert row is not None
        ended = row.terminated or row.truncated
        at_hand = ended and scenario.reset != "next_step"  # came along as a final observation
        if not at_hand and place + 1 == len(log):
            return "open", 0.0, 0.0, 0.0
        if not at_hand and log[place + 1] is BREAK:
            if place == start:
                return "lost", 0.0, 0.0, 0.0
            if row.terminated:
                return "item", total + weight * row.reward, 0.0, row.observation
            return "item", total, weight, row.observation
        total += weight * row.reward
        weight *= DISCOUNT
        if row.terminated:
            return "item", total, 0.0, row.led_to
        if row.truncated:
            return "item", total, weight, row.led_to
        last = row
    return "item", total, weight, last.led_to


class Oracle:
    """Runs one scenario: acts, reports to the table, keeps the log, compares."""

    def __init__(self, scenario: Scenario, path: Optional[Path] = None, reopen_period: int = 0) -> None:
        """Begin with an empty table.

        Args:
            scenario: what happens.
            path: where the table's ring lies; None: in memory.
            reopen_period: chunks after which the table is dropped and comes back from its folder.
        """
        self.scenario = scenario
        self.path = path
        self.reopen_period = reopen_period
        self.num_reported = 0
        capacity = SMALL_CAPACITY if scenario.wraps else LARGE_CAPACITY
        self.capacity = capacity
        self.settings = TableSettings(
            capacity=capacity, n_step=scenario.n_step, discount=DISCOUNT, max_batch_size=8, max_actor_silence_s=1.0
        )
        self.now_s = 0.0
        self.folder: Optional[RingFolder] = None
        self.table = self.open_table()
        self.logs: Dict[Tuple[str, int, int], Log] = {}  # by actor, incarnation, lane
        self.num_rows = 0
        self.quarantined = 0
        self.verdict = Verdict()

    def open_table(self) -> Table:
        if self.path is not None and self.path.exists():
            self.folder = RingFolder.open(self.path, "nonce", SEGMENT_BYTES)
        elif self.path is not None:
            ring_format = RingFormat("oracle", SCHEMA, self.capacity, self.scenario.n_step, DISCOUNT, "", 0.0)
            self.folder = RingFolder.create(self.path, ring_format, "nonce", SEGMENT_BYTES)
        return Table(self.settings, SCHEMA, clock=lambda: self.now_s, folder=self.folder)

    def reopen(self) -> None:
        """Drop the table as a kill would, and come back: nothing may have changed."""
        assert self.folder is not None
        self.folder.close()
        ring, before = self.table.store.ring, self.table.store.counters
        columns = {name: ring.column(name).copy() for name in ("status", "priority", "times_sampled", "bootstrap_key")}
        self.table = self.open_table()
        if self.table.store.counters != before:
            self.verdict.wrong.append(f"{self.scenario}: came back with {self.table.store.counters}, not {before}")
        for name, column in columns.items():
            here = columns["status"] == StepOutcome.ITEM if name == "bootstrap_key" else slice(None)
            if not np.array_equal(self.table.store.ring.column(name)[here], column[here]):
                self.verdict.wrong.append(f"{self.scenario}: column {name} came back changed")
        self.compare()

    def start_actor(self, index: int, life: int) -> Actor:
        lanes = [CounterLane(self.scenario, 100_000 * index + 10_000 * life + 1_000 * b, b) for b in range(NUM_LANES)]
        for lane in range(NUM_LANES):
            self.logs[f"actor-{index}", life + 1, lane] = []
        return Actor(f"actor-{index}", life + 1, lanes)

    def log_of(self, actor: Actor, lane: int) -> Log:
        return self.logs[actor.name, actor.incarnation, lane]

    def sever(self, actor: Actor) -> None:
        for lane in range(NUM_LANES):
            if self.log_of(actor, lane):
                self.log_of(actor, lane).append(BREAK)

    def report(self, actor: Actor, num_steps: int, *, stops: bool = False, dropped: bool = False) -> None:
        """Act for `num_steps` and send them as one chunk."""
        rows = [[lane.step() for lane in actor.lanes] for _ in range(num_steps)]
        for t, row in ((t, row) for t, at in enumerate(rows) for row in at):
            ended = (row.terminated or row.truncated) and self.scenario.reset != "next_step"
            row.has_final = row.valid and (ended or (stops and t == num_steps - 1))
        first_step = actor.first_step
        actor.first_step += num_steps
        if dropped:
            actor.lost_chunk = True
            return
        chunk = self._chunk(actor, rows, first_step)
        chunk.check(SCHEMA)
        result = self.table.insert(actor.name, actor.incarnation, chunk, max_wait_s=0.0)
        if result.status is not InsertStatus.APPLIED:
            self.verdict.wrong.append(f"{self.scenario}: insert answered {result.status!r}: {result.reason}")
        actor.sequence += 1
        if actor.lost_chunk:
            self.sever(actor)
            actor.lost_chunk = False
        self._write_log(actor, rows, stops)
        self.compare()
        self.num_reported += 1
        if self.reopen_period and self.num_reported % self.reopen_period == 0:
            self.reopen()

    def _chunk(self, actor: Actor, rows: List[List[Row]], first_step: int) -> Chunk:
        T, B = len(rows), NUM_LANES

        def column(name: str, dtype: Any) -> Any:
            return np.array([[getattr(row, name) for row in at] for at in rows], dtype).reshape(T, B)

        flags = column("valid", np.uint8) * VALID
        flags |= column("terminated", np.uint8) * TERMINATED | column("truncated", np.uint8) * TRUNCATED
        finals = [
            (t * B + b, row.led_to, not (row.terminated or row.truncated))
            for t, at in enumerate(rows)
            for b, row in enumerate(at)
            if row.has_final
        ]
        return Chunk(
            lane_group=0,
            sequence=actor.sequence,
            first_step=first_step,
            observation={"policy": column("observation", np.float64)[..., None]},
            action=np.zeros((T, B, 1), np.float32),
            reward=column("reward", np.float32),
            flags=flags,
            policy_version=np.zeros(T, np.int64),
            q_taken=np.full((T, B), np.nan, np.float32),
            value=np.full((T, B), np.nan, np.float32),
            final=FinalObservations(
                step=np.array([f[0] for f in finals], np.int64),
                observation={"policy": np.array([[f[1]] for f in finals], np.float64).reshape(-1, 1)},
                value=np.full(len(finals), np.nan, np.float32),
                cut=np.array([f[2] for f in finals], np.bool_),
            ),
        )

    def _write_log(self, actor: Actor, rows: List[List[Row]], stops: bool) -> None:
        """Do on paper what the table should have done."""
        flat = [(b, row) for at in rows for b, row in enumerate(at)]
        sick = {b for b, row in flat if np.isnan(row.observation) or (row.has_final and np.isnan(row.led_to))}
        for place, (b, row) in enumerate(flat):
            row.key = self.num_rows + place
            if b not in sick:
                self.log_of(actor, b).append(row)
            else:
                self.quarantined += row.valid
        self.num_rows += len(flat) + sum(row.has_final for b, row in flat if b not in sick)
        for b in range(NUM_LANES):
            if b in sick:
                self.log_of(actor, b).append(BREAK)
            elif stops:  # the true last observation was sent: on paper, a row that is no step
                self.log_of(actor, b).append(Row(rows[-1][b].led_to, 0.0, False, False, False, -1.0))
                self.log_of(actor, b).append(BREAK)

    def compare(self) -> None:
        """Look at every row of the table."""
        ring = self.table.store.ring
        fault = self.table.check_valid()
        if fault is not None:
            self.verdict.wrong.append(f"{self.scenario}: {fault}")
        came_to = {"item": 0, "open": 0, "lost": 0}
        found: Dict[int, Tuple[float, float, float, float]] = {}
        slots = np.flatnonzero(ring.status == StepOutcome.ITEM)
        boots = ring.observation["policy"][ring.slots(ring.bootstrap_key[slots]), 0]
        for slot, key, boot in zip(slots.tolist(), ring.keys(slots).tolist(), boots.tolist()):
            start = float(ring.observation["policy"][slot, 0])
            found[key] = (start, float(ring.n_step_return[slot]), float(ring.discount[slot]), boot)
        for (actor, incarnation, lane), log in self.logs.items():
            for place, row in enumerate(log):
                if row is None or not row.valid or row.key < self.num_rows - self.capacity:
                    continue
                what, total, discount, boot = expect(log, place, self.scenario)
                came_to[what] += 1
                got = found.pop(row.key, None)
                want = (row.observation, total, discount, boot) if what == "item" else None
                self.verdict.items += what == "item"
                if got != want:
                    where = f"{actor}/{incarnation} lane {lane} observation {row.observation}"
                    self.verdict.wrong.append(f"{self.scenario}: {where} is {what} {want}, the table has {got}")
        steps = self.table.store.counters
        counted = {"item": steps.items, "open": steps.unripe, "lost": steps.lost_tail}
        if not self.scenario.wraps and (counted, steps.quarantined) != (came_to, self.quarantined):
            self.verdict.wrong.append(f"{self.scenario}: the table counts {steps}, the oracle {came_to}")
        for key, item in found.items():
            self.verdict.wrong.append(
                f"{self.scenario}: the table has an item at key {key} that no step explains: {item}"
            )


def run(scenario: Scenario, path: Optional[Path] = None, reopen_period: int = 0) -> Verdict:
    """Play one scenario to its end; see Oracle for the other arguments."""
    oracle = Oracle(scenario, path, reopen_period)
    cuts = [scenario.first_cut] if scenario.first_cut else []
    while sum(cuts) < NUM_STEPS:
        cuts.append(min(CHUNK_STEPS, NUM_STEPS - sum(cuts)))
    actors = [oracle.start_actor(index, 0) for index in range(scenario.num_actors)]
    for turn, num_steps in enumerate(cuts):
        for index in range(len(actors)):
            actor = actors[(index + turn) % len(actors)]  # another order in each round
            last = turn == len(cuts) - 1
            dropped = scenario.end == "dropped" and turn in (1, 3)
            oracle.report(actor, num_steps, stops=scenario.end == "stopped" and last, dropped=dropped)
    if scenario.end == "killed":
        for index, actor in enumerate(actors):
            oracle.sever(actor)  # the next life is the news of the death
            actors[index] = oracle.start_actor(index, 1)
            oracle.report(actors[index], CHUNK_STEPS)
        for actor in actors:
            oracle.sever(actor)
        oracle.now_s += 2.0  # this time nobody brings the news
        oracle.table.expire_actors()
        oracle.compare()
    if oracle.folder is not None:
        oracle.reopen()
        oracle.folder.close()
    return oracle.verdict


def main(reopen_period: int = 0, stride: int = 1) -> int:
    """Run the scenarios, print a line for each way to end and to reset.

    Args:
        reopen_period: chunks after which the table comes back from its folder; 0: it is in memory.
        stride: of the scenarios, only each so many-th is run.
    """
    table: Dict[Tuple[str, str], Verdict] = {}
    for number, scenario in enumerate(itertools.islice(scenarios(), None, None, stride)):
        if reopen_period:
            with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
                verdict = run(scenario, Path(folder) / "ring", 1 + number % reopen_period)
        else:
            verdict = run(scenario)
        row = table.setdefault((scenario.end, scenario.reset), Verdict())
        row.items += verdict.items
        row.wrong += verdict.wrong
    print(f"{'end':<10} {'auto-reset':<10} {'looked at':>10} {'wrong':>6} {'right':>8}")
    for (end, reset), verdict in table.items():
        share = 100.0 * (1.0 - min(1.0, len(verdict.wrong) / max(1, verdict.items)))
        print(f"{end:<10} {reset:<10} {verdict.items:>10} {len(verdict.wrong):>6} {share:>7.2f}%")
    wrong = [line for verdict in table.values() for line in verdict.wrong]
    for line in wrong[:10]:
        print(line)
    print(f"{number + 1} scenarios, {sum(v.items for v in table.values())} items, {len(wrong)} wrong")
    return 1 if wrong or not all(verdict.items for verdict in table.values()) else 0


if __name__ == "__main__":
    sys.exit(main(reopen_period=3 if "--mapped" in sys.argv else 0))
