"""Between numpy and the wire: the stamps of drawn items, in 24 bytes an item."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Sequence, Tuple

import numpy as np
import numpy.typing as npt

from services.common.batch import Stamps
from services.common.schema import SchemaError
from shoal.v1 import replay_pb2

_MAX_BEHIND = 2**32 - 1  # versions: what is further behind travels as this


@dataclass(frozen=True)
class StampSource:
    """What a Sample's response says of all its stamps."""

    sampling_version: int
    actor_names: Tuple[str, ...]


def fill_stamps(message: replay_pb2.SampledBatch, stamps: Stamps) -> None:
    """Pack the stamps of a batch into its message, which has none."""
    newest = stamps.sampling_version
    message.actor_index = stamps.actor_index.astype("<u4").tobytes()
    message.known_behind = _behind(newest, stamps.known_version)
    message.arrival_behind = _behind(newest, stamps.arrival_version)
    message.acting_seconds = stamps.acting_s.astype("<f4", copy=False).tobytes()
    message.transit_seconds = stamps.transit_s.astype("<f4", copy=False).tobytes()
    message.age_seconds = stamps.ring_s.astype("<f4", copy=False).tobytes()


def _behind(newest: int, versions: npt.NDArray[np.int64]) -> bytes:
    """How far `versions` are behind `newest`, in half the bytes; 0 for those ahead of it."""
    return (newest - versions).clip(0, _MAX_BEHIND).astype("<u4").tobytes()


def decode_stamps(message: replay_pb2.SampledBatch, n: int, source: StampSource) -> Stamps:
    """View the stamps of a batch of `n` items.

    Raises:
        SchemaError: a column is not of that length, or names an actor that is not there.
    """
    newest = source.sampling_version
    index = _column("actor_index", message.actor_index, "<u4", n)
    if n and int(index.max()) >= len(source.actor_names):
        raise SchemaError(f"an item is of actor {int(index.max())}, but only {len(source.actor_names)} were named")
    return Stamps(
        actor_index=index,
        actor_names=source.actor_names,
        known_version=newest - _column("known_behind", message.known_behind, "<u4", n).astype(np.int64),
        arrival_version=newest - _column("arrival_behind", message.arrival_behind, "<u4", n).astype(np.int64),
        sampling_version=newest,
        acting_s=_column("acting_seconds", message.acting_seconds, "<f4", n),
        transit_s=_column("transit_seconds", message.transit_seconds, "<f4", n),
        ring_s=_column("age_seconds", message.age_seconds, "<f4", n),
    )


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
