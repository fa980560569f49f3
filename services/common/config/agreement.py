"""Whether the values of a run file agree with each other: each disagreement is one sentence with the arithmetic."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from services.common.chunk import MAX_CHUNK_ROWS

if TYPE_CHECKING:
    from services.common.config.run import RunConfig


def check_agreement(config: RunConfig) -> None:
    """Refuse a run file whose parts, each sound by itself, do not fit together.

    Raises:
        ValueError: two values contradict each other, or could deadlock.
    """
    _check_ladder(config)
    _check_lane_groups(config)
    _check_ports(config)
    _check_helpers(config)
    _check_sampler(config)
    _check_staleness(config)
    _check_error_buffer(config)
    _check_average(config)
    capacity = config.replay.capacity_rows
    if capacity is not None:  # a budget of bytes becomes rows when the schema is known: the table checks it then
        _check_capacity(config, capacity)


def _check_ladder(config: RunConfig) -> None:
    td3, actor = config.td3, config.actor
    if td3.noise_min > td3.noise_max:
        raise ValueError(
            f"td3.noise_min = {td3.noise_min:g} is larger than td3.noise_max = {td3.noise_max:g}; the noise grows "
            "along the ladder from the first to the second: swap them"
        )
    if actor.index is not None and actor.index >= actor.count:
        raise ValueError(
            f"actor.index = {actor.index}, but actor.count = {actor.count}: the index runs from 0 to count - 1"
        )


def _check_lane_groups(config: RunConfig) -> None:
    lanes, groups = config.env.lanes, config.actor.lane_groups
    if lanes % groups:
        raise ValueError(
            f"env.lanes = {lanes} cannot be split evenly over actor.lane_groups = {groups}; choose a multiple"
        )
    rows = config.actor.chunk_steps * (lanes // groups)
    if 2 * rows > MAX_CHUNK_ROWS:  # each step may end an episode, whose last observation takes a row too
        raise ValueError(
            f"a chunk of {rows} steps (actor.chunk_steps = {config.actor.chunk_steps} x env.lanes = {lanes} / "
            f"actor.lane_groups = {groups}) is too large: at most {MAX_CHUNK_ROWS // 2}; lower chunk_steps"
        )


def _check_ports(config: RunConfig) -> None:
    """Ports that were set; of those that were not, `shoal up` takes free ones."""
    addresses = {"replay.addresses": config.replay.addresses[0], "learner.address": config.learner.address}
    ports = {
        "replay": (config.replay, config.replay.metrics_port),
        "learner": (config.learner, config.learner.metrics_port),
        "helper": (config.helper, config.helper.metrics_port),
        "evaluator": (config.evaluator, config.evaluator.metrics_port),
        "actor": (config.actor, config.actor.metrics_port),
    }
    for name, (section, port) in ports.items():
        if "metrics_port" not in section.model_fields_set:
            continue
        for key, address in addresses.items():
            if port and port == int(address.rpartition(":")[2]):
                raise ValueError(
                    f"{name}.metrics_port = {port} is the port of {key} = {address} too; give each its own, or set "
                    f"{name}.metrics_port to 0 for any free one"
                )


def _check_helpers(config: RunConfig) -> None:
    if config.helper.count > config.gradients.max_helpers:
        raise ValueError(
            f"helper.count = {config.helper.count} is more than gradients.max_helpers = "
            f"{config.gradients.max_helpers}, beyond which the chief refuses helpers; raise the second"
        )


def _check_capacity(config: RunConfig, capacity: int) -> None:
    replay, learner = config.replay, config.learner
    if learner.batch_size > capacity:
        raise ValueError(
            f"learner.batch_size = {learner.batch_size} is larger than replay.capacity = {capacity}; "
            "a table cannot hold one batch: raise the capacity or lower the batch size"
        )
    if replay.min_size_to_sample > capacity - config.steps_in_flight:
        raise ValueError(
            f"replay.min_size_to_sample = {replay.min_size_to_sample} can never be reached: replay.capacity = "
            f"{capacity} rows less the {config.steps_in_flight} steps that the actors' chunks hold "
            "(actor.chunk_steps x env.lanes x actor.count); raise the capacity or lower min_size_to_sample"
        )
    if replay.min_size_to_sample > capacity - config.max_open_steps:
        raise ValueError(
            f"replay.min_size_to_sample = {replay.min_size_to_sample} can never be reached: replay.capacity = "
            f"{capacity} rows less the {config.max_open_steps} steps whose windows are open (replay.n_step x "
            "env.lanes x actor.count); raise the capacity or lower min_size_to_sample"
        )
    most, draws = replay.max_times_sampled, learner.batch_size * learner.batches_per_sample
    room = capacity - config.max_open_steps
    if most and most * (room // 2) < draws:
        least = 2 * math.ceil(draws / most) + config.max_open_steps
        raise ValueError(
            f"replay.capacity = {capacity} deadlocks with max_times_sampled = {most}: one Sample draws "
            f"{draws} items (batch_size x batches_per_sample), and {room} rows without open windows (replay.n_step "
            f"x env.lanes x actor.count), each second of which may be a final observation, stand only "
            f"{most * max(0, room // 2)} draws; raise the capacity to at least {least}"
        )


def _check_error_buffer(config: RunConfig) -> None:
    replay, learner = config.replay, config.learner
    if not (replay.samples_per_insert and replay.error_buffer):
        return
    draws = learner.batch_size * learner.batches_per_sample
    inserts = replay.samples_per_insert * config.actor.chunk_steps * config.env.lanes
    if replay.error_buffer < max(draws, inserts):
        raise ValueError(
            f"replay.error_buffer = {replay.error_buffer:g} deadlocks: one Sample draws {draws} items "
            f"(batch_size x batches_per_sample) and one chunk allows {inserts:g} more (samples_per_insert x "
            f"chunk_steps x lanes); set it to at least {max(draws, inserts):g}, or to 0 to have it chosen"
        )


def _check_staleness(config: RunConfig) -> None:
    bound, learner = config.staleness.max_lag_updates, config.learner
    if config.staleness.loss_half_life_updates and config.replay.freshness_half_life_updates:
        raise ValueError(
            f"staleness.loss_half_life_updates = {config.staleness.loss_half_life_updates:g} and "
            f"replay.freshness_half_life_updates = {config.replay.freshness_half_life_updates:g} would both count an "
            "item's age, once in its weight and once in its draws; set one of them to 0"
        )
    if config.staleness.loss_half_life_updates and (config.helper.count or config.helper.chief):
        raise ValueError(
            f"staleness.loss_half_life_updates = {config.staleness.loss_half_life_updates:g} weighs batches of the "
            "chief alone, since helpers have no history of versions; leave out helpers, or weigh in the sampler by "
            "replay.freshness_half_life_updates"
        )
    period = learner.publish_schedule.updates or 0  # how many updates fit into a period of seconds nobody knows
    least = period + config.prefetched_batches
    if bound is not None and bound < least:
        how_often = f"{period} updates" if period else str(learner.publish_period)
        raise ValueError(
            f"staleness.max_lag_updates = {bound} cannot hold: actors get a version every {how_often} "
            f"(learner.publish_period), and {config.prefetched_batches} batches are drawn ahead of their use "
            f"(learner.batches_per_sample {learner.batches_per_sample} x learner.samples_in_flight "
            f"{learner.samples_in_flight}), so that even the newest data are up to {least} updates behind; set it to "
            f"at least {least}, or lower these three"
        )


def _check_average(config: RunConfig) -> None:
    if config.evaluator.parameters == "average" and not config.learner.average_rate:
        raise ValueError(
            "evaluator.parameters = 'average' needs an averaged policy, and learner.average_rate = 0 makes none; set "
            "the rate, as in 0.005, or evaluator.parameters to 'act'"
        )


def _check_sampler(config: RunConfig) -> None:
    replay, most = config.replay, config.replay.max_times_sampled
    if replay.selector == "fifo" and most == 0:
        raise ValueError(
            "replay.selector = 'fifo' with max_times_sampled = 0 would draw the oldest items for ever; set "
            "replay.max_times_sampled to at least 1"
        )
    if replay.selector != "prioritized" and replay.priority_rule != "td_error":
        raise ValueError(
            f"replay.priority_rule = {replay.priority_rule!r} has no effect with replay.selector = "
            f"{replay.selector!r}; choose 'prioritized', or leave the rule at 'td_error'"
        )
    if replay.selector == "fifo" and replay.freshness_half_life_updates:
        raise ValueError(
            "replay.freshness_half_life_updates has no effect with replay.selector = 'fifo', which draws by age "
            "alone; set it to 0"
        )
    if most and replay.samples_per_insert > most:
        raise ValueError(
            f"replay.samples_per_insert = {replay.samples_per_insert:g} deadlocks with max_times_sampled = {most}: "
            f"a step that is inserted brings at most {most} draws; raise max_times_sampled to at least "
            f"{math.ceil(replay.samples_per_insert)}, or lower samples_per_insert to {most}"
        )
