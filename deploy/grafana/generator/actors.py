"""The actors and the evaluator: who delivers, what each waits for, whose parameters are old, what is dropped."""

from __future__ import annotations

from deploy.grafana.generator.panel import BLUE, RED, Dashboard, Lines, Number, Query, Row, Table
from deploy.grafana.generator.shared import ACTOR, ACTOR_WAITS, ACTORS, EVALUATOR_WAITS, NAMED, REPLAY, RUN, STALENESS

AT = '{run="$run"}'
OF = '{run="$run", actor=~"$actor"}'


def named(expr: str) -> str:
    """An expression over the actors' own metrics, by the actor's name."""
    return f"({expr}) * {NAMED}"


def gauge(metric: str) -> str:
    """A gauge of the chosen actors, by name."""
    return f"sum by (actor) ({named(metric + AT)})"


def rate(metric: str) -> str:
    """What a counter of the chosen actors gains per second, by name."""
    return f"sum by (actor) ({named(f'rate({metric}{AT}[$__rate_interval])')})"


def gained(metric: str) -> str:
    """What a counter of the chosen actors gained within the time shown, over all of them."""
    return f"sum({named(f'increase({metric}{AT}[$__range])')})"


def acknowledged_within(share: float) -> str:
    """The time within which this share of the chosen actors' chunks was acknowledged."""
    buckets = named(f"rate(shoal_actor_acknowledgement_seconds_bucket{AT}[$__rate_interval])")
    return f"histogram_quantile({share:g}, sum by (le) ({buckets}))"


WHO = Row(
    "Who is there, and who delivers?",
    (
        Table(
            title="Actors",
            alerts=("ShoalActorSilent", "ShoalWorkerDown"),
            shows="A row for each actor: steps per second that it made, since when the replay has heard nothing of "
            "it, chunks in its buffer, and the median lag of its items.",
            good="rows are alike, and nobody is silent for longer than some seconds.",
            otherwise="*silent* grows and *steps* are 0: its environment hangs, or it is parked or gone: see below. "
            "*buffer* full: the replay holds it back.",
            queries=(
                Query(rate("shoal_actor_produced_steps_total"), "{{actor}}"),
                Query(f"max by (actor) (shoal_replay_actor_silent_seconds{OF})", "{{actor}}"),
                Query(gauge("shoal_actor_buffer_depth_chunks"), "{{actor}}"),
                Query(
                    'max by (actor) (shoal_learner_actor_lag_updates{run="$run", actor=~"$actor", statistic="p50"})',
                    "{{actor}}",
                ),
                Query(gauge("shoal_actor_lanes"), "{{actor}}"),
            ),
            key="actor",
            columns=("steps per second", "silent", "chunks in the buffer", "median lag", "lanes"),
            units={"silent": "s"},
            decimals=0,
            width=12,
            height=9,
            base=BLUE,
            more=(STALENESS,),
        ),
        Lines(
            title="Steps made",
            shows="Environment steps per second that each actor made.",
            good="steady, and alike for actors on like machines.",
            otherwise="one that falls: its machine is busy, or its environment slow: see *Environment* below. All "
            "fall together: the replay holds them back.",
            queries=(Query(rate("shoal_actor_produced_steps_total"), "{{actor}}"),),
            axis="per second",
            width=12,
            height=9,
        ),
        Lines(
            title="Steps acknowledged",
            shows="Steps of each actor that the replay acknowledged, per second, as the replay counts them.",
            good="as many as were made.",
            otherwise="fewer than were made: they pile up in the buffer, or are dropped: see *Dropped steps*.",
            queries=(
                Query(
                    f"sum by (actor) (rate(shoal_replay_actor_acknowledged_steps_total{OF}[$__rate_interval]))",
                    "{{actor}}",
                ),
            ),
            axis="per second",
            more=(REPLAY,),
        ),
        Lines(
            title="Bytes sent",
            shows="Bytes per second that each actor sent to the replay.",
            good="well below what its network carries.",
            otherwise="for images set `actor.compression`.",
            queries=(Query(rate("shoal_actor_sent_bytes_total"), "{{actor}}"),),
            unit="Bps",
        ),
        Lines(
            title="Episodes",
            shows="Episodes that ended, per second and actor.",
            good="steady; it rises as the policy solves the task sooner.",
            otherwise="0 while steps are made: episodes never end; look at the environment (`shoal doctor env`).",
            queries=(Query(rate("shoal_actor_episodes_total"), "{{actor}}"),),
            axis="per second",
        ),
    ),
)

