"""Rows of drawn items, gathered straight from the mapped ring of a replay on the same host."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Optional

import numpy as np

from services.common.batch import Batch, DrawnKeys
from services.common.errors import UserError
from services.common.ring_reader import RingReader
from services.learner.row_memory import RowMemory
from shoal.v1 import replay_pb2


class RingRows:
    """A replay's ring, attached read-only, and the nonce that proves it."""

    def __init__(self, folder: Path, nonce: str, rng: np.random.Generator) -> None:
        """Attach.

        Args:
            folder: where the ring lies.
            nonce: what its nonce file must hold.
            rng: chooses the items that stand in for overwritten ones.

        Raises:
            UserError: the folder is not that ring's, or cannot be read here.
        """
        self.nonce = nonce
        self.overwritten = 0  # items that were overwritten before their rows were read, ever
        self._reader = RingReader(folder, nonce)
        self._memory = RowMemory()
        self._rng = rng

    def gather(self, drawn: DrawnKeys, num_items: int) -> Optional[Batch]:
        """Copy the rows of `drawn`.

        Items that the replay has overwritten since they were drawn are replaced by others of the draw, chosen anew at
        random: `keys` then names an item twice.

        Returns:
            As many items as were drawn, or None if none of them is left.
        """
        rows, intact = self._reader.gather(drawn.keys, drawn.bootstrap_keys, self._memory.take)
        if not intact.all():
            left = np.flatnonzero(intact)
            self.overwritten += len(intact) - len(left)
            if len(left) == 0:
                return None
            chosen = np.arange(len(intact))
            chosen[~intact] = self._rng.choice(left, size=len(intact) - len(left))
            rows = {name: column[chosen] for name, column in rows.items()}
            drawn = drawn.at(chosen)
        observation = {name[12:]: column for name, column in rows.items() if name.startswith("observation.")}
        return Batch(
            keys=drawn.keys,
            probability=drawn.probability,
            priority=drawn.priority,
            times_sampled=drawn.times_sampled,
            observation=observation,
            action=rows["action"],
            n_step_return=rows["n_step_return"],
            discount=rows["discount"],
            next_observation={name: rows[f"next_observation.{name}"] for name in observation},
            policy_version=rows["policy_version"],
            num_items=num_items,
            stamps=drawn.stamps,
        )


def attach(info: replay_pb2.GetReplayInfoResponse, rng: np.random.Generator) -> RingRows:
    """Attach to the ring of the replay that gave `info`.

    Raises:
        UserError: it is in memory, on another machine, or cannot be read here; the message says which.
    """
    if platform.machine().lower() not in ("x86_64", "amd64"):  # the ring's guards need its order of loads and stores
        raise UserError(f"the mapped ring is tested on x86-64 alone, and this is {platform.machine()}")
    if not info.mapped_folder:
        raise UserError("the replay keeps its ring in memory: set replay.data_dir to have it mapped")
    return RingRows(Path(info.mapped_folder), f"{info.replay_incarnation:016x}", rng)
