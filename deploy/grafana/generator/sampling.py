"""What the replay draws, a row of its dashboard: priorities, how evenly they spread, what came back."""

from __future__ import annotations

from deploy.grafana.generator.panel import Lines, Query, Row

AT = '{run="$run", instance=~"$shard"}'


def rate(metric: str, by: str) -> str:
    """What a counter of the replay gains per second, added up by labels."""
    return f"sum by ({by}) (rate({metric}{AT}[$__rate_interval]))"


PRIORITIES = Row(
    "What is drawn",
    (
        Lines(
            title="Priorities",
            shows="Of the items in the ring: the priority that half of them, 95 of 100 and all are below. It is the "
            "size of the last known TD error.",
            good="it falls as the critic learns; the largest is not many thousand times the median.",
            otherwise="a largest that runs away: rewards or values that are too large; look at the values in "
            "*Learner and gradients*.",
            queries=(Query(f"max by (quantile) (shoal_replay_priority{AT})", "{{quantile}}"),),
            logarithmic=True,
            lowest=None,
            words={"p50": "half are below", "p95": "95 % are below", "max": "largest"},
        ),
        Lines(
            title="Items that matter",
            shows="How many items share the draws: as many equally likely items would be drawn as evenly. Beside it, "
            "all items.",
            good="a tenth of the items or more.",
            otherwise="a few hundred of a million: a few items are drawn again and again. Lower "
            "`replay.priority_exponent`.",
            queries=(
                Query(f"sum(shoal_replay_effective_items{AT})", "that matter"),
                Query(f"sum(shoal_replay_items{AT})", "all"),
            ),
            axis="items",
            dashed=("all",),
        ),
        Lines(
            title="Priorities that came back",
            shows="Priorities that learners sent after training, per second, by what became of them: applied, stale "
            "(the row was reused meanwhile), rejected (not a number that a priority can be).",
            good="nearly all are applied.",
            otherwise="many stale: the ring turns over faster than batches are used; raise `replay.capacity` or "
            "lower the batches drawn ahead. Any rejected: the loss is not finite; see *Learner and gradients*.",
            queries=(Query(rate("shoal_replay_priority_updates_total", "outcome"), "{{outcome}}"),),
            axis="per second",
        ),
    ),
)
