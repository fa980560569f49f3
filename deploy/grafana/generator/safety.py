"""Is it safe, a row of the overview: what is down, full, lost, refused, or would be lost in a crash."""

from __future__ import annotations

from deploy.grafana.generator.panel import GREEN, ORANGE, RED, Number, Query, Row
from deploy.grafana.generator.shared import ACTORS, LEARNER, REPLAY

JOBS = 'job=~"(shoal-)?(replay|learner|helper|actor|evaluator)"'

SAFE = Row(
    "Is it safe?",
    (
        Number(
            title="Processes that do not answer",
            alerts=(
                "ShoalServiceDown",
                "ShoalWorkerDown",
                "ShoalPartMissing",
                "ShoalServiceRestarting",
                "ShoalCertificateExpiring",
                "ShoalCertificateExpired",
            ),
            shows="Processes of shoal that Prometheus knows of and cannot reach.",
            good="0.",
            otherwise="look into the process's log; `shoal up`, systemd and compose all start it again. An actor "
            "that was taken away for good leaves the count once it is taken from Prometheus' targets.",
            queries=(Query(f"count(up{{{JOBS}}} == 0) or vector(0)", "down"),),
            limits=((1, RED),),
            decimals=0,
        ),
        Number(
            title="Alerts that fire",
            shows="Alerts of Prometheus' rules that fire now.",
            good="0.",
            otherwise="Prometheus' page *Alerts* lists them; each has a part of the runbook.",
            queries=(Query('count(ALERTS{alertstate="firing"}) or vector(0)', "firing"),),
            limits=((1, RED),),
            decimals=0,
        ),
        Number(
            title="Age of the checkpoint",
            alerts=("ShoalCheckpointOld",),
            shows="How much training a crash of the learner would cost: the time since the last checkpoint, in "
            "periods of checkpointing.",
            good="below 1.",
            otherwise="above 2 checkpoints fail or take too long: the learner's log says which, *Learner and "
            "gradients* how long.",
            queries=(
                Query(
                    'max(shoal_learner_checkpoint_age_seconds{run="$run"}) / '
                    'max(shoal_learner_checkpoint_period_seconds{run="$run"})',
                    "periods",
                ),
            ),
            unit="suffix: periods",
            limits=((2, ORANGE), (4, RED)),
            decimals=1,
            empty="none yet",
            more=(LEARNER,),
        ),
        Number(
            title="Room on the fullest disk",
            alerts=("ShoalDiskFilling", "ShoalDiskNearlyFull", "ShoalDiskFull"),
            shows="What is left on the disk of the ring or of the run's folder, whichever has less.",
            good="more than 15 %.",
            otherwise="move old runs away. A full disk stops checkpoints; the ring itself took its room when it was "
            "made.",
            queries=(
                Query(
                    'min({__name__=~"shoal_(replay|learner)_disk_free_bytes", run="$run"} / on (job, instance) '
                    '{__name__=~"shoal_(replay|learner)_disk_size_bytes", run="$run"})',
                    "free",
                ),
            ),
            unit="percentunit",
            base=RED,
            limits=((0.05, ORANGE), (0.15, GREEN)),
            highest=1.0,
        ),
        Number(
            title="Steps unaccounted for",
            alerts=("ShoalConservationBroken",),
            shows="Steps that the replay acknowledged, less those that are in the ring, were overwritten, "
            "quarantined, damaged, or lost at an episode's open end.",
            good="0, always.",
            otherwise="anything else is a fault of shoal: run `shoal audit`, keep the ring's folder, and report it.",
            queries=(Query('sum(abs(shoal_replay_conservation_error_steps{run="$run"}))', "steps"),),
            limits=((1, RED),),
            decimals=0,
            more=(REPLAY,),
        ),
        Number(
            title="Sick lanes and updates",
            alerts=("ShoalLanesQuarantined", "ShoalNonFiniteUpdates"),
            shows="Lanes with values that are not finite that the replay put into quarantine, and updates that the "
            "learner stopped since they are not finite, within the time shown.",
            good="0.",
            otherwise="each was written to a file that can be stepped through, see docs/replay.md and "
            "docs/training-health.md: usually a simulator that blew up.",
            queries=(
                Query(
                    'sum(increase(shoal_replay_quarantined_lanes_total{run="$run"}[$__range])) + '
                    'sum(increase(shoal_learner_non_finite_updates_total{run="$run"}[$__range]))',
                    "sick",
                ),
            ),
            limits=((1, RED),),
            decimals=0,
            more=(REPLAY, LEARNER),
        ),
        Number(
            title="Living actors",
            alerts=("ShoalNoActors",),
            shows="Actors that the replay has heard of within `replay.max_actor_silence_s`.",
            good="as many as were started.",
            otherwise="*Actors* shows who is silent, and what it waits for.",
            queries=(Query('sum(shoal_replay_living_actors{run="$run"})', "actors"),),
            base=RED,
            limits=((1, GREEN),),
            decimals=0,
            empty="none has come",
            more=(ACTORS,),
        ),
        Number(
            title="Longest silence",
            alerts=("ShoalActorSilent",),
            shows="Since when the replay has heard nothing of the actor that is silent for the longest.",
            good="seconds.",
            otherwise="*Actors* shows which one it is; if nobody is missed, it was taken away and leaves the list by "
            "itself.",
            queries=(Query('max(shoal_replay_actor_silent_seconds{run="$run"})', "silent"),),
            unit="s",
            limits=((30, ORANGE), (60, RED)),
            empty="none has come",
            more=(ACTORS,),
        ),
        Number(
            title="Dropped steps",
            alerts=("ShoalStepsDropped",),
            shows="Steps that actors made and could not deliver, within the time shown.",
            good="0.",
            otherwise="with `actor.on_full` = `drop_oldest` a slow replay costs steps; at a stop, what cannot be "
            "delivered in time.",
            queries=(Query('sum(increase(shoal_replay_actor_dropped_steps_total{run="$run"}[$__range]))', "steps"),),
            limits=((1, ORANGE),),
            decimals=0,
            empty="none has come",
            more=(ACTORS,),
        ),
        Number(
            title="Rejected calls",
            alerts=("ShoalCallsRejected",),
            shows="Calls that replay and learner rejected at the door, for their token or their messages, within the "
            "time shown.",
            good="0.",
            otherwise="a peer with no token, a wrong one, or one of another role: its log says so. Or messages that "
            "are none, come too slowly, or are too many at once: the alert's entry in the runbook has each reason.",
            queries=(
                Query(
                    'sum(increase({__name__=~"shoal_(replay|learner)_rejected_calls_total", run="$run"}[$__range])) '
                    "or vector(0)",
                    "calls",
                ),
            ),
            limits=((1, ORANGE),),
            decimals=0,
        ),
        Number(
            title="Versions of shoal",
            alerts=("ShoalVersionsDiffer",),
            shows="How many versions of shoal the run's processes are of.",
            good="1.",
            otherwise="an upgrade that is not finished: bring the others to the same version.",
            queries=(Query('count(count by (version) ({__name__=~"shoal_.+_build_info", run="$run"}))', "versions"),),
            limits=((2, ORANGE),),
            decimals=0,
        ),
        Number(
            title="Open files",
            alerts=("ShoalFileDescriptorsLow",),
            shows="File descriptors that a process has open, of those that it may have; the process that is nearest "
            "to its end.",
            good="a few per cent.",
            otherwise="raise the limit of open files (`LimitNOFILE` of a unit), and look for peers that connect "
            "again and again.",
            queries=(
                Query(
                    "max(process_open_fds / process_max_fds "
                    'and on (job, instance) {__name__=~"shoal_.+_build_info", run="$run"})',
                    "open",
                ),
            ),
            unit="percentunit",
            limits=((0.5, ORANGE), (0.8, RED)),
        ),
    ),
)
