"""Moments of observations: count, mean and squared deviations, which add up over chunks, lives and shards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Iterable, List, Mapping, Tuple

import numpy as np
import numpy.typing as npt

from services.common.schema import Schema
from shoal.v1 import replay_pb2

RAW_DTYPES = ("uint8", "bool")  # images are scaled by their range, and flags are what they are


def normalized_tensors(schema: Schema) -> Tuple[str, ...]:
    """Names of the observation tensors that have moments: all but images and flags."""
    return tuple(spec.name for spec in schema.observation if spec.dtype not in RAW_DTYPES)


@dataclass(frozen=True)
class Moments:
    """Moments of each element of one tensor, over `count` steps."""

    count: int
    mean: npt.NDArray[np.float64]  # [size]
    squares: npt.NDArray[np.float64]  # [size], sum over the steps of (value - mean)^2

    @classmethod
    def none(cls, size: int) -> Moments:
        """Of no step at all."""
        return cls(0, np.zeros(size), np.zeros(size))

    @classmethod
    def of(cls, rows: npt.NDArray[Any]) -> Moments:
        """Of N steps, [N, ...] of any dtype."""
        values = rows.reshape(len(rows), int(np.prod(rows.shape[1:], dtype=np.int64))).astype(np.float64)
        if not len(values):
            return cls.none(values.shape[1])
        mean = values.mean(axis=0)
        values -= mean
        return cls(len(values), mean, np.einsum("ij,ij->j", values, values))

    def merged(self, other: Moments) -> Moments:
        """Of both together; the order does not matter (Chan et al. 1979: the pairwise form of Welford's recursion)."""
        count = self.count + other.count
        if count == 0:
            return self
        delta = other.mean - self.mean
        return Moments(
            count,
            self.mean + delta * (other.count / count),
            self.squares + other.squares + delta * delta * (self.count * other.count / count),
        )

    def deviation(self) -> npt.NDArray[np.float64]:
        """Standard deviation over the steps, <float64>[size]; 0 of no step."""
        deviation: npt.NDArray[np.float64] = np.sqrt(self.squares / max(1, self.count))
        return deviation


def merge_shards(shards: Iterable[Mapping[str, Moments]]) -> Dict[str, Moments]:
    """Moments by tensor over several replays, each of which saw steps of its own."""
    merged: Dict[str, Moments] = {}
    for shard in shards:
        for name, moments in shard.items():
            merged[name] = merged[name].merged(moments) if name in merged else moments
    return merged


def encode_moments(moments: Mapping[str, Moments]) -> List[replay_pb2.ObservationMoments]:
    """As `GetInfo` sends them."""
    return [
        replay_pb2.ObservationMoments(
            name=name, count=its.count, mean=its.mean.tobytes(), squares=its.squares.tobytes()
        )
        for name, its in moments.items()
    ]


def decode_moments(messages: Iterable[replay_pb2.ObservationMoments]) -> Dict[str, Moments]:
    """The inverse of `encode_moments`.

    Raises:
        ValueError: a message holds no whole numbers of 8 bytes.
    """
    return {
        message.name: Moments(
            message.count, np.frombuffer(message.mean, np.float64), np.frombuffer(message.squares, np.float64)
        )
        for message in messages
    }
