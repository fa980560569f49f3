"""The replay: what comes in and goes out, the limiter, priorities, calls, and whether all is accounted for."""

from __future__ import annotations

from deploy.grafana.generator.panel import BLUE, GREEN, ORANGE, RED, Dashboard, HeatMap, Lines, Number, Query, Row
from deploy.grafana.generator.sampling import AT, PRIORITIES, rate
from deploy.grafana.generator.shared import ACTORS, REPLAY, REPLAY_WAITS, RUN, SHARD, STALENESS

FLOW = Row(
    "What comes in, what goes out",
    (
        Lines(
            title="Steps in, items out",
            shows="Steps acknowledged to actors and items drawn by learners, per second and shard.",
            good="both steady; items are about `replay.samples_per_insert` times the steps.",
            otherwise="steps at 0: no actor delivers (*Actors*), or the limiter holds them back (below). Items at 0: "
            "no learner draws, or too few items are there.",
            queries=(
                Query(rate("shoal_replay_acknowledged_steps_total", "instance"), "steps in, {{instance}}"),
                Query(rate("shoal_replay_sampled_items_total", "instance"), "items out, {{instance}}"),
            ),
            axis="per second",
            logarithmic=True,
            lowest=None,
            more=(ACTORS,),
        ),
        Lines(
            title="Bytes in",
            shows="Bytes of chunks that were inserted, per second and shard.",
            good="well below what the network carries: 1 Gbit/s is about 120 MB/s.",
            otherwise="for images set `actor.compression`; else put actors and replay nearer to each other.",
            queries=(Query(rate("shoal_replay_inserted_bytes_total", "instance"), "{{instance}}"),),
            unit="Bps",
        ),
        Lines(
            title="Living actors",
            alerts=("ShoalNoActors",),
            shows="Actors that the replay has heard of within `replay.max_actor_silence_s`.",
            good="as many as were started.",
            otherwise="an actor is gone or held back: *Actors* shows which one is silent.",
            queries=(Query(f"shoal_replay_living_actors{AT}", "{{instance}}"),),
            axis="actors",
            decimals=0,
            more=(ACTORS,),
        ),
    ),
)

RING = Row(
    "The ring",
    (
        Number(
            title="Full",
            shows="Rows in use, of those that the ring can hold.",
            good="100 % once it has filled.",
            otherwise="nothing: it says only how far the filling has come.",
            queries=(Query(f"min(shoal_replay_fill_ratio{AT})", "full"),),
            unit="percentunit",
            highest=1.0,
            base=BLUE,
        ),
        Number(
            title="Oldest row",
            shows="How long ago the oldest row came.",
            good="steady once the ring is full.",
            otherwise="too old for your task: lower `replay.capacity`, or set a bound (*Staleness*).",
            queries=(Query(f"max(shoal_replay_oldest_row_age_seconds{AT})", "age"),),
            unit="s",
            base=BLUE,
            more=(STALENESS,),
        ),
        Lines(
            title="Rows and items",
            shows="Rows that the ring can hold and holds, items that can be drawn, steps whose window is still open, "
            "and items that were left out: drawn often enough, or too old.",
            good="items follow the rows at a small distance; open windows are few.",
            otherwise="many items too old: see *Staleness*. Many drawn often enough: `replay.max_times_sampled` is "
            "low for the ratio of draws.",
            queries=(
                Query(f"sum(shoal_replay_capacity_rows{AT})", "capacity"),
                Query(f"sum(shoal_replay_occupied_rows{AT})", "rows in use"),
                Query(f"sum(shoal_replay_items{AT})", "items"),
                Query(f"sum(shoal_replay_unripe_steps{AT})", "windows still open"),
                Query(f"sum(shoal_replay_exhausted_items{AT})", "drawn often enough"),
                Query(f"sum(shoal_replay_expired_items{AT})", "too old"),
            ),
            axis="rows",
            width=16,
            dashed=("capacity",),
            more=(STALENESS,),
        ),
    ),
)

