"""Where a chunk's columns lie while they fill: in the host's memory, or beside a simulator on its GPU.

Columns on a GPU cross to the host once a chunk: all copies are started into pinned memory, then waited for together.
"""

from __future__ import annotations

from typing import Any, Dict, Mapping, Protocol, Tuple

import numpy as np
import numpy.typing as npt


class ChunkMemory(Protocol):
    """Makes columns, and brings them to the host."""

    def allocate(self, shape: Tuple[int, ...], dtype: str) -> Any:
        """A column of any content, that rows can be assigned to."""

    def indices(self, mask: Any) -> npt.NDArray[np.int64]:
        """Where <bool>[B] is true, on the host."""

    def rows(self, column: Any, indices: npt.NDArray[np.int64], dtype: str) -> Any:
        """A copy of some rows of [B, ...]."""

    def fetch(self, columns: Mapping[str, Any]) -> Dict[str, npt.NDArray[Any]]:
        """The columns as arrays of the host, which are the caller's to keep."""


class HostMemory:
    """Columns are numpy arrays; nothing moves."""

    def allocate(self, shape: Tuple[int, ...], dtype: str) -> npt.NDArray[Any]:
        """See `ChunkMemory`."""
        return np.empty(shape, dtype)

    def indices(self, mask: Any) -> npt.NDArray[np.int64]:
        """See `ChunkMemory`."""
        return np.flatnonzero(mask).astype(np.int64, copy=False)

    def rows(self, column: Any, indices: npt.NDArray[np.int64], dtype: str) -> npt.NDArray[Any]:
        """See `ChunkMemory`."""
        return np.array(column[indices], dtype)

    def fetch(self, columns: Mapping[str, Any]) -> Dict[str, npt.NDArray[Any]]:
        """See `ChunkMemory`."""
        return dict(columns)


class DeviceMemory:
    """Columns are torch tensors on a device. Tested on the CPU for what it does, not on a GPU for how fast.

    Args:
        device: of the simulator's tensors, as in "cuda:0".
    """

    def __init__(self, device: str) -> None:
        import torch

        self._device = torch.device(device)
        self._is_pinned = self._device.type == "cuda"

    def allocate(self, shape: Tuple[int, ...], dtype: str) -> Any:
        """See `ChunkMemory`."""
        import torch

        return torch.empty(shape, dtype=getattr(torch, dtype), device=self._device)

    def indices(self, mask: Any) -> npt.NDArray[np.int64]:
        """See `ChunkMemory`. It waits for the device: whether an episode ended decides what must be copied now."""
        indices: npt.NDArray[np.int64] = mask.nonzero()[:, 0].cpu().numpy()
        return indices

    def rows(self, column: Any, indices: npt.NDArray[np.int64], dtype: str) -> Any:
        """See `ChunkMemory`."""
        import torch

        return column[torch.from_numpy(indices).to(self._device)].to(getattr(torch, dtype))

    def fetch(self, columns: Mapping[str, Any]) -> Dict[str, npt.NDArray[Any]]:
        """See `ChunkMemory`. Columns that lie on the host already are handed on."""
        import torch

        copies: Dict[str, Any] = {}
        for name, column in columns.items():
            if isinstance(column, np.ndarray):
                continue
            copies[name] = torch.empty(column.shape, dtype=column.dtype, pin_memory=self._is_pinned)
            copies[name].copy_(column, non_blocking=True)
        if self._is_pinned:
            torch.cuda.current_stream(self._device).synchronize()
        return {
            name: column if isinstance(column, np.ndarray) else copies[name].numpy() for name, column in columns.items()
        }


def memory_on(device: str) -> ChunkMemory:
    """The memory for an environment whose observations lie on `device`."""
    return HostMemory() if device == "cpu" else DeviceMemory(device)
