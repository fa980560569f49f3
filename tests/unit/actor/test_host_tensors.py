from __future__ import annotations

import numpy as np
import pytest

from services.actor.envs.host_tensors import copy_to_host, is_tensor, to_host, torch_sender
from tests.simulator_fakes import FakeTensor


def test_arrays_and_tensors_are_told_apart() -> None:
    assert is_tensor(FakeTensor(np.zeros(2)))
    assert not is_tensor(np.zeros(2))
    assert not is_tensor([0.0])


@pytest.mark.parametrize("device", ["cuda:0", "cpu"])
def test_copies_are_nobody_elses_memory(device: str) -> None:
    buffer, array = np.zeros(2, np.int64), np.ones(2)
    host = copy_to_host({"tensor": FakeTensor(buffer, device), "array": array})
    buffer[:] = 5
    array[:] = 5
    assert host["tensor"].tolist() == [0, 0]
    assert host["tensor"].dtype == np.int64
    assert host["array"].tolist() == [1, 1]


def test_torch_is_understood_both_ways() -> None:
    torch = pytest.importorskip("torch")
    action = np.zeros((2, 1), np.float32)
    sent = torch_sender("cpu")(action)
    assert isinstance(sent, torch.Tensor)
    sent.fill_(3.0)  # as a simulator may
    assert not action.any()
    assert to_host(sent.requires_grad_()).tolist() == [[3.0], [3.0]]
    flag = torch.tensor([1, 0])
    host = copy_to_host({"flag": flag})
    flag.zero_()
    assert host["flag"].tolist() == [1, 0]
