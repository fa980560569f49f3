from __future__ import annotations

from typing import Any, Dict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.actor.lane_group import build_envs, check_chunk_bytes, device_of, group_rung, group_seed
from services.actor.seeds import TRAINING, env_seed
from services.agent.exploration import ladder_quantiles
from services.common.config.run import EnvSection
from services.common.errors import UserError
from services.common.schema import ActionSpec, Schema, TensorSpec
from tests.fakes import SCHEMA


def _env(**values: Any) -> EnvSection:
    return EnvSection(**{"factory": "tests.fakes:make_env", "lanes": 6, **values})


@settings(deadline=None)  # a busy machine is no failure
@given(groups=st.integers(1, 5), lanes=st.integers(1, 8), actors=st.integers(1, 4), data=st.data())
def test_the_groups_of_an_actor_hold_the_rungs_that_it_had_unsplit(
    groups: int, lanes: int, actors: int, data: Any
) -> None:
    actor = data.draw(st.integers(0, actors - 1))
    whole = ladder_quantiles(lanes * groups, actor, actors)
    parts = [ladder_quantiles(lanes, **group_rung(actor, actors, group, groups)) for group in range(groups)]
    np.testing.assert_allclose(np.sort(np.concatenate(parts)), whole)
    if lanes > 1:  # each group spans the ladder, but for the ends that the others hold
        step = 1 / (lanes * groups * actors - 1)
        assert all(part.max() - part.min() == pytest.approx((lanes - 1) * groups * actors * step) for part in parts)


def test_each_group_has_seeds_of_its_own_and_the_first_those_of_an_unsplit_actor() -> None:
    seeds = [group_seed(1, name, group) for name in ("actor-0", "actor-1") for group in range(4)]
    assert len(set(seeds)) == 8
    assert seeds[0] == env_seed(1, TRAINING, "actor-0")
    assert seeds == [group_seed(1, name, group) for name in ("actor-0", "actor-1") for group in range(4)]


def test_the_lanes_are_split_over_environments() -> None:
    envs = build_envs(_env(), 3, [1, 2, 3])
    assert [env.num_lanes for env in envs] == [2, 2, 2]
    assert len({id(env._env) for env in envs}) == 3
    assert envs[0].observation_spec == SCHEMA.observation


def test_declared_dtypes_are_those_of_the_groups() -> None:
    (env,) = build_envs(_env(observation_dtypes={"policy": "float16"}), 1, [1])
    assert {spec.name: spec.dtype for spec in env.observation_spec} == {"policy": "float16", "camera": "uint8"}


def test_an_environment_that_neither_resets_its_lanes_nor_lets_others_do_it_is_refused() -> None:
    with pytest.raises(UserError, match="does not reset its lanes"):
        build_envs(_env(kwargs={"autoreset": "disabled"}), 1, [1])


def _images(side: int) -> Schema:
    return Schema((TensorSpec("camera", "uint8", (side, side)),), ActionSpec(num_actions=2))


@pytest.mark.parametrize(
    ("schema", "lanes", "steps", "words"),
    [
        (
            _images(64),
            4096,
            100,
            r"100 steps of 4096 lanes may take 1,706,909,696 bytes, and 268,435,456 can be sent: set",
        ),
        (_images(64), 4096, 100, r"set it to 14 or less$"),
        (_images(2048), 4096, 1, r"split the lanes by actor\.lane_groups$"),
    ],
)
def test_chunks_that_cannot_be_sent_are_refused(schema: Schema, lanes: int, steps: int, words: str) -> None:
    with pytest.raises(UserError, match=words):
        check_chunk_bytes(schema, lanes, steps)


def test_the_largest_chunk_that_is_suggested_is_taken() -> None:
    check_chunk_bytes(_images(64), 4096, 14)
    check_chunk_bytes(SCHEMA, 4096, 1000)


def test_an_environment_lies_on_the_host_unless_it_says_otherwise() -> None:
    members: Dict[str, Any] = {"device": "cuda:1"}
    assert device_of(object()) == "cpu"
    assert device_of(type("OnGpu", (), members)()) == "cuda:1"