LIMITER = Row(
    "Who is held back?",
    (
        Lines(
            title="Waits by reason",
            alerts=("ShoalReplayBlocked",),
            shows="The share of time in which the replay kept someone waiting, by reason and shard.",
            good="at most one of the two sides waits; *still filling* at the start alone.",
            otherwise="*too few new steps* near 100 %: actors are the slower side, add some or raise "
            "`replay.samples_per_insert`. *the learner is slower* near 100 %: the learner is the slower side.",
            queries=(
                Query(
                    f"max by (reason) (rate(shoal_replay_waited_seconds_total{AT}[$__rate_interval]))",
                    "{{reason}}",
                ),
            ),
            unit="percentunit",
            highest=1.0,
            words=REPLAY_WAITS,
            more=(ACTORS,),
        ),
        Lines(
            title="Surplus of draws",
            shows="Draws that are owed to the steps that came (above 0), or were made ahead of them (below 0), and "
            "the bounds at which one side is held back.",
            good="within the bounds, near one of them.",
            otherwise="it cannot leave the bounds for long. At the upper bound inserts wait for the learner; at the "
            "lower one the learner waits for steps.",
            queries=(
                Query(f"shoal_replay_limiter_surplus_samples{AT}", "surplus, {{instance}}"),
                Query(f"max by (side) (shoal_replay_limiter_bound_samples{AT})", "bound: {{side}} waits"),
            ),
            axis="draws",
            lowest=None,
            dashed=("bound: insert waits", "bound: sample waits"),
            empty="no ratio is set",
        ),
        Lines(
            title="Draws per step",
            shows="How often a step has been drawn so far, on the mean, and the ratio that is asked for; a target of "
            "0 asks for none.",
            good="along the target.",
            otherwise="see *Waits by reason*: it says which side is the slower one.",
            queries=(
                Query(f"shoal_replay_samples_per_insert{AT}", "drawn, {{instance}}"),
                Query(f"max(shoal_replay_samples_per_insert_target{AT})", "target"),
            ),
            axis="draws per step",
            dashed=("target",),
        ),
        Lines(
            title="Calls that are held",
            shows="Calls that the limiter holds at this moment.",
            good="no more than there are actors (inserts) and calls in flight of the learners (draws).",
            otherwise="one that stands still: see *Waits by reason*.",
            queries=(Query(f"sum by (call) (shoal_replay_waiting_calls{AT})", "{{call}}"),),
            axis="calls",
            decimals=0,
        ),
        Lines(
            title="Waits under way",
            alerts=("ShoalReplayBlocked",),
            shows="How long the oldest wait that is going on now has lasted, by reason; 0 when there is none.",
            good="nothing climbs for longer than some seconds.",
            otherwise="a line that climbs without end: the other side does not come. `shoal why` has the arithmetic.",
            queries=(Query(f"max by (reason) (shoal_replay_waiting_seconds{AT})", "{{reason}}"),),
            unit="s",
            words=REPLAY_WAITS,
        ),
        Lines(
            title="Refused chunks",
            shows="Chunks per second that can never be applied, by reason.",
            good="0. `fenced` once after an actor was replaced by a second one of its name.",
            otherwise="the actor's log has the sentence: another schema, another run, or an actor whose name is taken.",
            queries=(
                Query(
                    f"sum by (reason) (rate(shoal_replay_refused_chunks_total{AT}[$__rate_interval])) "
                    'or label_replace(vector(0), "reason", "none", "", "")',
                    "{{reason}}",
                ),
            ),
            axis="per second",
        ),
    ),
)

CALLS = Row(
    "How fast does it answer?",
    (
        Lines(
            title="Time to answer, 95 of 100",
            shows="How long calls took in the service by method, below which 95 of 100 stayed; waits that were asked "
            "for count.",
            good="`Sample` some milliseconds while nobody waits; `Insert` below a tenth of a second.",
            otherwise="compare with *Waits by reason*: a call that is held is not slow. Else the machine is busy: "
            "see CPU below.",
            queries=(
                Query(
                    f"histogram_quantile(0.95, sum by (le, method) (rate(shoal_replay_call_seconds_bucket{AT}"
                    "[$__rate_interval])))",
                    "{{method}}",
                ),
            ),
            unit="s",
            logarithmic=True,
            lowest=None,
        ),
        HeatMap(
            title="Time to answer Insert",
            shows="How many inserts per second took how long.",
            good="a band at some milliseconds. A second band at the deadline of waits is the limiter's.",
            otherwise="a band that climbs: the disk or the CPU is busy.",
            queries=(
                Query(
                    f"sum by (le) (rate(shoal_replay_call_seconds_bucket{AT[:-1]}, "
                    'method="Insert"}[$__rate_interval]))',
                    "{{le}}",
                ),
            ),
            unit="s",
        ),
        Lines(
            title="Calls by their end",
            alerts=("ShoalCallsRejected", "ShoalCallsFail"),
            shows="Calls per second by method and gRPC status.",
            good="all are `OK`.",
            otherwise="`UNAUTHENTICATED`, `PERMISSION_DENIED`: a token. `FAILED_PRECONDITION`: a peer that does not "
            "fit; its log says how. `DEADLINE_EXCEEDED`: held for too long.",
            queries=(Query(rate("shoal_replay_calls_total", "method, code"), "{{method}} {{code}}"),),
            axis="per second",
        ),
    ),
)