WAITS = Row(
    "What do they wait for?",
    (
        Lines(
            title="Waits by reason",
            shows="The share of time that actors spent waiting, on the mean over the chosen ones. The environment's "
            "own time is one of the reasons.",
            good="*the environment* is the largest; *the replay holds its steps back* where the learner is the "
            "slower side.",
            otherwise="*away*: is that process running and within reach? *parked*: no word from the learner for "
            "`actor.max_policy_age_s`.",
            queries=(
                Query(
                    f"avg by (reason) ({named(f'rate(shoal_actor_waited_seconds_total{AT}[$__rate_interval])')})",
                    "{{reason}}",
                ),
            ),
            unit="percentunit",
            highest=1.0,
            words=ACTOR_WAITS,
        ),
        Lines(
            title="Held back, by actor",
            shows="The share of time in which the buffer was full and acting stood still.",
            good="0, or alike for all where the learner is the slower side.",
            otherwise="one alone: its connection to the replay is slow; see *Time to be acknowledged*.",
            queries=(
                Query(
                    "sum by (actor) ("
                    + named(
                        'rate(shoal_actor_waited_seconds_total{run="$run", reason="replay_full"}[$__rate_interval])'
                    )
                    + ")",
                    "{{actor}}",
                ),
            ),
            unit="percentunit",
            highest=1.0,
        ),
        Lines(
            title="Chunks in the buffer",
            shows="Chunks of each actor that wait for the replay, and how many the buffer holds.",
            good="below its capacity; 0 or 1 while the replay is fast.",
            otherwise="at its capacity: the replay holds it back, or is away. A smaller `actor.buffer_chunks` makes "
            "the data fresher.",
            queries=(
                Query(gauge("shoal_actor_buffer_depth_chunks"), "{{actor}}"),
                Query(f"max({named(f'shoal_actor_buffer_capacity_chunks{AT}')})", "capacity"),
            ),
            axis="chunks",
            decimals=0,
            dashed=("capacity",),
        ),
        Lines(
            title="Time to be acknowledged",
            shows="From a chunk's first send to its acknowledgement: half, 95 and 99 of 100 at most this long.",
            good="milliseconds, or as long as the limiter holds inserts.",
            otherwise="long while the replay holds nothing back (*Replay*): the network.",
            queries=(
                Query(acknowledged_within(0.5), "half"),
                Query(acknowledged_within(0.95), "95 %"),
                Query(acknowledged_within(0.99), "99 %"),
            ),
            unit="s",
            logarithmic=True,
            lowest=None,
            more=(REPLAY,),
        ),
        Lines(
            title="Environment",
            alerts=("ShoalEnvironmentHangs",),
            shows="How long the environment's call that is under way has lasted, by actor.",
            good="as long as a step of the simulator takes, or 0.",
            otherwise="a line that climbs: the simulator hangs. After `actor.max_step_s` it is counted, and the log "
            "says in which step.",
            queries=(Query(gauge("shoal_actor_env_call_seconds"), "{{actor}}"),),
            unit="s",
        ),
        Lines(
            title="Waits under way",
            shows="How long the oldest wait of each reason has lasted, the longest over the chosen actors.",
            good="nothing climbs for longer than some seconds.",
            otherwise="a line that climbs says for what; `shoal why` has the sentence.",
            queries=(Query(f"max by (reason) ({named(f'shoal_actor_waiting_seconds{AT}')})", "{{reason}}"),),
            unit="s",
            words=ACTOR_WAITS,
        ),
    ),
)

PARAMETERS = Row(
    "With which parameters do they act?",
    (
        Lines(
            title="Since the learner confirmed them",
            alerts=("ShoalPolicyOld", "ShoalActorParked"),
            shows="How long ago the learner last confirmed that an actor's parameters are the newest, and when it "
            "parks.",
            good="a few seconds.",
            otherwise="a line that climbs: the learner is away for that actor. At the dashed line it stops acting.",
            queries=(
                Query(gauge("shoal_actor_policy_age_seconds"), "{{actor}}"),
                Query(f"max({named(f'shoal_actor_max_policy_age_seconds{AT}')})", "parks at"),
            ),
            unit="s",
            dashed=("parks at",),
            more=(STALENESS,),
        ),
        Lines(
            title="Version that acts",
            shows="The version of the parameters of each actor, and the newest one of the learner.",
            good="all lines climb together.",
            otherwise="one that stays behind gets no parameters.",
            queries=(
                Query(gauge("shoal_actor_policy_version"), "{{actor}}"),
                Query(f"max(shoal_learner_version{AT})", "newest"),
            ),
            lowest=None,
            decimals=0,
            dashed=("newest",),
            more=(STALENESS,),
        ),
        Lines(
            title="Exploration",
            shows="The noise (or the share of random actions) of the ladder over all chosen actors: least, middle "
            "and most.",
            good="the range that the run file asks for: some lanes hardly explore, some much.",
            otherwise="the same for all: `actor.count` is not the number of actors, so that the ladder has too few "
            "rungs.",
            queries=(
                Query(f"min({named(f'shoal_actor_exploration_min{AT}')})", "least"),
                Query(f"avg({named(f'shoal_actor_exploration_median{AT}')})", "middle"),
                Query(f"max({named(f'shoal_actor_exploration_max{AT}')})", "most"),
            ),
        ),
        Lines(
            title="Is its word right?",
            alerts=("ShoalClaimsDiverge",),
            shows="The factor by which an actor's first TD errors are typically off from those that the learner "
            "computes, and the bound that it is named beyond.",
            good="some actors at 2 to 5, all alike.",
            otherwise="one far above the others: its simulator is broken, or it runs other parameters than it says. "
            "See docs/training-health.md.",
            queries=(
                Query(f"max by (actor) (shoal_learner_actor_claim_divergence{OF})", "{{actor}}"),
                Query(f"max(shoal_learner_claim_divergence_bound{AT})", "bound"),
            ),
            axis="factor",
            logarithmic=True,
            lowest=None,
            dashed=("bound",),
        ),
    ),
)

