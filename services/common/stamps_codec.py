"""The stamps of drawn items as they travel: 24 bytes an item."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Tuple

import numpy as np
import numpy.typing as npt

from services.common.batch import Stamps
from services.common.schema import SchemaError


@dataclass(frozen=True)
class StampSource:
    """What a Sample's response says of all its stamps."""

    sampling_version: int
    actor_names: Tuple[str, ...]


@dataclass(frozen=True)
class PackedStamps:
    """Stamps of N items: columns of four bytes an item, named as the fields of `SampledItems`.

    A version is its last 32 bits: the receiver has the one at the draw, from which none is 2^31 away.
    """

    source: StampSource
    actor_index: npt.NDArray[np.uint32]
    known_version: npt.NDArray[np.uint32]
    arrival_version: npt.NDArray[np.uint32]
    acting_seconds: npt.NDArray[np.float32]
    transit_seconds: npt.NDArray[np.float32]
    age_seconds: npt.NDArray[np.float32]

    def unpack(self) -> Stamps:
        """The stamps themselves; versions ahead of the one at the draw count as that.

        Raises:
            SchemaError: an item is of an actor that `source` does not name.
        """
        index, num_names = self.actor_index, len(self.source.actor_names)
        if len(index) and int(index.max()) >= num_names:
            raise SchemaError(f"an item is of actor {int(index.max())}, but only {num_names} were named")
        newest = self.source.sampling_version
        return Stamps(
            actor_index=index,
            actor_names=self.source.actor_names,
            known_version=_whole(self.known_version, newest),
            arrival_version=_whole(self.arrival_version, newest),
            sampling_version=newest,
            acting_s=self.acting_seconds,
            transit_s=self.transit_seconds,
            ring_s=self.age_seconds,
        )


def last_bits(version: int) -> int:
    """What travels of a version."""
    return version & 0xFFFFFFFF


def _whole(bits: npt.NDArray[np.uint32], newest: int) -> npt.NDArray[np.int64]:
    behind = (np.uint32(last_bits(newest)) - bits).view(np.int32)
    return newest - np.maximum(behind, 0).astype(np.int64)
