"""Tensors of a simulator's device as numpy arrays: the one place where an adapter copies from and to a device."""

from __future__ import annotations

from typing import Any, Callable, Dict, Mapping, Protocol

import numpy as np
import numpy.typing as npt


class DeviceTensor(Protocol):
    """What adapters use of a torch tensor."""

    @property
    def shape(self) -> Any: ...

    def detach(self) -> Any: ...


ToDevice = Callable[[npt.NDArray[Any]], Any]  # an array -> a tensor of its own memory on the simulator's device


def is_tensor(value: Any) -> bool:
    """Whether this is a tensor of torch (or one like it), and no array."""
    return hasattr(value, "detach") and hasattr(value, "cpu")


def to_host(value: Any) -> npt.NDArray[Any]:
    """A tensor or array as an array of this process's memory; an array, or a tensor of the CPU, is not copied."""
    return np.asarray(value.detach().cpu().numpy() if is_tensor(value) else value)


def copy_to_host(tensors: Mapping[str, Any]) -> Dict[str, npt.NDArray[Any]]:
    """Copy what a step returned, once a step and all of it here: simulators reuse their buffers in the next one.

    Args:
        tensors: name -> tensor [B, ...], on any device.

    Returns:
        name -> array [B, ...], of memory that nobody else writes to.
    """
    # A tensor of the CPU shares its memory with what `numpy()` returns; one of a device has been copied by `cpu()`.
    return {name: np.array(to_host(tensor)) for name, tensor in tensors.items()}


def torch_sender(device: str) -> ToDevice:
    """How actions travel to a torch device; importing torch is this function's doing.

    Args:
        device: as torch names it, "cuda:0" or "cpu".
    """
    import torch

    def send(array: npt.NDArray[Any]) -> Any:
        return torch.tensor(array, device=device)  # a copy: a simulator may keep it, and write to it

    return send
