"""How old the data are that the learner trains on: where on the way they age, whose they are, what the bound does."""

from __future__ import annotations

from deploy.grafana.generator.panel import (
    BLUE,
    ORANGE,
    RED,
    Dashboard,
    HeatMap,
    Lines,
    Note,
    Number,
    Query,
    Row,
    Table,
)
from deploy.grafana.generator.shared import ACTOR, ACTORS, LEARNER, PARTS, RUN, STALENESS

LAGS = 'rate(shoal_learner_item_lag_updates_bucket{run="$run"}[$__rate_interval])'
LARGEST = 'scalar(max(shoal_learner_actor_lag_updates{run="$run", statistic="max"}))'
BOUND = 'max(shoal_learner_lag_bound_updates{run="$run"})'
NO_BOUND = "no bound is set"


def lag_below(share: float) -> str:
    """The lag below which a share of the trained items is: within its bucket, and never above the largest lag."""
    return f"clamp_max(histogram_quantile({share:g}, sum by (le) ({LAGS})), {LARGEST})"


HOW_OLD = Row(
    "How old is what is trained on?",
    (
        Lines(
            title="Lag by part of the way, in updates",
            alerts=("ShoalStalenessGrowing",),
            shows="The mean lag of trained items, in updates between the policy that acted and the training, split "
            "over the way of a step. The parts add up to the whole.",
            good="steady, with the ring as the largest part. How much is too much is a question of the task; success "
            "tells.",
            otherwise="*while acting*: smaller `actor.chunk_steps`. *in flight*: smaller `actor.buffer_chunks`, or "
            "fewer actors where the learner is the slower side. *in the ring*: smaller `replay.capacity`, or a "
            "bound. *in the learner's queue*: fewer `learner.samples_in_flight`.",
            queries=(
                Query(
                    'sum by (part) (rate(shoal_learner_lag_updates_sum{run="$run"}[$__rate_interval])) / '
                    'sum by (part) (rate(shoal_learner_lag_updates_count{run="$run"}[$__rate_interval]))',
                    "{{part}}",
                ),
            ),
            axis="updates",
            width=10,
            stacked=True,
            words=PARTS,
        ),
        Lines(
            title="Age by part of the way, in seconds",
            shows="The same in seconds of waiting, measured by each process with its own clock.",
            good="steady. Only the ring's part may be minutes or more.",
            otherwise="seconds *in flight* mean that chunks wait in the actors' buffers: see *Actors*.",
            queries=(
                Query(
                    'sum by (part) (rate(shoal_learner_lag_age_seconds_sum{run="$run"}[$__rate_interval])) / '
                    'sum by (part) (rate(shoal_learner_lag_age_seconds_count{run="$run"}[$__rate_interval]))',
                    "{{part}}",
                ),
            ),
            unit="s",
            width=10,
            stacked=True,
            words=PARTS,
        ),
        Number(
            title="Median lag now",
            shows="Half of the items trained on in the last seconds were at most this many updates old.",
            good="steady.",
            otherwise="the panels on the left say which part has grown.",
            queries=(
                Query(
                    lag_below(0.5),
                    "median",
                ),
            ),
            unit="suffix: updates",
            base=BLUE,
            decimals=0,
            empty="nothing is trained on",
        ),
        Number(
            title="95 % are below",
            shows="Of the items trained on in the last seconds, 95 of 100 were at most this many updates old.",
            good="not many times the median.",
            otherwise="old steps are drawn again and again: the ring is long, or their priorities are high. A bound "
            "cuts the tail.",
            queries=(
                Query(
                    lag_below(0.95),
                    "95 %",
                ),
            ),
            unit="suffix: updates",
            base=BLUE,
            decimals=0,
            empty="nothing is trained on",
        ),
    ),
)

SPREAD = Row(
    "How does it spread?",
    (
        HeatMap(
            title="Items trained on, by lag",
            shows="How many items per second had which lag; the darker, the more.",
            good="one band that stays where it is.",
            otherwise="a band that climbs: the learner outruns the actors, or the ring fills. Two bands: two kinds "
            "of actors; see *Actors, the most stale first*.",
            queries=(
                Query(
                    f"sum by (le) ({LAGS})",
                    "{{le}}",
                ),
            ),
            width=12,
            unit="short",
        ),
        HeatMap(
            title="Items trained on, by lag in the ring alone",
            shows="The same for the time in the ring: how long items lay there before they were drawn.",
            good="one band that stays where it is.",
            otherwise="where this one is narrow and the other wide, the age comes from the actors and not from the "
            "replay.",
            queries=(
                Query(
                    'sum by (le) (rate(shoal_learner_lag_updates_bucket{run="$run", part="ring"}[$__rate_interval]))',
                    "{{le}}",
                ),
            ),
            width=12,
            unit="short",
        ),
    ),
)

