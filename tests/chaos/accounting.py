"""Whether each acknowledged step is in the ring, once: the actors' journals against the ring's rows. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, List, Sequence, Tuple

import numpy as np
import numpy.typing as npt

from tests.chaos.journal import Answer

Ids = npt.NDArray[np.int64]

MAX_LIFE, MAX_STEP, MAX_LANE = 1 << 22, 1 << 24, 1 << 12


@dataclass(frozen=True)
class Rows:
    """The steps of a ring, in the order of their keys; each <int64>[N]."""

    life: Ids
    step: Ids
    lane: Ids
    policy_version: Ids
    without_successor: int = 0  # steps whose row is there, and whose successor's is not: they come to nothing

    @property
    def ids(self) -> Ids:
        """One number a step: life, step, lane."""
        return step_ids(self.life, self.step, self.lane)


@dataclass(frozen=True)
class Account:
    """What came of the acknowledged steps."""

    acknowledged: int
    present: int  # steps in the ring
    lost: int  # acknowledged, and not in the ring
    doubled: int  # copies beyond the first
    unanswered: int  # in the ring, though no answer came through: the actor or the connection broke before
    faults: Tuple[str, ...] = field(default=())  # what must not be, one sentence each

    def is_sound(self, *, counted_lost: int = 0) -> bool:
        """Whether nothing is lost or doubled but what the replay itself counts as lost."""
        return self.lost == counted_lost and self.doubled == 0 and not self.faults


def step_ids(life: Ids, step: Ids, lane: Ids) -> Ids:
    """One number for each (life, step, lane).

    Raises:
        ValueError: one of them is out of its range, so that two steps could get one number.
    """
    for name, values, limit in (("life", life, MAX_LIFE), ("step", step, MAX_STEP), ("lane", lane, MAX_LANE)):
        if values.size and not (values.min() >= 0 and values.max() < limit):
            raise ValueError(f"a {name} is not within 0 and {limit}: the ring holds what no actor of the test sent")
    return (life * MAX_STEP + step) * MAX_LANE + lane


def acknowledged_ids(answers: Sequence[Answer]) -> Ids:
    """The steps that actors were told are kept, each once and sorted."""
    found = [np.zeros(0, np.int64)]
    for answer in answers:
        if answer.acknowledged:
            step, lane = np.divmod(np.arange(answer.num_items, dtype=np.int64), max(1, answer.num_lanes))
            life = np.full(step.shape, answer.life, np.int64)
            found.append(step_ids(life, step + answer.first_step, lane))
    return np.unique(np.concatenate(found))


def account(answers: Sequence[Answer], rows: Rows) -> Account:
    """Compare what was acknowledged with what is there."""
    expected = acknowledged_ids(answers)
    present, copies = np.unique(rows.ids, return_counts=True)
    unanswered = np.setdiff1d(present, expected, assume_unique=True)
    return Account(
        acknowledged=len(expected),
        present=len(present),
        lost=len(np.setdiff1d(expected, present, assume_unique=True)),
        doubled=int(copies.sum()) - len(copies),
        unanswered=len(unanswered),
        faults=(*_unanswered_in_the_middle(answers, unanswered), *_versions_that_fall(rows)),
    )


def _unanswered_in_the_middle(answers: Sequence[Answer], unanswered: Ids) -> List[str]:
    """A step without an answer can only be of the last chunk of a life: one is in flight at a time."""
    ends: Dict[int, int] = {}  # life -> first step behind those that were acknowledged
    lengths: Dict[int, int] = {}
    for answer in answers:
        if answer.acknowledged:
            end = answer.first_step + answer.num_steps
            ends[answer.life] = max(end, ends.get(answer.life, 0))
            lengths[answer.life] = max(answer.num_steps, lengths.get(answer.life, 0))
    faults = []
    lives, steps = unanswered // (MAX_LANE * MAX_STEP), unanswered // MAX_LANE % MAX_STEP
    for life in np.unique(lives).tolist():
        its, end = steps[lives == life], ends.get(life, 0)
        if its.min() < end:
            faults.append(f"life {life:06x} has step {its.min()}, which nobody acknowledged, below {end}, which was")
        longest = lengths.get(life, 0)
        if longest and its.max() - its.min() >= longest:
            faults.append(f"life {life:06x} has steps {its.min()} to {its.max()} without an answer: several chunks")
    return faults


def _versions_that_fall(rows: Rows) -> List[str]:
    """In a life of an actor the policy's version never falls."""
    order = np.lexsort((rows.step, rows.lane, rows.life))
    life, lane, version = rows.life[order], rows.lane[order], rows.policy_version[order]
    same = (np.diff(life) == 0) & (np.diff(lane) == 0)
    falls = np.flatnonzero(same & (np.diff(version) < 0))
    return [
        f"life {life[at]:06x} acted with version {version[at + 1]} after {version[at]}" for at in falls[:3].tolist()
    ]