LOSSES = Row(
    "What is lost?",
    (
        Number(
            title="Parked",
            alerts=("ShoalActorParked",),
            shows="Actors that have stopped acting since the learner has not confirmed their parameters for too long.",
            good="0.",
            otherwise="is the learner running and within their reach? They go on by themselves when it answers.",
            queries=(Query(f"sum({named(f'shoal_actor_parked{AT}')})", "parked"),),
            limits=((1, RED),),
            decimals=0,
        ),
        Number(
            title="Hangs",
            alerts=("ShoalEnvironmentHangs",),
            shows="Calls of environments that took longer than `actor.max_step_s`, within the time shown.",
            good="0.",
            otherwise="the actor's log says in which step; the simulator's own log may say why.",
            queries=(Query(gained("shoal_actor_env_hangs_total"), "hangs"),),
            limits=((1, RED),),
            decimals=0,
        ),
        Lines(
            title="Dropped steps",
            shows="Steps per second that were made and never delivered, as the actors count them, by reason.",
            good="0. At a stop, what could not be delivered in time is dropped and counted.",
            otherwise="*buffer full*: `actor.on_full` is `drop_oldest` and the replay is the slower side.",
            queries=(
                Query(
                    f"sum({named(f'rate(shoal_actor_dropped_buffer_full_steps_total{AT}[$__rate_interval])')})",
                    "buffer full",
                ),
                Query(
                    f"sum({named(f'rate(shoal_actor_dropped_stopped_steps_total{AT}[$__rate_interval])')})", "stopped"
                ),
            ),
            axis="per second",
        ),
        Lines(
            title="Dropped steps, as the replay heard of them",
            alerts=("ShoalStepsDropped",),
            shows="The same as told to the replay, by actor, over the actor's life; here those of actors that are "
            "gone count too.",
            good="0.",
            otherwise="see the panel on the left.",
            queries=(Query(f"sum by (actor) (shoal_replay_actor_dropped_steps_total{OF})", "{{actor}}"),),
            axis="steps",
            steps=True,
        ),
    ),
)

HOST = Row(
    "The processes",
    (
        Lines(
            title="Memory",
            alerts=("ShoalMemoryGrowing",),
            shows="Memory of each actor's process, simulator included.",
            good="level.",
            otherwise="growth without end: most often the simulator; note its rate.",
            queries=(Query(f"sum by (actor) ({named('process_resident_memory_bytes')})", "{{actor}}"),),
            unit="bytes",
        ),
        Lines(
            title="CPU",
            shows="Cores that each actor uses.",
            good="about one for each, or as many threads as the simulator has.",
            otherwise="far less, while it does not wait: other programs take the cores.",
            queries=(
                Query(f"sum by (actor) ({named('rate(process_cpu_seconds_total[$__rate_interval])')})", "{{actor}}"),
            ),
            axis="cores",
        ),
        Lines(
            title="What the evaluator waits for",
            shows="The share of time that the evaluator spent waiting.",
            good="*a newer policy* is the largest: it keeps up with the learner.",
            otherwise="no lines: no evaluator runs, so that no best policy is kept.",
            queries=(
                Query(
                    f"sum by (reason) (rate(shoal_evaluator_waited_seconds_total{AT}[$__rate_interval]))", "{{reason}}"
                ),
            ),
            unit="percentunit",
            highest=1.0,
            words=EVALUATOR_WAITS,
            empty="no evaluator runs",
        ),
    ),
)

DASHBOARD = Dashboard(
    ACTORS,
    "shoal: actors",
    "Who is there and delivers, what actors wait for, with which parameters they act, what is lost.",
    (RUN, ACTOR),
    (WHO, WAITS, PARAMETERS, LOSSES, HOST),
)