WHOSE = Row(
    "Whose data are old?",
    (
        Table(
            title="Actors, the most stale first",
            alerts=("ShoalActorSilent", "ShoalPolicyOld"),
            shows="A row for each actor: the lag of its items over the last seconds (median, 95 of 100, largest), "
            "how far the parameters that it runs are behind, and since when the replay has heard nothing of it.",
            good="rows are alike, *runs behind* is at most some publications, and nobody is silent for long.",
            otherwise="*runs behind* is large: it does not fetch parameters; is the learner within its reach? "
            "*silent* grows: it does not deliver; see *Actors*. Only *median* is large: its steps wait on the way "
            "(slow environment, full buffer), or it delivered much, long ago.",
            queries=(
                Query(
                    'max by (actor) (shoal_learner_actor_lag_updates{run="$run", actor=~"$actor", statistic="p50"})',
                    "{{actor}}",
                ),
                Query(
                    'max by (actor) (shoal_learner_actor_lag_updates{run="$run", actor=~"$actor", statistic="p95"})',
                    "{{actor}}",
                ),
                Query(
                    'max by (actor) (shoal_learner_actor_lag_updates{run="$run", actor=~"$actor", statistic="max"})',
                    "{{actor}}",
                ),
                Query(
                    "max by (actor) (label_replace(shoal_learner_reader_lag_updates"
                    '{run="$run", reader=~"$actor"}, "actor", "$1", "reader", "(.*)")'
                    ' and on (actor) shoal_actor_info{run="$run"})',
                    "{{actor}}",
                ),
                Query(
                    'max by (actor) (shoal_replay_actor_silent_seconds{run="$run", actor=~"$actor"})',
                    "{{actor}}",
                ),
            ),
            key="actor",
            columns=("median lag", "95 % below", "largest", "runs behind", "silent"),
            units={"silent": "s"},
            decimals=0,
            width=12,
            height=9,
            base=BLUE,
            more=(ACTORS,),
        ),
        Lines(
            title="Median lag by actor",
            shows="The first column of the table over time.",
            good="the lines run together.",
            otherwise="the line that leaves the others is the actor to look at.",
            queries=(
                Query(
                    'max by (actor) (shoal_learner_actor_lag_updates{run="$run", actor=~"$actor", statistic="p50"})',
                    "{{actor}}",
                ),
            ),
            axis="updates",
            width=12,
            height=9,
            more=(ACTORS,),
        ),
        Lines(
            title="How far behind the parameters are that act",
            alerts=("ShoalPolicyOld",),
            shows="By process that fetches parameters (actors, evaluator, helpers): updates done since the version "
            "that it runs.",
            good="each line goes up and down between 0 and some publications (`learner.publish_period`).",
            otherwise="a line that only climbs: that process gets no parameters. After `actor.max_policy_age_s` an "
            "actor parks.",
            queries=(Query('max by (reader) (shoal_learner_reader_lag_updates{run="$run"})', "{{reader}}"),),
            axis="updates",
            width=12,
            more=(ACTORS, LEARNER),
        ),
        Lines(
            title="Silent for",
            alerts=("ShoalActorSilent",),
            shows="Since when the replay has heard nothing of each actor.",
            good="a saw below a second or a few: one tooth for each chunk.",
            otherwise="a line that climbs: the actor is gone, held back, or its environment hangs. *Actors* tells "
            "these apart.",
            queries=(
                Query(
                    'max by (actor) (shoal_replay_actor_silent_seconds{run="$run", actor=~"$actor"})',
                    "{{actor}}",
                ),
            ),
            unit="s",
            width=12,
            more=(ACTORS,),
        ),
    ),
)

