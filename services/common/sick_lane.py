"""What led to a value that is not finite, as the replay keeps it and `shoal doctor lane` reads it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Tuple

import numpy.typing as npt

from services.common.chunk_id import chunk_id
from services.common.sealed import unseal


@dataclass(frozen=True)
class SickLane:
    """What led to a value that is not finite: a lane's last good steps, and the bad one behind them."""

    actor: str
    incarnation: int
    lane_group: int
    lane: int
    sequence: int  # of the chunk
    step: int  # index of the bad step in the lane's life
    policy_version: int  # that chose the bad step's action
    bad_columns: Tuple[str, ...]  # of the bad step
    columns: Dict[str, npt.NDArray[Any]]  # name -> [S, ...], the bad step last; "final.observation.*" is [1, ...]

    @property
    def chunk(self) -> str:
        """Name of the chunk with the bad step."""
        return chunk_id(self.actor, self.incarnation, self.sequence, self.lane_group)


def load_dump(path: Path) -> SickLane:
    """Read a dump back.

    Raises:
        ValueError: it is damaged, or no dump; the message names the file.
    """
    try:
        columns, facts = unseal(path)
        known: Dict[str, Any] = {name: facts[name] for name in SickLane.__dataclass_fields__ if name != "columns"}
    except (ValueError, KeyError) as error:
        raise ValueError(f"{str(path)!r} is no quarantine dump that can be read: {error}") from None
    known["bad_columns"] = tuple(known["bad_columns"])
    return SickLane(columns=columns, **known)
