"""The learner: is it learning, what it waits for, its checkpoints, who reads its parameters, gradients of helpers."""

from __future__ import annotations

from deploy.grafana.generator.gradients import AT, GRADIENTS, rate
from deploy.grafana.generator.panel import BLUE, ORANGE, RED, Dashboard, Lines, Number, Query, Row
from deploy.grafana.generator.shared import LEARNER, LEARNER_WAITS, REPLAY, RUN, STALENESS


def learning(pattern: str) -> str:
    """The algorithm's own figures whose names match, with the name as the label `figure`."""
    selector = f'{{__name__=~"shoal_learner_learning_{pattern}", run="$run"}}'
    return f'label_replace({selector}, "figure", "$1", "__name__", "shoal_learner_learning_(.*)")'


LEARNING = Row(
    "Is it learning?",
    (
        Lines(
            title="Return of judged policies",
            alerts=("ShoalEvaluationStopped",),
            shows="The mean return of each policy that the evaluator judged.",
            good="it rises, and then stays.",
            otherwise="a fall: look whether the values in the next panels run away, and at the lag in *Staleness*.",
            queries=(Query(f"max(shoal_learner_evaluated_return{AT})", "return"),),
            lowest=None,
            steps=True,
            empty="not judged yet",
            more=(STALENESS,),
        ),
        Lines(
            title="Losses",
            shows="The algorithm's losses on its latest batches.",
            good="the critic's falls at first and then moves about one height; the policy's falls as values rise.",
            otherwise="a critic's loss that grows without end: lower the learning rate, or clip rewards.",
            queries=(Query(learning(".*_loss"), "{{figure}}"),),
            lowest=None,
        ),
        Lines(
            title="Values",
            shows="What the critics think of the batch: mean and largest value, and how much the values of one fixed "
            "set of inputs changed between two reports (drift).",
            good="values stay within what a return can be; the drift becomes small.",
            otherwise="values far above any return that was seen: overestimation, and the policy will follow it. "
            "Lower the learning rate, or raise the target's period.",
            queries=(Query(learning("q_(mean|max|drift)"), "{{figure}}"),),
            lowest=None,
        ),
        Lines(
            title="Gradient norms",
            shows="Norms of the gradients before clipping, and after it.",
            good="steady, and mostly the same before and after.",
            otherwise="spikes go with spikes of the loss. Far above the clipped norm all the time: the learning rate "
            "means less than it says; raise the limit or scale rewards.",
            queries=(Query(learning(".*gradient_norm"), "{{figure}}"),),
            logarithmic=True,
            lowest=None,
        ),
        Lines(
            title="Clipped steps, and size of a step",
            shows="The share of steps whose gradient was clipped, and the norm of a step over the norm of the "
            "parameters.",
            good="few are clipped; a step is about a thousandth of the parameters.",
            otherwise="nearly all are clipped, or a step is above a hundredth: the learning rate is high, or rewards "
            "are large.",
            queries=(Query(learning(".*_(clipped_share|update_ratio)"), "{{figure}}"),),
            unit="percentunit",
            logarithmic=True,
            lowest=None,
        ),
        Lines(
            title="Exploration and saturation",
            shows="How far the batch's actions are from the policy's own, and how many of the policy's actions lie "
            "at their bounds.",
            good="exploration is there all the time; saturation is low unless the task is solved at the bounds.",
            otherwise="saturation near 100 % early: values run away and push actions to their ends.",
            queries=(
                Query(learning("(exploration_noise|exploration_share|policy_saturation|greedy_entropy)"), "{{figure}}"),
            ),
        ),
    ),
)

