"""Refusals: chunks that can never be applied, whatever comes before them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from services.common.chunk import Chunk
from services.replay.table_info import TableSettings

WORDS = ("too_large", "too_many_steps", "version_ahead")


@dataclass(frozen=True)
class Refusal:
    """Why a chunk is refused."""

    word: str  # one of WORDS, for the count
    sentence: str  # for the actor


def why_refused(chunk: Chunk, settings: TableSettings, newest_version: int) -> Optional[Refusal]:
    """Judge a chunk by itself; None if nothing speaks against it.

    Args:
        chunk: columns that fit the schema.
        settings: of the table.
        newest_version: the chief's, as far as the replay heard; 0: it heard of none, as after its own restart.
    """
    rows = chunk.flags.size + len(chunk.final)
    if rows > settings.capacity:
        return Refusal(
            "too_large", f"the chunk has {rows} rows and the table only {settings.capacity}; send smaller chunks"
        )
    if settings.samples_per_insert > 0.0 and chunk.num_valid > settings.max_chunk_steps:
        return Refusal(
            "too_many_steps",
            f"the chunk has {chunk.num_valid} steps; with samples_per_insert set, the rate limiter was made for at "
            f"most max_chunk_steps {settings.max_chunk_steps}; send smaller chunks or raise max_chunk_steps",
        )
    claimed = int(chunk.policy_version.max()) if chunk.num_steps > 0 else 0
    if newest_version > 0 and claimed > newest_version + settings.max_version_lead:
        return Refusal(
            "version_ahead",
            f"the chunk claims policy version {claimed}, but the chief's newest is {newest_version}, and a step may be "
            f"at most {settings.max_version_lead} ahead of it; stamp each step with the version that chose its action",
        )
    return None
