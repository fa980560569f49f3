"""Recorded gradients in a file that every case maps: one flat row a push, with the tensors' names and shapes beside."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Dict, Mapping, Sequence, Tuple

import numpy as np
import numpy.typing as npt

Gradients = Dict[str, npt.NDArray[np.float32]]

POWER_SGD_RANK = 4  # of the approximations that DDP's hook sends


@dataclass(frozen=True)
class RecordingInfo:
    """Where gradients come from."""

    num_parameters: int  # of policy and critics together
    hidden_size: int
    num_updates: int  # before and with the last push
    num_pushes: int
    seed: int
    seconds: float  # that the recording took


class Recording:
    """Pushes of a file; nothing is read before it is asked for."""

    def __init__(self, file: Path) -> None:
        described = json.loads(file.with_suffix(".json").read_text(encoding="utf-8"))
        self.info = RecordingInfo(**described["info"])
        self.shapes: Dict[str, Tuple[int, ...]] = {name: tuple(shape) for name, shape in described["shapes"].items()}
        self._rows = np.load(file, mmap_mode="r")

    def __len__(self) -> int:
        return len(self._rows)

    def push(self, index: int) -> Gradients:
        """A copy of one push, name -> <float32>[shape]; its arrays lie one behind the other, as a learner's do."""
        row, start, gradients = np.array(self._rows[index]), 0, {}
        for name, shape in self.shapes.items():
            end = start + int(np.prod(shape, dtype=np.int64))
            gradients[name] = row[start:end].reshape(shape)
            start = end
        return gradients


def write(file: Path, pushes: Sequence[Mapping[str, npt.NDArray[np.float32]]], info: RecordingInfo) -> None:
    """Write pushes, all of the same tensors."""
    file.parent.mkdir(parents=True, exist_ok=True)
    size = sum(gradient.size for gradient in pushes[0].values())
    rows = np.lib.format.open_memmap(file, mode="w+", dtype=np.float32, shape=(len(pushes), size))
    for row, push in zip(rows, pushes):
        np.concatenate([gradient.reshape(-1) for gradient in push.values()], out=row)
    rows.flush()
    shapes = {name: gradient.shape for name, gradient in pushes[0].items()}
    described = {"info": asdict(info), "shapes": shapes}
    file.with_suffix(".json").write_text(json.dumps(described), encoding="utf-8")
