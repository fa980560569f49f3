from __future__ import annotations

from dataclasses import replace
from typing import Any, Callable, Dict

import numpy as np
import pytest

from services.common.chunk import MAX_CHUNK_ROWS, TERMINATED, TRUNCATED, VALID, Chunk, FinalObservations
from services.common.schema import SchemaError
from tests.fakes import SCHEMA, make_chunk

ENDED = [[VALID, VALID | TERMINATED], [VALID | TRUNCATED, 0]]


def _with_final(chunk: Chunk, **values: Any) -> Chunk:
    return replace(chunk, final=replace(chunk.final, **values))


def test_a_whole_chunk_passes_and_counts_its_transitions() -> None:
    chunk = make_chunk(2, 2, flags=ENDED)
    chunk.check(SCHEMA)
    assert (chunk.num_steps, chunk.num_lanes, chunk.num_valid) == (2, 2, 3)
    assert chunk.final.step.tolist() == [1, 2]


def test_a_chunk_without_steps_passes() -> None:
    chunk = make_chunk(0, 2)
    chunk.check(SCHEMA)
    assert chunk.num_valid == 0
    assert len(chunk.final) == 0


def test_a_cut_lane_has_a_final_observation_without_an_end() -> None:
    final = make_chunk(1, 1, flags=[[VALID | TERMINATED]]).final
    chunk = replace(make_chunk(1, 1), final=replace(final, cut=np.array([True])))
    chunk.check(SCHEMA)
    with pytest.raises(SchemaError, match="marked as cut"):
        _with_final(chunk, cut=np.array([False])).check(SCHEMA)


BREAK: Dict[str, Callable[[Chunk], Chunk]] = {
    "flags have shape": lambda c: replace(c, flags=c.flags.reshape(-1)),
    "'reward' is float64": lambda c: replace(c, reward=c.reward.astype(np.float64)),
    "'action' is float32": lambda c: replace(c, action=c.action[..., 0]),
    "'policy_version' is int64": lambda c: replace(c, policy_version=c.policy_version[:1]),
    "'q_taken' is": lambda c: replace(c, q_taken=c.q_taken[:1]),
    "'value' is": lambda c: replace(c, value=c.value.astype(np.float16)),
    "differ from the schema in: observation.camera": lambda c: replace(
        c, observation={"policy": c.observation["policy"]}
    ),
    "differ from the schema in: observation.odd": lambda c: replace(c, observation={**c.observation, "odd": c.reward}),
    "'observation.camera' is": lambda c: replace(
        c, observation={**c.observation, "camera": c.observation["camera"][:, :, :1]}
    ),
    "'final.observation.policy' is": lambda c: _with_final(
        c, observation={**c.final.observation, "policy": c.final.observation["policy"][:1]}
    ),
    "'final.value' is": lambda c: _with_final(c, value=c.final.value[:1]),
    "'final.cut' is": lambda c: _with_final(c, cut=c.final.cut.astype(np.uint8)),
    "strictly increasing indices": lambda c: _with_final(c, step=c.final.step[::-1].copy()),
    "strictly  increasing indices": lambda c: _with_final(c, step=np.array([1, 1])),
    "strictly increasing indices ": lambda c: _with_final(c, step=np.array([1, 4])),
    "strictly increasing  indices": lambda c: _with_final(c, step=np.array([-1, 2])),
    "follow a valid step": lambda c: _with_final(c, step=np.array([1, 3])),
    "follow a valid  step": lambda c: _with_final(c, step=np.array([0, 2])),
    "follow  a valid step": lambda c: _with_final(c, cut=np.array([True, False])),
}


@pytest.mark.parametrize("why", BREAK)
def test_what_does_not_fit_is_refused(why: str) -> None:
    chunk = make_chunk(2, 2, flags=ENDED)
    with pytest.raises(SchemaError, match=" ".join(why.split())):
        BREAK[why](chunk).check(SCHEMA)


def test_lanes_are_bounded_even_without_steps() -> None:
    lanes = MAX_CHUNK_ROWS + 1
    none: Any = np.zeros((0, lanes), np.float32)
    chunk = replace(make_chunk(0, 1), flags=none.astype(np.uint8), reward=none, q_taken=none, value=none)
    with pytest.raises(SchemaError, match=f"0 x {lanes} steps"):
        chunk.check(SCHEMA)


def test_no_final_observations_have_the_schemas_dtypes() -> None:
    none = FinalObservations.none(SCHEMA)
    assert len(none) == 0
    assert none.observation["camera"].shape == (0, 2, 2)
    assert none.observation["camera"].dtype == np.uint8
