"""Prometheus metrics of a replay's actors: a bounded number of them, and only while they are heard of."""

from __future__ import annotations

from typing import Dict, Iterator, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from services.replay.table_info import ActorInfo

MAX_ACTORS = 256  # with series of their own: those that were heard of last
FORGET_S = 600.0  # an actor that is silent for longer has no series any more
MAX_NAME = 100  # characters of a name
REASONS = ("buffer_full", "stopped")  # of drops, as our actors count them
OTHER = "other"


def shown_actors(actors: Sequence[ActorInfo]) -> Dict[str, ActorInfo]:
    """The actors that have series, by the label's value."""
    heard = sorted(actors, key=lambda actor: actor.seconds_since_insert)
    shown: Dict[str, ActorInfo] = {}
    for actor in heard[:MAX_ACTORS]:
        if actor.seconds_since_insert <= FORGET_S:
            shown.setdefault(actor.name[:MAX_NAME], actor)
    return shown


def known_reasons(dropped: Mapping[str, int]) -> Dict[str, int]:
    """Dropped steps by a reason of ours: what an actor calls it may be anything."""
    counts = {reason: dropped.get(reason, 0) for reason in REASONS}
    return {**counts, OTHER: sum(dropped.values()) - sum(counts.values())}


def actor_families(run: str, actors: Sequence[ActorInfo]) -> Iterator[Metric]:
    """What each actor did, as the replay knows it."""
    silent = GaugeMetricFamily(
        "shoal_replay_actor_silent_seconds", "Since an actor was last heard of.", labels=["run", "actor"]
    )
    acknowledged = CounterMetricFamily(
        "shoal_replay_actor_acknowledged_steps",
        "Steps acknowledged to an actor, over all of its lives.",
        labels=["run", "actor"],
    )
    dropped = CounterMetricFamily(
        "shoal_replay_actor_dropped_steps",
        "Steps that an actor dropped in its present life, as it tells.",
        labels=["run", "actor", "reason"],
    )
    for name, actor in shown_actors(actors).items():
        silent.add_metric([run, name], actor.seconds_since_insert)
        acknowledged.add_metric([run, name], actor.acknowledged_steps)
        for reason, steps in known_reasons(actor.counters.dropped_steps).items():
            dropped.add_metric([run, name, reason], steps)
    yield from (silent, acknowledged, dropped)
