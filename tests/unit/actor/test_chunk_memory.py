from __future__ import annotations

from dataclasses import replace
from typing import Any, Dict, List

import numpy as np
import pytest

from services.actor.chunk_memory import ChunkMemory, DeviceMemory, HostMemory, memory_on
from services.actor.chunk_writer import ChunkWriter
from services.actor.envs.contract import AutoReset
from services.agent.algorithm import Decision
from services.common.chunk import Chunk
from tests.fakes import SCHEMA, FakeClock, FakeEnv, same


def _device_memory() -> DeviceMemory:
    pytest.importorskip("torch")
    return DeviceMemory("cpu")


def test_the_memory_follows_the_device() -> None:
    assert isinstance(memory_on("cpu"), HostMemory)
    pytest.importorskip("torch")
    assert isinstance(memory_on("cuda:0"), DeviceMemory)  # made without touching the device


def test_what_was_fetched_is_not_changed_by_what_comes_next() -> None:
    memory = _device_memory()
    column = memory.allocate((3, 2), "float32")
    column[:] = 1.0
    fetched = memory.fetch({"reward": column[:2], "version": np.arange(2)})
    column[:] = 2.0
    np.testing.assert_array_equal(fetched["reward"], np.ones((2, 2), np.float32))
    assert fetched["reward"].dtype == np.float32
    np.testing.assert_array_equal(fetched["version"], [0, 1])


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int8", "uint8", "int32", "int64", "bool"])
def test_every_dtype_of_a_schema_comes_to_the_host_as_it_is(dtype: str) -> None:
    memory = _device_memory()
    column = memory.allocate((4, 2), dtype)
    column[:] = 1
    rows = memory.rows(column, np.array([0, 3]), dtype)
    fetched = memory.fetch({"whole": column, "rows": rows})
    assert fetched["whole"].dtype == fetched["rows"].dtype == np.dtype(dtype)
    assert fetched["rows"].shape == (2, 2)


@pytest.mark.parametrize("kind", ["host", "device"])
def test_indices_are_where_a_mask_is_true(kind: str) -> None:
    memory: ChunkMemory = HostMemory() if kind == "host" else _device_memory()
    mask: Any = np.array([True, False, True])
    if kind == "device":
        import torch

        mask = torch.from_numpy(mask)
    indices = memory.indices(mask)
    assert indices.dtype == np.int64
    assert indices.tolist() == [0, 2]


def _tensors(observation: Any) -> Any:
    import torch

    return {name: torch.from_numpy(array.copy()) for name, array in observation.items()}


def _record(autoreset: AutoReset, *, on_device: bool) -> List[Chunk]:
    """Chunks of a fake environment, whose tensors are numpy's or torch's."""
    env = FakeEnv(3, episode_steps=4, autoreset=autoreset)
    memory: ChunkMemory = _device_memory() if on_device else HostMemory()
    writer = ChunkWriter(
        SCHEMA, num_lanes=3, chunk_steps=5, autoreset=autoreset, clock=FakeClock(), memory=memory, lane_group=2
    )
    chunks = []
    observation: Any = env.reset(0)
    given: Dict[str, Any]
    for number in range(12):
        action = np.full((3, 1), number / 10, np.float32)
        decision: Any = Decision(action, action[:, 0] + 1, action[:, 0] + 2)
        given = _tensors(observation) if on_device else observation
        if on_device:
            import torch

            decision = Decision(*(torch.from_numpy(each.copy()) for each in vars(decision).values()))
        writer.record_decision(given, decision, number)
        step = env.step(action)
        if on_device:
            flags = {n: torch.from_numpy(getattr(step, n)) for n in ("reward", "terminated", "truncated", "valid")}
            true_next = step.true_next_observation
            step = replace(
                step,
                observation=_tensors(step.observation),
                true_next_observation=None if true_next is None else _tensors(true_next),
                **flags,
            )
        chunk = writer.record_outcome(step, lambda rows: rows["policy"][:, 0] + 7, newest_version=number)
        observation = {name: np.asarray(tensor) for name, tensor in step.observation.items()}
        if chunk is not None:
            chunks.append(chunk)
    given = _tensors(observation) if on_device else observation
    tail = writer.cut(given, lambda rows: rows["policy"][:, 0] + 7)
    assert tail is not None
    return [*chunks, tail]


@pytest.mark.parametrize("autoreset", [AutoReset.SAME_STEP, AutoReset.NEXT_STEP])
def test_chunks_of_tensors_are_those_of_arrays(autoreset: AutoReset) -> None:
    pytest.importorskip("torch")
    host, device = _record(autoreset, on_device=False), _record(autoreset, on_device=True)
    assert [chunk.num_steps for chunk in host] == [5, 5, 2]
    assert sum(len(chunk.final) for chunk in host) >= 3
    for one, other in zip(host, device):
        other.check(SCHEMA)
        assert same(one, other)
