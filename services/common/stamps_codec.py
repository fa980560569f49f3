"""Between numpy and the wire: the stamps of drawn items, in 24 bytes an item."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Sequence, Tuple

import numpy as np
import numpy.typing as npt

from services.common.batch import Stamps
from services.common.schema import SchemaError
from shoal.v1 import replay_pb2


@dataclass(frozen=True)
class StampSource:
    """What a Sample's response says of all its stamps."""

    sampling_version: int
    actor_names: Tuple[str, ...]


@dataclass(frozen=True)
class PackedStamps:
    """Stamps of N items as they travel: columns of four bytes an item.

    A version is its last 32 bits: the receiver has the one at the draw, from which none is 2^31 away.
    """

    source: StampSource
    actor_index: npt.NDArray[np.uint32]
    known_version: npt.NDArray[np.uint32]
    arrival_version: npt.NDArray[np.uint32]
    acting_s: npt.NDArray[np.float32]
    transit_s: npt.NDArray[np.float32]
    ring_s: npt.NDArray[np.float32]

    def unpack(self) -> Stamps:
        """The stamps themselves; versions ahead of the one at the draw count as that."""
        newest = self.source.sampling_version
        return Stamps(
            actor_index=self.actor_index,
            actor_names=self.source.actor_names,
            known_version=_whole(self.known_version, newest),
            arrival_version=_whole(self.arrival_version, newest),
            sampling_version=newest,
            acting_s=self.acting_s,
            transit_s=self.transit_s,
            ring_s=self.ring_s,
        )


def last_bits(version: int) -> int:
    """What travels of a version."""
    return version & 0xFFFFFFFF


def _whole(bits: npt.NDArray[np.uint32], newest: int) -> npt.NDArray[np.int64]:
    behind = (np.uint32(last_bits(newest)) - bits).view(np.int32)
    return newest - np.maximum(behind, 0).astype(np.int64)


def fill_stamps(messages: Sequence[replay_pb2.SampledBatch], stamps: PackedStamps) -> None:
    """Pack the stamps of K batches of one size into their messages, which have none."""
    columns = {
        "actor_index": stamps.actor_index,
        "known_version": stamps.known_version,
        "arrival_version": stamps.arrival_version,
        "acting_seconds": stamps.acting_s,
        "transit_seconds": stamps.transit_s,
        "age_seconds": stamps.ring_s,
    }
    size = 4 * len(stamps.actor_index) // max(1, len(messages))  # bytes of a batch's column
    for name, column in columns.items():
        data = column.tobytes()  # little-endian, as all that shoal runs on
        for place, message in enumerate(messages):
            setattr(message, name, data[place * size : (place + 1) * size])


def decode_stamps(message: replay_pb2.SampledBatch, n: int, source: StampSource) -> Stamps:
    """View the stamps of a batch of `n` items.

    Raises:
        SchemaError: a column is not of that length, or names an actor that is not there.
    """
    index = _column("actor_index", message.actor_index, "<u4", n)
    if n and int(index.max()) >= len(source.actor_names):
        raise SchemaError(f"an item is of actor {int(index.max())}, but only {len(source.actor_names)} were named")
    packed = PackedStamps(
        source=source,
        actor_index=index,
        known_version=_column("known_version", message.known_version, "<u4", n),
        arrival_version=_column("arrival_version", message.arrival_version, "<u4", n),
        acting_s=_column("acting_seconds", message.acting_seconds, "<f4", n),
        transit_s=_column("transit_seconds", message.transit_seconds, "<f4", n),
        ring_s=_column("age_seconds", message.age_seconds, "<f4", n),
    )
    return packed.unpack()


def join_stamps(parts: Sequence[Stamps]) -> Stamps:
    """The stamps of several batches of one response, one after the other; at least one."""
    return Stamps(
        actor_index=np.concatenate([part.actor_index for part in parts]),
        actor_names=parts[0].actor_names,
        known_version=np.concatenate([part.known_version for part in parts]),
        arrival_version=np.concatenate([part.arrival_version for part in parts]),
        sampling_version=parts[0].sampling_version,
        acting_s=np.concatenate([part.acting_s for part in parts]),
        transit_s=np.concatenate([part.transit_s for part in parts]),
        ring_s=np.concatenate([part.ring_s for part in parts]),
    )


def _column(name: str, data: bytes, dtype: str, n: int) -> npt.NDArray[Any]:
    if len(data) != 4 * n:
        raise SchemaError(f"column {name!r} has {len(data)} bytes; {n} items take {4 * n}")
    return np.frombuffer(data, dtype)
