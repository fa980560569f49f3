"""The first page: is it learning, is it fed, who waits for whom, is it fresh, is it safe."""

from __future__ import annotations

from deploy.grafana.generator.panel import BLUE, ORANGE, RED, Bars, Dashboard, Lines, Note, Number, Query, Row
from deploy.grafana.generator.safety import SAFE
from deploy.grafana.generator.shared import (
    ACTOR_WAITS,
    ACTORS,
    EVALUATOR_WAITS,
    LEARNER,
    LEARNER_WAITS,
    OVERVIEW,
    PARTS,
    REPLAY,
    REPLAY_WAITS,
    RUN,
    STALENESS,
)


def waited(service: str, over_processes: str) -> str:
    """The share of time that a service waited by reason, the largest first."""
    shares = f'rate(shoal_{service}_waited_seconds_total{{run="$run"}}[$__rate_interval])'
    return f"sort_desc({over_processes} by (reason) ({shares}))"


LEARNING = Row(
    "Is it learning?",
    (
        Number(
            title="Success",
            shows="The share of evaluation episodes that succeeded: of the newest policy that was judged, and of the "
            "best.",
            good="the newest one is near the best one, and both rise until the task is solved.",
            otherwise="if it stays low while updates go on, look at *Learner and gradients* for values that run "
            "away; if there is no value, no evaluator runs, or its task reports no success.",
            queries=(
                Query('max(shoal_learner_evaluated_success_ratio{run="$run"})', "newest"),
                Query('max(shoal_learner_best_success_ratio{run="$run"})', "best"),
            ),
            unit="percentunit",
            height=8,
            highest=1.0,
            base=BLUE,
            with_names=True,
            empty="not judged yet",
            more=(LEARNER,),
        ),
        Lines(
            title="Success of judged policies",
            alerts=("ShoalEvaluationStopped", "ShoalSuccessCollapsed"),
            shows="The same over time, one point for each policy that the evaluator judged.",
            good="it rises, and then stays.",
            otherwise="a fall after a rise: compare with the lag below and with the values in *Learner and "
            "gradients*. A flat line at 0: does the task give a reward before it is solved?",
            queries=(
                Query('max(shoal_learner_evaluated_success_ratio{run="$run"})', "newest"),
                Query('max(shoal_learner_best_success_ratio{run="$run"})', "best"),
            ),
            unit="percentunit",
            width=10,
            highest=1.0,
            dashed=("best",),
            steps=True,
            empty="not judged yet",
            more=(LEARNER,),
        ),
        Lines(
            title="Work done per second",
            alerts=("ShoalTrainingStalled",),
            shows="Steps that the replay acknowledged, and items that the learner trained on.",
            good="both are steady; how high they are depends on the machine. Items are `samples_per_insert` times "
            "the steps, once the replay is ready.",
            otherwise="items at 0: read *Who waits for whom?* below. Steps at 0 while items go on: no actor "
            "delivers, and the data get old; look at *Actors*.",
            queries=(
                Query('sum(rate(shoal_replay_acknowledged_steps_total{run="$run"}[$__rate_interval]))', "steps in"),
                Query('sum(rate(shoal_learner_trained_items_total{run="$run"}[$__rate_interval]))', "items trained on"),
            ),
            axis="per second",
            width=10,
            logarithmic=True,
            lowest=None,
            more=(LEARNER, ACTORS),
        ),
    ),
)

FED = Row(
    "Is it fed?",
    (
        Lines(
            title="Batches ready for the learner",
            alerts=("ShoalLearnerStarved",),
            shows="Batches that lie in the learner's queue and wait to be trained on.",
            good="above 0 nearly always: the learner never has to wait for data.",
            otherwise="at 0 the learner is hungry: *What the learner waits for* below will show *batches from the "
            "replay*, and the bar beside it says why the replay holds them back.",
            queries=(Query('max(shoal_learner_prefetch_depth_batches{run="$run"})', "ready"),),
            axis="batches",
            more=(LEARNER,),
        ),
        Lines(
            title="Draws per step",
            shows="How often each step has been drawn so far, over all of the run, and the ratio that is asked for "
            "(`replay.samples_per_insert`).",
            good="the line runs along its target.",
            otherwise="below the target: the learner is the slower side, and actors are held back. Without a target "
            "nothing is held back. It cannot stay above it: then the learner is held back, and more actors would "
            "help.",
            queries=(
                Query('avg(shoal_replay_samples_per_insert{run="$run"})', "drawn"),
                Query('avg(shoal_replay_samples_per_insert_target{run="$run"})', "target"),
            ),
            axis="draws per step",
            dashed=("target",),
            more=(REPLAY,),
        ),
        Lines(
            title="How full the replay is",
            shows="Rows of the ring in use, by shard.",
            good="it fills up once and stays at 100 %: from then on the oldest steps make room.",
            otherwise="if training is to begin only when it is full, lower `replay.min_size_to_sample`; if it never "
            "fills, the capacity is larger than what the run makes.",
            queries=(Query('shoal_replay_fill_ratio{run="$run"}', "{{instance}}"),),
            unit="percentunit",
            highest=1.0,
            base=BLUE,
            more=(REPLAY,),
        ),
    ),
)

