"""The run file's `[replay]`: the table, its sampling and its rate limiter."""

from __future__ import annotations

from typing import Optional, Tuple

from pydantic import ByteSize, Field, field_validator, model_validator
from typing_extensions import Annotated, Literal

from services.common.config.algorithms import Section
from services.common.config.values import Count, Names, Port, check_address

DEFAULT_CAPACITY = 1_000_000  # rows


class ReplaySection(Section):
    """`[replay]`: the table, its sampling and its rate limiter."""

    addresses: Annotated[Names, Field(min_length=1)] = ("127.0.0.1:7401",)
    """Where clients find the replay, and where it listens unless `listen` says otherwise."""
    listen: str = ""
    """Where the replay listens, where that is not how others reach it, as in 0.0.0.0:7401. Empty: at its address."""
    metrics_port: Port = 9401
    """Prometheus endpoint; 0: any free port."""
    capacity: Optional[Annotated[Count, Field(ge=1, le=10**12)]] = None
    """Rows: steps and final observations. Not given, nor `memory`: 1,000,000."""
    memory: Optional[ByteSize] = None
    """Bytes for everything that the table holds, as in "8GiB", instead of `capacity`."""
    data_dir: str = ""
    """Folder of rings that outlive their process. Empty: in memory, and under `shoal up` one in the run's folder."""
    n_step: Annotated[Count, Field(ge=1, le=1000)] = 3
    """Rewards summed in an item (n)."""
    discount: float = Field(0.99, gt=0, le=1)
    """Discount of a step (gamma)."""
    selector: Literal["prioritized", "uniform", "fifo"] = "prioritized"
    """How items are chosen: by priority, all alike, or the oldest first (a queue; needs max_times_sampled)."""
    max_times_sampled: Annotated[Count, Field(ge=0)] = 0
    """Draws after which an item leaves the sampler; 0: unlimited. With `fifo`, 1 makes an on-policy queue."""
    priority_rule: Literal["td_error", "td_error_visits"] = "td_error"
    """What p is made of: the TD error, or the TD error and how seldom the item was drawn."""
    td_weight: float = Field(0.7, ge=0, le=1)
    """Share of the TD error in `td_error_visits`; the rest is for items that were seldom drawn."""
    freshness_half_life_updates: float = Field(0.0, ge=0, allow_inf_nan=False)
    """An item whose policy is this many updates older is drawn half as often; 0: age does not count."""
    priority_exponent: float = Field(0.6, ge=0, le=1)
    """alpha: an item is drawn with a chance in proportion to p^alpha; 0 is uniform."""
    samples_per_insert: float = Field(0.0, ge=0, le=1_000_000)
    """Items drawn for each step inserted; 0: unlimited."""
    error_buffer: float = Field(0.0, ge=0)
    """Draws that either side may run ahead of samples_per_insert; 0: chosen from batch and chunk sizes."""
    min_size_to_sample: Annotated[Count, Field(ge=1)] = 1000
    """Items in the table before the first draw."""
    max_actor_silence_s: float = Field(30.0, gt=0)
    """An actor silent for longer is taken for dead: its open windows are closed."""
    max_peers: Annotated[Count, Field(ge=1, le=65_536)] = 4096
    """Names of actors that are let in over the ring's life; more are refused."""
    dump_dir: str = ""
    """Folder for lanes with values that are not finite. Empty: none, and under `shoal up` one in the run's folder."""
    max_dumps: Annotated[Count, Field(ge=0, le=100_000)] = 100
    """Such files that are kept, the newest; 0: none is written."""

    @property
    def listens_at(self) -> str:
        """Where the replay binds."""
        return self.listen or self.addresses[0]

    @property
    def capacity_rows(self) -> Optional[int]:
        """Rows, or None where `memory` decides: that takes the schema."""
        if self.capacity is None and self.memory is None:
            return DEFAULT_CAPACITY
        return self.capacity

    @model_validator(mode="after")
    def _check_one_size(self) -> ReplaySection:
        if self.capacity is not None and self.memory is not None:
            raise ValueError(
                f"replay.capacity = {self.capacity} and replay.memory = {self.memory.human_readable()} both say how "
                "large the table is; set one of them"
            )
        return self

    @field_validator("listen")
    @classmethod
    def _check_listen(cls, address: str) -> str:
        return check_address(address) if address else address

    @field_validator("addresses")
    @classmethod
    def _check_addresses(cls, addresses: Tuple[str, ...]) -> Tuple[str, ...]:
        for address in addresses:
            check_address(address)
        if len(addresses) > 1:
            raise ValueError(f"{len(addresses)} addresses; this version runs one replay, so give one")
        return addresses