ACCOUNT = Row(
    "Is all accounted for?",
    (
        Number(
            title="Steps unaccounted for",
            alerts=("ShoalConservationBroken",),
            shows="Steps acknowledged, less those in the ring, overwritten, quarantined, damaged, or lost at an "
            "episode's open end.",
            good="0, always.",
            otherwise="anything else is a fault of shoal: run `shoal audit`, keep the ring's folder, and report it.",
            queries=(Query(f"sum(abs(shoal_replay_conservation_error_steps{AT}))", "steps"),),
            limits=((1, RED),),
            decimals=0,
        ),
        Number(
            title="Failed checksums",
            alerts=("ShoalChecksumFailures",),
            shows="Records whose checksum did not fit, within the time shown: chunks on their way, rows of the ring, "
            "the log.",
            good="0.",
            otherwise="on the way: the network or a machine's memory is bad. Ring or log: the disk, or a power cut; "
            "what was bad was dropped and counted.",
            queries=(Query(f"sum(increase(shoal_replay_checksum_failures_total{AT}[$__range]))", "failures"),),
            limits=((1, RED),),
            decimals=0,
        ),
        Number(
            title="Lanes in quarantine",
            alerts=("ShoalLanesQuarantined",),
            shows="Lanes whose steps had values that are not finite, within the time shown.",
            good="0.",
            otherwise="the run's folder *quarantine* has each one as a file that can be stepped through.",
            queries=(Query(f"sum(increase(shoal_replay_quarantined_lanes_total{AT}[$__range]))", "lanes"),),
            limits=((1, RED),),
            decimals=0,
        ),
        Lines(
            title="Where acknowledged steps are",
            alerts=("ShoalStepsLost",),
            shows="All steps acknowledged so far, split into those in the ring and those that left it, and why.",
            good="in the ring and overwritten are all but a few.",
            otherwise="lost ends grow with each actor that dies; quarantined ones with each lane whose values were "
            "not finite; damaged ones were found so when the replay came back after a crash of its machine.",
            queries=(
                Query(f"sum(shoal_replay_resident_steps{AT})", "in the ring"),
                Query(f"sum(shoal_replay_overwritten_steps_total{AT})", "overwritten"),
                Query(f"sum(shoal_replay_quarantined_steps_total{AT})", "quarantined"),
                Query(f"sum(shoal_replay_lost_tail_steps_total{AT})", "lost ends"),
                Query(f"sum(shoal_replay_reset_steps_total{AT})", "damaged"),
            ),
            axis="steps",
            width=12,
            stacked=True,
        ),
    ),
)

HOST = Row(
    "The process and its disk",
    (
        Number(
            title="Room on the ring's disk",
            alerts=("ShoalDiskFilling", "ShoalDiskNearlyFull", "ShoalDiskFull"),
            shows="What is left on the disk that holds the ring.",
            good="more than 15 %. The ring took its room when it was made; log and snapshots grow.",
            otherwise="move snapshots and old runs away.",
            queries=(Query(f"min(shoal_replay_disk_free_bytes{AT} / shoal_replay_disk_size_bytes{AT})", "free"),),
            unit="percentunit",
            base=RED,
            limits=((0.05, ORANGE), (0.15, GREEN)),
            highest=1.0,
            height=8,
            empty="no ring on a disk",
        ),
        Lines(
            title="Chunk log",
            shows="Size of the log of chunks beside the ring.",
            good="it levels off once the ring is full.",
            otherwise="one that grows without end is a fault of shoal.",
            queries=(Query(f"shoal_replay_chunk_log_bytes{AT}", "{{instance}}"),),
            unit="bytes",
            empty="no ring on a disk",
            width=5,
        ),
        Lines(
            title="Memory",
            shows="Memory of the replay's process; pages of the ring that it touched are in it.",
            good="it levels off once the ring is full.",
            otherwise="growth after that is a leak; note its rate and report it.",
            queries=(
                Query(f"process_resident_memory_bytes and on (job, instance) shoal_replay_items{AT}", "{{instance}}"),
            ),
            unit="bytes",
            width=5,
        ),
        Lines(
            title="CPU",
            shows="Cores that the replay uses.",
            good="below 1: its work is mostly done under one lock.",
            otherwise="at 1 and more it is the bottleneck: more steps in a chunk (`actor.chunk_steps`), more batches "
            "a call (`learner.batches_per_sample`), or another shard.",
            queries=(
                Query(
                    f"rate(process_cpu_seconds_total[$__rate_interval]) and on (job, instance) shoal_replay_items{AT}",
                    "{{instance}}",
                ),
            ),
            axis="cores",
            width=5,
        ),
        Lines(
            title="Snapshots",
            shows="Snapshots that were written, over all of the process's life.",
            good="it steps up when you ask for one.",
            otherwise="`shoal replay snapshot` says what went wrong.",
            queries=(Query(f"sum(shoal_replay_snapshots_total{AT})", "snapshots"),),
            width=5,
            decimals=0,
            steps=True,
        ),
    ),
)

DASHBOARD = Dashboard(
    REPLAY,
    "shoal: replay",
    "What comes in and goes out, who is held back, what is drawn, how fast it answers, whether all is accounted for.",
    (RUN, SHARD),
    (FLOW, LIMITER, RING, PRIORITIES, CALLS, ACCOUNT, HOST),
)
