"""What is sampled: a batch of n-step transitions, as numpy columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Tuple, Union

import numpy as np
import numpy.typing as npt

from services.common.schema import MAX_SHOWN, Schema, SchemaError

Part = Union[slice, "npt.NDArray[np.int64]"]


@dataclass(frozen=True)
class Stamps:
    """Where the age of N drawn items comes from: versions that were known on an item's way, and seconds of each hop.

    Each process adds durations of its own clock; nothing compares clocks of two machines.
    """

    actor_index: npt.NDArray[Any]  # <uint32>[N], places in `actor_names`
    actor_names: Tuple[str, ...]
    known_version: npt.NDArray[np.int64]  # [N], newest that the actor knew at the end of the item's chunk
    arrival_version: npt.NDArray[np.int64]  # [N], newest that the replay knew when it acknowledged the chunk
    sampling_version: int  # newest that the replay knew at the draw
    acting_s: npt.NDArray[np.float32]  # [N], from the item's first step to the end of its chunk
    transit_s: npt.NDArray[np.float32]  # [N], from there to the insertion: queued, held by the replay, on the wire
    ring_s: npt.NDArray[np.float32]  # [N], from the insertion to the draw

    def at(self, part: Part) -> Stamps:
        """The stamps of some items: a slice of these, or those at <int64>[M]."""
        return Stamps(
            actor_index=self.actor_index[part],
            actor_names=self.actor_names,
            known_version=self.known_version[part],
            arrival_version=self.arrival_version[part],
            sampling_version=self.sampling_version,
            acting_s=self.acting_s[part],
            transit_s=self.transit_s[part],
            ring_s=self.ring_s[part],
        )


@dataclass(frozen=True)
class DrawnKeys:
    """N items that were drawn, by key: all that the replay says to a learner who gathers rows from the mapped ring."""

    keys: npt.NDArray[np.int64]  # [N], of the start rows
    probability: npt.NDArray[np.float64]  # [N]
    priority: npt.NDArray[np.float64]  # [N]
    times_sampled: npt.NDArray[np.int64]  # [N]
    bootstrap_keys: npt.NDArray[np.int64]  # [N], of the rows that hold the next observations
    stamps: Optional[Stamps] = None  # None in the replay, which keeps them apart

    def split(self, batch_size: int) -> List[DrawnKeys]:
        """The same items as draws of `batch_size`, which divides their number; nothing is copied."""
        return [self._part(slice(at, at + batch_size)) for at in range(0, len(self.keys), batch_size)]

    def at(self, places: npt.NDArray[np.int64]) -> DrawnKeys:
        """The items at `places` <int64>[M] of these."""
        return self._part(places)

    def _part(self, part: Part) -> DrawnKeys:
        return DrawnKeys(
            keys=self.keys[part],
            probability=self.probability[part],
            priority=self.priority[part],
            times_sampled=self.times_sampled[part],
            bootstrap_keys=self.bootstrap_keys[part],
            stamps=self.stamps.at(part) if self.stamps is not None else None,
        )


@dataclass
class Batch:
    """N n-step transitions, drawn by the replay's selector.

    The item that starts at step (t, lane) holds R = sum_k gamma^k r_{t+k} over the k < K steps up to n or to the
    episode's end, and discount = gamma^K, or 0 where the episode terminated.
    """

    keys: npt.NDArray[np.int64]  # [N], ring keys of the start rows
    probability: npt.NDArray[np.float64]  # [N], P: chance of one draw, priority part only
    priority: npt.NDArray[np.float64]  # [N], raw p at the draw
    times_sampled: npt.NDArray[np.int64]  # [N], draws of the item up to and with this one
    observation: Dict[str, npt.NDArray[Any]]  # name -> [N, ...]
    action: npt.NDArray[Any]  # <float32>[N, A] or <int64>[N]
    n_step_return: npt.NDArray[np.float32]  # [N]
    discount: npt.NDArray[np.float32]  # [N]
    next_observation: Dict[str, npt.NDArray[Any]]  # name -> [N, ...], true final observation at an episode's end
    policy_version: npt.NDArray[np.int64]  # [N], of the start step
    num_items: int  # items in the table when the batch was drawn: the N of the importance weights
    stamps: Optional[Stamps] = None  # None in a batch that no replay drew

    def __len__(self) -> int:
        return len(self.keys)

    def check(self, schema: Schema) -> None:
        """Compare the rows with `schema`.

        Raises:
            SchemaError: a tensor is missing, is none of the schema's, or has another dtype or shape.
        """
        n = len(self)
        want = {f"observation {s.name!r}": (s.dtype, (n, *s.shape)) for s in schema.observation}
        want.update({f"next {name}": spec for name, spec in tuple(want.items())})
        want["action"] = (schema.action.dtype, (n, *schema.action.shape))
        got = {f"observation {name!r}": column for name, column in self.observation.items()}
        got.update({f"next observation {name!r}": column for name, column in self.next_observation.items()})
        got["action"] = self.action
        if set(got) != set(want):
            raise SchemaError(
                f"the batch differs from the schema in: {', '.join(sorted(set(got) ^ set(want))[:MAX_SHOWN])}"
            )
        for name, column in got.items():
            dtype, shape = want[name]
            if column.dtype != np.dtype(dtype) or column.shape != shape:
                raise SchemaError(
                    f"{name} is {column.dtype}{list(column.shape)}; the schema asks for {dtype}{list(shape)}"
                )

    def split(self, batch_size: int) -> List[Batch]:
        """The same items as batches of `batch_size`, which divides their number; nothing is copied."""
        return [self._part(slice(at, at + batch_size)) for at in range(0, len(self), batch_size)]

    def at(self, places: npt.NDArray[np.int64]) -> Batch:
        """The items at `places` <int64>[M] of these."""
        return self._part(places)

    def _part(self, part: Union[slice, npt.NDArray[np.int64]]) -> Batch:
        return Batch(
            keys=self.keys[part],
            probability=self.probability[part],
            priority=self.priority[part],
            times_sampled=self.times_sampled[part],
            observation={name: rows[part] for name, rows in self.observation.items()},
            action=self.action[part],
            n_step_return=self.n_step_return[part],
            discount=self.discount[part],
            next_observation={name: rows[part] for name, rows in self.next_observation.items()},
            policy_version=self.policy_version[part],
            num_items=self.num_items,
            stamps=self.stamps.at(part) if self.stamps is not None else None,
        )
