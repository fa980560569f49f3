"""Spot checks of what actors claim: first TD errors against those that the learner computes for the same items.

The replay draws by an actor's word until the learner has trained on an item once. An actor whose word is wrong (a
broken simulator, other critics, a lie) takes more than its share of the draws, or less. Each update computes the TD
error of items that were never drawn before; here they are compared with the claims, and nothing is computed twice.

The chief compares what it draws itself. Items that a helper draws first are not compared: who draws an item is chance
and no actor's choice, so that the chief sees a fair sample of every actor's claims, which is smaller with more helpers.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import Deque, Dict, Iterator, List

import numpy as np
import numpy.typing as npt
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from services.common.batch import Batch
from services.common.log import Log
from services.learner.staleness import LOST, KnownUpdates

WINDOW = 256  # comparisons of an actor that its divergence is read from
MIN_COMPARED = 128  # of them, before anything is said of it
MIN_COMMON = 16  # of them, before it counts in what all have in common
MAX_LAG_UPDATES = 5000  # of items that are compared: the critics of older ones were others
MAX_ACTORS = 256  # that are told apart; who was compared longest ago is forgotten
FLOOR = 0.02  # share of a typical TD error: differences between errors that are next to nothing say nothing
SMOOTHING = 0.01  # of the typical TD error, an update
MIN_ACTORS = 3  # from which on what all actors have in common is taken out: critics that learn fast, not lies
RECOVERED = 0.5  # share of the bound below which a named actor counts as sound again


@dataclass
class _Actor:
    log_ratios: Deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))  # ln(claimed / computed)
    is_named: bool = False


@dataclass(frozen=True)
class Divergence:
    """What the comparisons say of one actor."""

    factor: float  # by which its claims are typically off, either way; 1: not at all
    ratio: float  # median of claimed / computed
    compared: int  # items in the window


class ClaimCheck:
    """Compares claims with computed TD errors; the training loop compares, Prometheus reads.

    An actor's divergence is exp(median |ln(claimed / computed) - c|) over its last WINDOW items. c is what all actors
    have in common, from MIN_ACTORS on: between acting and training the critics have changed for all of them alike. A
    median is not moved by a few large errors, and a critic's single TD error may well be off by a factor of ten.
    """

    def __init__(self, history: KnownUpdates, log: Log, *, share: float, max_divergence: float) -> None:
        """Know nothing of any actor.

        Args:
            history: of the chief: an item whose version it does not know is not compared.
            log: hears of actors that diverge.
            share: of updates that are looked at, 0 to 1.
            max_divergence: an actor beyond it is named.
        """
        if not 0.0 <= share <= 1.0 or not max_divergence > 1.0:
            raise ValueError(f"share is {share} and max_divergence {max_divergence}; they must lie in 0 to 1, above 1")
        self._history = history
        self._log = log
        self._share = share
        self.max_divergence = max_divergence
        self._due = 0.0
        self._typical = 0.0  # running median of computed TD errors
        self._actors: OrderedDict[str, _Actor] = OrderedDict()
        self._lock = threading.Lock()

    def compare(self, batch: Batch, td_error: npt.NDArray[np.float32], updates: int) -> None:
        """Compare the items of a batch that the learner has just trained on for the first time.

        Args:
            batch: as the replay drew it; one without stamps says nothing.
            td_error: <float32>[N], |TD error| of the same items, before the update.
            updates: that the chief had done.
        """
        self._due += self._share
        if self._due < 1.0 or batch.stamps is None or len(td_error) != len(batch):
            return
        self._due -= 1.0
        median = float(np.median(td_error))
        self._typical += (median - self._typical) * (SMOOTHING if self._typical else 1.0)
        fresh = np.flatnonzero(batch.times_sampled == 1)
        if not len(fresh) or not self._typical > 0.0:
            return
        known = self._history.known_updates_of(batch.policy_version[fresh])
        fresh = fresh[(known != LOST) & (updates - known <= MAX_LAG_UPDATES)]
        floor = FLOOR * self._typical
        ratios = np.log((batch.priority[fresh] + floor) / (td_error[fresh].astype(np.float64) + floor))
        names = batch.stamps.actor_names
        by_actor: Dict[str, List[float]] = {}
        for index, ratio in zip(batch.stamps.actor_index[fresh].tolist(), ratios.tolist()):
            by_actor.setdefault(names[index], []).append(ratio)
        with self._lock:
            for name, its in by_actor.items():
                self._actor(name).log_ratios.extend(its)
        self._judge(by_actor)

    def divergences(self) -> Dict[str, Divergence]:
        """What is known of each actor with MIN_COMPARED comparisons or more."""
        with self._lock:
            windows = {name: np.array(one.log_ratios) for name, one in self._actors.items()}
        medians = {name: float(np.median(window)) for name, window in windows.items() if len(window) >= MIN_COMMON}
        common = float(np.median(list(medians.values()))) if len(medians) >= MIN_ACTORS else 0.0
        return {
            name: Divergence(
                factor=math.exp(float(np.median(np.abs(window - common)))),
                ratio=math.exp(medians[name]),
                compared=len(window),
            )
            for name, window in windows.items()
            if len(window) >= MIN_COMPARED
        }

    def _actor(self, name: str) -> _Actor:
        if name not in self._actors:
            self._actors[name] = _Actor()
            if len(self._actors) > MAX_ACTORS:
                self._actors.popitem(last=False)
        self._actors.move_to_end(name)
        return self._actors[name]

    def _judge(self, compared: Dict[str, List[float]]) -> None:
        """Name those who have come to diverge; one line each, until they are sound again."""
        for name, found in self.divergences().items():
            actor = self._actors[name]
            if name in compared and not actor.is_named and found.factor > self.max_divergence:
                actor.is_named = True
                self._log.warning(
                    "an actor's first TD errors are not those that the learner computes: is its simulator sound, and "
                    "is it one of ours?",
                    actor=name,
                    off_by_factor=round(found.factor, 1),
                    claimed_over_computed=float(f"{found.ratio:.3g}"),
                    items=found.compared,
                )
            elif actor.is_named and found.factor < RECOVERED * self.max_divergence:
                actor.is_named = False
                self._log.info("an actor's first TD errors are sound again", actor=name)


class ClaimCollector(Collector):
    """Shows the divergences to Prometheus."""

    def __init__(self, run: str, claims: ClaimCheck) -> None:
        self._run = run
        self._claims = claims

    def collect(self) -> Iterator[Metric]:
        """One gauge an actor, whose number the check bounds, and the bound that an actor is named beyond."""
        bound = GaugeMetricFamily(
            "shoal_learner_claim_divergence_bound",
            "learner.max_claim_divergence: an actor whose divergence is beyond it is named in the log.",
            labels=["run"],
        )
        bound.add_metric([self._run], self._claims.max_divergence)
        yield bound
        family = GaugeMetricFamily(
            "shoal_learner_actor_claim_divergence",
            "Factor by which an actor's first TD errors are typically off those that the learner computes.",
            labels=["run", "actor"],
        )
        for name, found in self._claims.divergences().items():
            family.add_metric([self._run, name], found.factor)
        yield family