WORKING = Row(
    "Is it working, or waiting?",
    (
        Lines(
            title="Updates",
            alerts=("ShoalTrainingStalled",),
            shows="Updates of the parameters per second. After a crash the count goes back to the checkpoint, which "
            "shows as a dip.",
            good="steady.",
            otherwise="0 while the run is not finished: the next panel says what it waits for.",
            queries=(Query(f"sum(deriv(shoal_learner_updates_total{AT}[$__rate_interval]))", "updates"),),
            axis="per second",
            lowest=None,
        ),
        Lines(
            title="What it waits for",
            alerts=("ShoalLearnerStarved", "ShoalLearnerHeldBack"),
            shows="The share of time that the learner spent waiting, by what it waited for.",
            good="all together below a fifth.",
            otherwise="*batches*: see *Who is held back?* in *Replay*. *gradients*: the slowest helper sets the "
            "pace; see *Gradients of helpers* below. *checkpoint*: a slow disk.",
            queries=(Query(rate("shoal_learner_waited_seconds_total", "reason"), "{{reason}}"),),
            unit="percentunit",
            highest=1.0,
            stacked=True,
            words=LEARNER_WAITS,
            more=(REPLAY,),
        ),
        Lines(
            title="Queues",
            alerts=("ShoalPrioritiesQueued",),
            shows="Batches that are ready to be trained on, and batches whose priorities have not gone back to the "
            "replay.",
            good="the first above 0, the second near 0.",
            otherwise="the first at 0: the learner is hungry. The second grows: the replay answers slowly, or is away.",
            queries=(
                Query(f"max(shoal_learner_prefetch_depth_batches{AT})", "ready"),
                Query(f"max(shoal_learner_priority_queue_depth_batches{AT})", "priorities to send"),
            ),
            axis="batches",
            more=(REPLAY,),
        ),
        Lines(
            title="State",
            alerts=("ShoalNoActors",),
            shows="What the run is at: 1 for the state that it is in.",
            good="*training*, and *finished* at the end.",
            otherwise="*waiting* for long: no actor has come, or the replay is away.",
            queries=(Query(f"max by (state) (shoal_learner_run_state{AT})", "{{state}}"),),
            highest=1.0,
            steps=True,
            decimals=0,
        ),
        Lines(
            title="Versions published",
            shows="Parameter sets that the learner published, per second.",
            good="updates divided by `learner.publish_period`.",
            otherwise="0 while updates go on: nobody gets newer parameters; the learner's log says why.",
            queries=(Query(rate("shoal_learner_published_versions_total"), "versions"),),
            axis="per second",
        ),
        Lines(
            title="Items trained on",
            shows="Items that updates used, per second.",
            good="updates times `learner.batch_size`, times contributors.",
            otherwise="as for updates.",
            queries=(Query(rate("shoal_learner_trained_items_total"), "items"),),
            axis="per second",
        ),
    ),
)

CHECKPOINTS = Row(
    "What would a crash cost?",
    (
        Lines(
            title="Age of the checkpoint",
            alerts=("ShoalCheckpointOld",),
            shows="The time since the last checkpoint, and the period that is asked for.",
            good="a saw below the period.",
            otherwise="above it for long: writing takes longer than the period, or fails. A slow or a full disk.",
            queries=(
                Query(f"max(shoal_learner_checkpoint_age_seconds{AT})", "age"),
                Query(f"max(shoal_learner_checkpoint_period_seconds{AT})", "period"),
            ),
            unit="s",
            dashed=("period",),
            empty="none yet",
        ),
        Lines(
            title="Time to write a checkpoint",
            shows="Half and 95 of 100 took at most this long, within the time shown.",
            good="well below a second for small networks.",
            otherwise="a busy or a slow disk: put the run's folder onto another one.",
            queries=(
                Query(
                    f"histogram_quantile(0.5, sum by (le) (increase(shoal_learner_checkpoint_write_seconds_bucket{AT}"
                    "[$__range])))",
                    "half",
                ),
                Query(
                    f"histogram_quantile(0.95, sum by (le) (increase(shoal_learner_checkpoint_write_seconds_bucket{AT}"
                    "[$__range])))",
                    "95 %",
                ),
            ),
            unit="s",
        ),
        Number(
            title="Checkpoints",
            shows="Checkpoints written within the time shown.",
            good="more than none.",
            otherwise="none for longer than the period: see the panels on the left.",
            queries=(Query(f"sum(increase(shoal_learner_checkpoints_total{AT}[$__range]))", "written"),),
            base=BLUE,
            decimals=0,
            height=8,
        ),
        Number(
            title="Failed",
            shows="Checkpoints that could not be written, within the time shown. The learner ends with the first one.",
            good="0.",
            otherwise="its log has the reason: a full disk, or rights of the run's folder.",
            queries=(Query(f"sum(increase(shoal_learner_checkpoint_failures_total{AT}[$__range]))", "failed"),),
            limits=((1, RED),),
            decimals=0,
            height=8,
        ),
    ),
)