WAITING = Row(
    "Who waits for whom?",
    (
        Bars(
            title="What the learner waits for",
            alerts=("ShoalLearnerStarved", "ShoalLearnerHeldBack"),
            shows="The share of the last seconds that the learner spent waiting, by what it waited for.",
            good="all bars are short: the learner trains. A few per cent are normal.",
            otherwise="*batches from the replay*: read the next panel. *gradients of helpers*: the slowest helper "
            "sets the pace, see *Learner and gradients*. *the checkpoint's disk*: a slow disk under the run's "
            "folder. *a first actor*: none has come yet.",
            queries=(Query(waited("learner", "sum"), "{{reason}}"),),
            unit="percentunit",
            highest=1.0,
            limits=((0.2, ORANGE), (0.6, RED)),
            words=LEARNER_WAITS,
            more=(LEARNER,),
        ),
        Bars(
            title="Whom the replay holds back",
            alerts=("ShoalReplayBlocked",),
            shows="The share of the last seconds in which the replay kept someone waiting, and whom.",
            good="at most one bar is long: it says which side is the slower one, and the limiter keeps the ratio. "
            "*still filling* is normal at the start.",
            otherwise="*too few new steps*: the actors are the slower side. Are they all there, and what do they "
            "wait for (next panel)? Add actors, or raise `replay.samples_per_insert`. *the learner is slower*: add "
            "helpers, or lower the ratio; it is no fault.",
            queries=(Query(waited("replay", "max"), "{{reason}}"),),
            unit="percentunit",
            highest=1.0,
            base=BLUE,
            words=REPLAY_WAITS,
            more=(REPLAY,),
        ),
        Bars(
            title="What the actors wait for",
            alerts=("ShoalActorParked", "ShoalEnvironmentHangs"),
            shows="The share of the last seconds that actors spent waiting, on the mean over all actors.",
            good="*the environment* is the longest bar, or *the replay holds its steps back* if the learner is the "
            "slower side.",
            otherwise="*the replay is away*, *the learner is away*: look whether they run and can be reached. "
            "*parked*: an actor has not heard from the learner for `actor.max_policy_age_s` and has stopped acting.",
            queries=(Query(waited("actor", "avg"), "{{reason}}"),),
            unit="percentunit",
            highest=1.0,
            base=BLUE,
            words=ACTOR_WAITS,
            more=(ACTORS,),
        ),
        Lines(
            title="Waits under way",
            alerts=("ShoalReplayBlocked", "ShoalLearnerStarved"),
            shows="How long each wait that is going on now has lasted; 0 when there is none. Short waits come and go "
            "between two looks of Prometheus.",
            good="nothing grows for longer than some seconds.",
            otherwise="a line that climbs without end is somebody who waits for somebody who does not come: its name "
            "says for what. `shoal why` prints the same with the arithmetic.",
            queries=(
                Query('max by (reason) (shoal_learner_waiting_seconds{run="$run"})', "learner: {{reason}}"),
                Query('max by (reason) (shoal_replay_waiting_seconds{run="$run"})', "replay: {{reason}}"),
                Query('max by (reason) (shoal_actor_waiting_seconds{run="$run"})', "an actor: {{reason}}"),
                Query('max by (reason) (shoal_evaluator_waiting_seconds{run="$run"})', "evaluator: {{reason}}"),
            ),
            unit="s",
            width=16,
            ranked=True,
            words={
                f"{who}: {reason}": f"{who}: {words}"
                for who, waits in (
                    ("learner", LEARNER_WAITS),
                    ("replay", REPLAY_WAITS),
                    ("an actor", ACTOR_WAITS),
                    ("evaluator", EVALUATOR_WAITS),
                )
                for reason, words in waits.items()
            },
        ),
        Note(
            "How to read this row",
            "Begin on the left.\n\n"
            "1. **The learner waits for batches?** Then the replay holds them back; its bar says why.\n"
            "2. **Too few new steps?** Then the actors are the slower side; their bar says what slows them.\n"
            "3. **The actors are held back?** Then the learner is the slower side. That is fine: it is what "
            "`samples_per_insert` asks for.\n"
            "4. **The learner waits for gradients?** The slowest helper sets its pace: *Learner and gradients*.\n"
            "5. **Nobody waits, and nothing happens?** Is a process down? See *Is it safe?*\n",
        ),
    ),
)

FRESH = Row(
    "Is it fresh?",
    (
        Bars(
            title="The most stale actors",
            alerts=("ShoalPolicyOld",),
            shows="The median lag of what each actor delivered, in updates between the policy that acted and the "
            "training on it: the five most stale, the worst first.",
            good="all are alike.",
            otherwise="one that stands out has a slow environment, a busy machine or a bad connection. *Staleness* "
            "shows where on the way its steps grow old.",
            queries=(
                Query(
                    'sort_desc(topk(5, max by (actor) (shoal_learner_actor_lag_updates{run="$run", statistic="p50"})))',
                    "{{actor}}",
                ),
            ),
            unit="short",
            base=BLUE,
            more=(STALENESS,),
        ),
        Lines(
            title="Where the lag comes from",
            alerts=("ShoalStalenessGrowing",),
            shows="The mean lag of what is trained on, in updates, split over the parts of the way: while acting, in "
            "flight to the replay, in the ring, in the learner's queue.",
            good="the ring is the largest part: that is what a replay is for.",
            otherwise="*Staleness* says for each part what makes it smaller.",
            queries=(
                Query(
                    'sum by (part) (rate(shoal_learner_lag_updates_sum{run="$run"}[$__rate_interval])) / '
                    'sum by (part) (rate(shoal_learner_lag_updates_count{run="$run"}[$__rate_interval]))',
                    "{{part}}",
                ),
            ),
            axis="updates",
            width=16,
            stacked=True,
            words=PARTS,
            more=(STALENESS,),
        ),
    ),
)

DASHBOARD = Dashboard(
    OVERVIEW,
    "shoal: overview",
    "Is it learning, is it fed, who waits for whom, is it fresh, is it safe.",
    (RUN,),
    (LEARNING, FED, WAITING, FRESH, SAFE),
)
