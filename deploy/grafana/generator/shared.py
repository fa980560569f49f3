"""What several dashboards have in common: variables, uids, and words for reasons."""

from __future__ import annotations

from deploy.grafana.generator.panel import Variable

# Uids: links keep to them, so they stay as they are.
OVERVIEW, STALENESS, REPLAY, LEARNER, ACTORS = (
    "shoal-overview",
    "shoal-staleness",
    "shoal-replay",
    "shoal-learner",
    "shoal-actors",
)
# As links name them.
TITLES = {
    OVERVIEW: "Overview",
    STALENESS: "Staleness",
    REPLAY: "Replay",
    LEARNER: "Learner and gradients",
    ACTORS: "Actors",
}

RUN = Variable("run", "Run", '{__name__=~"shoal_.+_build_info"}', "run", many=False)
SHARD = Variable("shard", "Shard of the replay", 'shoal_replay_build_info{run="$run"}', "instance")
ACTOR = Variable("actor", "Actor", 'shoal_actor_info{run="$run"}', "actor")

# What a service waits for, as `waited_seconds_total{reason}` has it.
REPLAY_WAITS = {
    "insert_limiter": "the actors: the learner is slower",
    "sample_limiter": "the learner: too few new steps",
    "sample_min_size": "the learner: still filling",
}
LEARNER_WAITS = {
    "batches": "batches from the replay",
    "gradients": "gradients of helpers",
    "checkpoint": "the checkpoint's disk",
    "schema": "a first actor, for its schema",
    "readers": "others to hear of the end",
}
ACTOR_WAITS = {
    "replay_full": "the replay holds its steps back",
    "replay_away": "the replay is away",
    "chief_away": "the learner is away",
    "parked": "parked: parameters too old",
    "env": "the environment",
}
HELPER_WAITS = {
    "batches": "batches from the replay",
    "parameters": "newer parameters",
    "chief": "the chief's answer",
    "schema": "a first actor, for its schema",
}
EVALUATOR_WAITS = {
    "parameters": "a newer policy",
    "env": "the environment",
}

# Where on its way a step grows old, as `lag_updates{part}` has it.
PARTS = {
    "acting": "while acting",
    "in_flight": "in flight to the replay",
    "ring": "in the ring",
    "prefetch": "in the learner's queue",
}

# Joins what an actor's process says of itself with its name, and keeps the actors that were chosen.
NAMED = 'on (job, instance) group_left (actor) shoal_actor_info{run="$run", actor=~"$actor"}'
