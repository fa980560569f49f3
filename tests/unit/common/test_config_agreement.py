from __future__ import annotations

import pytest

from services.common.config.load import ConfigError, load

REPLAY = "--replay."


def _load(flags: str) -> None:
    load(None, flags.replace(" @", f" {REPLAY}").replace("@", REPLAY, 1).split())


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ("@selector fifo", "would draw the oldest items for ever"),
        ("@selector uniform @priority_rule td_error_visits", "has no effect with replay.selector = 'uniform'"),
        (
            "@selector fifo @max_times_sampled 1 @freshness_half_life_updates 9",
            "freshness_half_life_updates has no effect",
        ),
        (
            "@max_times_sampled 4 @samples_per_insert 4.5",
            "at most 4 draws; raise max_times_sampled to at least 5, or lower samples_per_insert to 4",
        ),
        (
            "@max_times_sampled 1 @capacity 2000 @min_size_to_sample 1 --env.lanes 10 --actor.count 2",
            "draws 2048 items .* 1940 rows without open windows .* only 970 draws; raise the capacity to at least 4156",
        ),
        (
            "@capacity 1000 @min_size_to_sample 761 @n_step 12 --env.lanes 10 --actor.count 2",
            "can never be reached: .* 1000 rows less the 240 steps whose windows are open",
        ),
        ("@freshness_half_life_updates -1", "it must be at least 0"),
        ("@td_weight 1.5", "it must be at most 1"),
    ],
)
def test_sampling_that_deadlocks_or_has_no_effect_is_refused(flags: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        _load(flags)


@pytest.mark.parametrize(
    "flags",
    [
        "@selector fifo @max_times_sampled 1 @samples_per_insert 1",
        "@max_times_sampled 5 @samples_per_insert 4.5",
        "@max_times_sampled 1 @capacity 4156 @min_size_to_sample 1 --env.lanes 10 --actor.count 2",
        "@capacity 1000 @min_size_to_sample 760 @n_step 12 --env.lanes 10 --actor.count 2",
        "@selector uniform @freshness_half_life_updates 5000",
    ],
)
def test_sampling_just_on_the_other_side_is_allowed(flags: str) -> None:
    _load(flags)


BOUND = "--staleness.max_lag_updates"


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (f"{BOUND} 0", "max_lag_updates = 0 cannot hold: .* up to 44 updates behind; set it to at least 44"),
        (f"{BOUND} 43", "every 20 updates .* 24 batches are drawn ahead .* 8 x learner.samples_in_flight 3"),
        (f"{BOUND} 23 --learner.publish_period 2s", "every 2s .* at least 24"),
        (f"{BOUND} 5 --learner.publish_period 1 --learner.samples_in_flight 4", "at least 33"),
        (f"{BOUND} -1", "it must be at least 0"),
        (
            "--staleness.loss_half_life_updates 100 --helper.count 1",
            "loss_half_life_updates = 100 weighs batches of the chief alone",
        ),
        (
            "--staleness.loss_half_life_updates 100 --helper.chief 127.0.0.1:7402",
            "helpers have no history of versions; leave out helpers",
        ),
        (
            "--staleness.loss_half_life_updates 100 @freshness_half_life_updates 200",
            "loss_half_life_updates = 100 and replay.freshness_half_life_updates = 200 would both .* one of them to 0",
        ),
    ],
)
def test_a_staleness_rule_that_cannot_hold_is_refused(flags: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        _load(flags)


@pytest.mark.parametrize(
    "flags",
    [
        f"{BOUND} 44",
        f"{BOUND} 24 --learner.publish_period 2s",
        f"{BOUND} 2 --learner.publish_period 1 --learner.batches_per_sample 1 --learner.samples_in_flight 1",
        "--staleness.loss_half_life_updates 100",
        "@freshness_half_life_updates 200",
    ],
)
def test_a_staleness_rule_that_can_hold_is_allowed(flags: str) -> None:
    _load(flags)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (
            "--env.lanes 15 --actor.lane_groups 2",
            "env.lanes = 15 cannot be split evenly over actor.lane_groups = 2; choose a multiple",
        ),
        (
            "--env.lanes 4096 --actor.chunk_steps 200",
            r"a chunk of 819200 steps .* is too large: at most 524288; lower chunk_steps",
        ),
    ],
)
def test_lanes_that_cannot_be_split_or_sent_are_refused(flags: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        load(None, flags.split())


def test_lane_groups_make_room_for_longer_chunks() -> None:
    flags = "--env.lanes 4096 --actor.chunk_steps 200 --actor.lane_groups 2 --replay.capacity 3e6"
    assert load(None, flags.split()).config.actor.lane_groups == 2