READERS = Row(
    "Who reads its parameters?",
    (
        Lines(
            title="Readers",
            shows="Processes that fetch parameters: actors, the evaluator, helpers.",
            good="as many as were started.",
            otherwise="fewer: some do not reach the learner.",
            queries=(Query(f"max(shoal_learner_readers{AT})", "readers"),),
            decimals=0,
            width=6,
        ),
        Lines(
            title="How far readers are behind",
            shows="Updates done since the version that each reader runs.",
            good="each goes up and down between 0 and some publications.",
            otherwise="one that only climbs gets no parameters: see its log.",
            queries=(Query(f"max by (reader) (shoal_learner_reader_lag_updates{AT})", "{{reader}}"),),
            axis="updates",
            width=6,
            more=(STALENESS,),
        ),
        Lines(
            title="Time to answer, 95 of 100",
            shows="How long calls took in the learner, by method.",
            good="some milliseconds; calls that wait for a step of several gradients take as long as the step.",
            otherwise="large parameters and many readers: lower the number of publications (`learner.publish_period`).",
            queries=(
                Query(
                    "histogram_quantile(0.95, sum by (le, method) "
                    f"(rate(shoal_learner_call_seconds_bucket{AT}[$__rate_interval])))",
                    "{{method}}",
                ),
            ),
            unit="s",
            logarithmic=True,
            lowest=None,
            width=6,
        ),
        Number(
            title="Size of the parameters",
            shows="Bytes of one published set, which each reader fetches.",
            good="times readers, times versions per second, it is well below what the network carries.",
            otherwise="publish less often, or use a smaller network.",
            queries=(Query(f"max(shoal_learner_parameters_bytes{AT})", "size"),),
            unit="bytes",
            base=BLUE,
            width=3,
            height=8,
        ),
        Number(
            title="Not what they said",
            alerts=("ShoalWrongParameters",),
            shows="Times within the time shown that a reader did not run the version that it named.",
            good="0.",
            otherwise="an actor acts with other parameters than it says: restart it, and report it.",
            queries=(Query(f"sum(increase(shoal_learner_reader_digest_mismatch_total{AT}[$__range]))", "times"),),
            limits=((1, RED),),
            decimals=0,
            width=3,
            height=8,
        ),
    ),
)

HOST = Row(
    "The process and its disk",
    (
        Lines(
            title="Memory",
            shows="Memory of the learner's process.",
            good="level.",
            otherwise="growth without end is a leak; note its rate and report it.",
            queries=(
                Query(f"process_resident_memory_bytes and on (job, instance) shoal_learner_version{AT}", "learner"),
            ),
            unit="bytes",
            width=6,
        ),
        Lines(
            title="CPU",
            shows="Cores that the learner uses.",
            good="about `learner.torch_threads`, or well below on a GPU.",
            otherwise="far less, while it does not wait: other programs take the cores.",
            queries=(
                Query(
                    "rate(process_cpu_seconds_total[$__rate_interval]) "
                    f"and on (job, instance) shoal_learner_version{AT}",
                    "learner",
                ),
            ),
            axis="cores",
            width=6,
        ),
        Lines(
            title="Room on the disk of the run",
            alerts=("ShoalDiskFilling", "ShoalDiskNearlyFull", "ShoalDiskFull"),
            shows="What is left on the disk of the run's folder.",
            good="more than 15 %.",
            otherwise="move old runs away: with a full disk no checkpoint can be written, and the learner ends.",
            queries=(Query(f"min(shoal_learner_disk_free_bytes{AT} / shoal_learner_disk_size_bytes{AT})", "free"),),
            unit="percentunit",
            highest=1.0,
            width=6,
        ),
        Number(
            title="Stopped updates",
            alerts=("ShoalNonFiniteUpdates",),
            shows="Updates within the time shown that were stopped since they are not finite, and how many of their "
            "batches were kept in a file.",
            good="0.",
            otherwise="the file holds what is needed to see it again, see docs/training-health.md. Many in a row end "
            "the run.",
            queries=(
                Query(f"sum(increase(shoal_learner_non_finite_updates_total{AT}[$__range]))", "stopped"),
                Query(f"sum(increase(shoal_learner_nan_dumps_total{AT}[$__range]))", "kept in a file"),
            ),
            limits=((1, ORANGE), (10, RED)),
            decimals=0,
            width=6,
            height=8,
            with_names=True,
        ),
    ),
)

DASHBOARD = Dashboard(
    LEARNER,
    "shoal: learner and gradients",
    "Is it learning, is it working or waiting, what would a crash cost, who reads its parameters, how do helpers do.",
    (RUN,),
    (LEARNING, WORKING, CHECKPOINTS, READERS, GRADIENTS, HOST),
)