RULES = Row(
    "What does the bound do?",
    (
        Lines(
            title="Lag and its bound",
            shows="The lag below which half, and 95 of 100, of the trained items are, and "
            "`staleness.max_lag_updates` if it is set.",
            good="both lines are below the bound.",
            otherwise="lines at the bound mean that it is doing its work, and that many items are thrown away: see "
            "the next panel. Fewer items would be lost with a shorter ring.",
            queries=(
                Query(
                    lag_below(0.5),
                    "median",
                ),
                Query(
                    lag_below(0.95),
                    "95 %",
                ),
                Query(BOUND, "bound"),
            ),
            axis="updates",
            dashed=("bound",),
        ),
        Lines(
            title="Items beyond the bound, per second",
            alerts=("ShoalItemsTooStale", "ShoalStalenessBeyondBound"),
            shows="Items that became too old in the ring and left the sampler, items that were too old when they "
            "were to be used and got no weight, and items that were trained on although they were too old.",
            good="the last one is 0, and the second one is small beside the first.",
            otherwise="many without weight: batches wait too long; lower `learner.samples_in_flight`. Trained on "
            "beyond the bound: that is a fault of shoal, report it.",
            queries=(
                Query(
                    'sum(rate(shoal_replay_item_expirations_total{run="$run"}[$__rate_interval]))',
                    "too old in the ring",
                ),
                Query('sum(rate(shoal_learner_stale_items_total{run="$run"}[$__rate_interval]))', "no weight"),
                Query('sum(rate(shoal_learner_bound_breaches_total{run="$run"}[$__rate_interval]))', "trained on"),
            ),
            axis="items per second",
        ),
        Number(
            title="Trained on beyond the bound",
            alerts=("ShoalStalenessBeyondBound",),
            shows="Items within the time shown that were trained on although they were older than the bound.",
            good="0; also where no bound is set.",
            otherwise="anything else is a fault of shoal: report it, with the run file.",
            queries=(Query('sum(increase(shoal_learner_bound_breaches_total{run="$run"}[$__range]))', "items"),),
            limits=((1, RED),),
            decimals=0,
        ),
        Number(
            title="The bound",
            shows="`staleness.max_lag_updates` as the learner has it.",
            good="a bound is a choice; without one, age alone excludes nothing.",
            otherwise="set it in the run file if old data do harm: success that falls while the lag grows is a sign.",
            queries=(Query(BOUND, "bound"),),
            unit="suffix: updates",
            base=BLUE,
            decimals=0,
            empty=NO_BOUND,
        ),
        Number(
            title="Too old, in the ring",
            shows="Items that lie in the ring and are too old to be drawn.",
            good="a small share of the items: else the ring is longer than the bound can use.",
            otherwise="lower `replay.capacity`: those rows cost memory and serve nobody.",
            queries=(
                Query(
                    'sum(shoal_replay_expired_items{run="$run"}) / sum(shoal_replay_occupied_rows{run="$run"})', "share"
                ),
            ),
            unit="percentunit",
            limits=((0.5, ORANGE),),
        ),
        Number(
            title="Of unknown age",
            shows="Items within the time shown whose version died with an earlier life of the learner. They count as "
            "fresh.",
            good="0, or some right after a crash of the learner.",
            otherwise="if it goes on, an actor acts with parameters of another run or of a lost checkpoint: restart "
            "it.",
            queries=(
                Query(
                    'sum(increase(shoal_learner_lost_version_items_total{run="$run"}[$__range])) + '
                    'sum(increase(shoal_learner_unknown_versions_total{run="$run"}[$__range]))',
                    "items",
                ),
            ),
            limits=((1, ORANGE),),
            decimals=0,
        ),
    ),
)

READING = Row(
    "How to read this page",
    (
        Note(
            "Lag and age",
            "A step is made by one version of the policy and trained on by a later one. Its **lag** is the number of "
            "updates between: 0 is fresh. Its **age** is the same in seconds.\n\n"
            "Which actor is the most stale: the first row of *Actors, the most stale first*. Why: its other columns. "
            "Where on the way steps grow old: the first panel.\n\n"
            "`shoal staleness RUN_FOLDER` prints the same from the run's own ledger, after the run too.\n",
            width=24,
            height=5,
        ),
    ),
)

DASHBOARD = Dashboard(
    STALENESS,
    "shoal: staleness",
    "How old the data are that the learner trains on: where on the way they age, whose they are, what the bound does.",
    (RUN, ACTOR),
    (HOW_OLD, WHOSE, SPREAD, RULES, READING),
)
