"""Footprint: what a ring of so many rows takes, in bytes, and how many rows a budget of bytes allows."""

from __future__ import annotations

import os
from pathlib import Path

from services.common.errors import UserError
from services.common.ring_layout import all_columns
from services.common.schema import Schema
from services.replay.chunk_log import SEGMENT_BYTES

TREE_NODE_BYTES = 8
LOG_BYTES_PER_ROW = 4  # of chunks with some 70 rows; larger ones take less
LOG_BYTES = 2 * SEGMENT_BYTES  # the segment that is being written, and the one before it


class TableTooLarge(UserError):
    """There is no room for a table of this schema: that of another caller may fit."""


def row_bytes(schema: Schema) -> int:
    """Bytes of one row in all columns."""
    return sum(spec.row_bytes for spec in all_columns(schema))


def column_bytes(capacity: int, schema: Schema) -> int:
    """Bytes of all columns."""
    return capacity * row_bytes(schema)


def total_bytes(capacity: int, schema: Schema) -> int:
    """Bytes of columns, sum tree (two nodes for each leaf of the next power of two) and chunk log."""
    tree = 2 * TREE_NODE_BYTES << (capacity - 1).bit_length()
    return column_bytes(capacity, schema) + tree + capacity * LOG_BYTES_PER_ROW + LOG_BYTES


def rows_for(budget_bytes: int, schema: Schema) -> int:
    """The most rows whose `total_bytes` fit into the budget.

    Raises:
        TableTooLarge: not even one does.
    """
    if total_bytes(1, schema) > budget_bytes:
        raise TableTooLarge(
            f"replay.memory = {budget_bytes} bytes holds not one row ({row_bytes(schema)} bytes, and {LOG_BYTES} for "
            "the log); raise it"
        )
    low, high = 1, budget_bytes
    while low < high:
        middle = (low + high + 1) // 2
        if total_bytes(middle, schema) <= budget_bytes:
            low = middle
        else:
            high = middle - 1
    return low


def available_memory_bytes() -> int:
    """Memory that this machine can give without swapping (Linux: MemAvailable)."""
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def refuse_more_than_memory(rows: int, takes_bytes: int) -> None:
    """Refuse a table that the machine cannot hold: taken row by row, it would end the process when nobody looks.

    Raises:
        TableTooLarge: it takes more memory than there is.
    """
    has = available_memory_bytes()
    if takes_bytes > has:
        raise TableTooLarge(
            f"the table of {rows} rows takes {in_words(takes_bytes)}, and this machine has {in_words(has)} of memory "
            "left: lower replay.capacity, or set replay.data_dir to have the ring on a disk"
        )


def in_words(num_bytes: float) -> str:
    """As a person reads it: 1.5 GiB."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.0f} {unit}" if unit == "bytes" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.1f} TiB"
