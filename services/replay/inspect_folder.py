"""`python -m services.replay.inspect_folder DIR [--check] [--key K]`: what a ring's folder holds; takes no lock.

With `--check` the chunk log must be whole, and the rows of every whole chunk are compared with their CRC32C.
With `--key` it names the chunk that brought this row, by the log alone: whether the row is still there does not matter.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Iterator, List, Sequence, Tuple

import numpy as np

from services.common.chunk_id import chunk_id
from services.common.errors import EXIT_CRASH, EXIT_OK, EXIT_USER, UserError
from services.common.ring_layout import (
    CHUNKS_FOLDER,
    GUARDS_FILE,
    NUM_GUARDS,
    RingFormat,
    column_file,
    map_array,
    read_format,
)
from services.replay.footprint import in_words
from services.replay.history import History, check_complete, read_history
from services.replay.rebuild import damaged_chunks
from services.replay.ring import Ring
from services.replay.ring_folder import boot_id, owner_of

READ_ATTEMPTS = 5  # of a ring in use a segment may go between the look and the read
EXIT_BROKEN_PIPE = 141  # 128 plus SIGPIPE, as a shell has it


def main(arguments: Sequence[str]) -> int:
    """Print what is in a folder; the exit code is 1 if `--check` found damaged rows, 2 if the folder cannot be read."""
    words = [word for word in arguments if word != "--check"]
    key = -1
    if len(words) == 3 and words[1] == "--key" and words[2].isdecimal():
        key = int(words[2])
        del words[1:]
    if len(words) != 1 or words[0].startswith("-"):
        print("usage: python -m services.replay.inspect_folder DIR [--check] [--key K]", file=sys.stderr)
        return EXIT_USER
    try:
        exit_code = _inspect(Path(words[0]), with_check="--check" in arguments, key=key)
        sys.stdout.flush()
    except UserError as error:
        print(f"shoal replay inspect: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        # The reader is gone; the interpreter's own flush at exit must not fail for it a second time.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    return exit_code


def _inspect(folder: Path, *, with_check: bool, key: int) -> int:
    ring_format = read_format(folder)
    history = _read(folder, ring_format, strict=False)
    if key >= 0:
        print(f"key {key} came with chunk={chunk_of(history, key)}")
        return EXIT_OK
    for name, text in describe(folder, ring_format, history):
        print(f"{name:<14} {text}")
    if not with_check:
        return EXIT_OK
    damaged = check(folder, ring_format)
    print(f"{'damaged':<14} {len(damaged)} chunks" + "".join(f", from key {key}" for key in damaged[:10]))
    return EXIT_CRASH if damaged else EXIT_OK


def _read(folder: Path, ring_format: RingFormat, *, strict: bool) -> History:
    def read() -> History:
        return read_history(folder / CHUNKS_FOLDER, 1, 0.0, capacity=ring_format.capacity, strict=strict)

    for _ in range(READ_ATTEMPTS - 1):
        try:
            return read()
        except FileNotFoundError:
            continue
    return read()


def describe(folder: Path, ring_format: RingFormat, history: History) -> Iterator[Tuple[str, str]]:
    """Each line as (name, text)."""
    counts, owner = history.counts, owner_of(folder)
    now_s = time.time()
    rows = counts.reserved - _oldest_key(folder, ring_format, history)
    steps = counts.steps
    yield "folder", str(folder.resolve())
    yield "in use", f"by process {owner}" if owner else "by nobody"
    yield "format", f"version {ring_format.format_version}, run {ring_format.run!r}, schema {ring_format.schema.digest}"
    for spec in ring_format.schema.observation:
        yield "observation", f"{spec.name} {spec.dtype}{list(spec.shape)}"
    action = ring_format.schema.action
    yield "action", f"{action.num_actions} choices" if action.is_discrete else f"{action.dtype}{list(action.shape)}"
    yield "items", f"of n_step {ring_format.n_step} and discount {ring_format.discount:g}"
    yield "rows", f"{rows} of {ring_format.capacity}, keys {counts.reserved - rows} to {counts.reserved}"
    if rows < min(counts.reserved, ring_format.capacity):
        yield "a copy", "in part: older rows were overwritten before; the items and steps below are its log's"
    yield "can be drawn", f"{steps.resident - steps.unripe} items"
    for name, count in vars(steps).items():
        yield "steps", f"{name} {count}"
    yield "limiter", f"{counts.inserted} inserted, {counts.sampled} sampled"
    versions = history.versions
    if versions.newest_version:
        yield "learner", f"version {versions.newest_version} after {versions.newest_updates} updates, as last heard"
    resident = _resident(history, counts.reserved - rows)
    if resident:
        ages = ", ".join(f"{now_s - float(history.chunks[at]['wall_s']):.1f}" for at in (resident[0], resident[-1]))
        yield "chunks", f"{len(resident)} in the ring, oldest and newest {ages} s old"
    last_s = {int(chunk["actor"]): float(chunk["wall_s"]) for chunk in history.chunks}
    for record in history.admission.actors.values():
        seen = f"{now_s - last_s[record.index]:.1f} s ago" if record.index in last_s else "before what the log holds"
        acknowledged = f"{record.acknowledged_steps} steps acknowledged"
        yield "actor", f"{record.name} incarnation {record.incarnation:x}, {acknowledged}, last chunk {seen}"
    yield "on disk", in_words(sum(file.stat().st_blocks * 512 for file in folder.rglob("*") if file.is_file()))


def _oldest_key(folder: Path, ring_format: RingFormat, history: History) -> int:
    """Of the rows that the folder holds; a copy that nobody has opened may hold fewer than its log tells.

    Raises:
        UserError: the guards of a copy are missing or damaged.
    """
    reserved = history.counts.reserved
    if not ring_format.boot_id:
        guards, _ = map_array(folder / GUARDS_FILE, "int64", (NUM_GUARDS,), writable=False)
        reserved = max(reserved, int(guards[0]))
    return min(max(0, reserved - ring_format.capacity), history.counts.reserved)


def chunk_of(history: History, key: int) -> str:
    """Name of the chunk that brought the row `key`.

    Raises:
        UserError: the log holds no such chunk.
    """
    chunks = history.chunks
    place = int(np.searchsorted(chunks["first_key"], key, side="right")) - 1
    for chunk in chunks[place : place + 1] if place >= 0 else ():
        rows = int(chunk["num_steps"]) * int(chunk["num_lanes"]) + int(chunk["num_final"])
        if key < int(chunk["first_key"]) + rows:
            name = history.admission.names[int(chunk["actor"])]
            return chunk_id(name, int(chunk["incarnation"]), int(chunk["sequence"]), int(chunk["lane_group"]))
    raise UserError(f"the chunk log holds no chunk with the row {key}: it is too old, or was never written")


def _resident(history: History, oldest_key: int) -> List[int]:
    chunks = history.chunks
    sizes = chunks["num_steps"].astype(np.int64) * chunks["num_lanes"] + chunks["num_final"]
    there = (sizes > 0) & (chunks["first_key"] + sizes > oldest_key)
    places: List[int] = np.flatnonzero(there).tolist()
    return places


def check(folder: Path, ring_format: RingFormat) -> List[int]:
    """First keys of the whole chunks whose rows do not match their CRC32C; those overwritten meanwhile are left out.

    Raises:
        UserError: the chunk log is damaged, or lacks what was acknowledged; the sentence is the replay's own.
    """
    guards, _ = map_array(folder / GUARDS_FILE, "int64", (NUM_GUARDS,), writable=False)
    committed = int(guards[1])  # before the log is read, which is never behind it
    history = _read(folder, ring_format, strict=True)
    ring = Ring(
        ring_format.capacity,
        ring_format.schema,
        lambda name, shape, dtype: map_array(column_file(folder, name), dtype.name, shape, writable=False)[0],
        guards.copy(),
    )
    if ring_format.boot_id == boot_id():  # the machine has not died since: nothing that was written may be missing
        check_complete(history, committed=committed, reserved=int(guards[0]), oldest_key=ring.oldest_key)
    found = damaged_chunks(ring, history.chunks) - history.dropped_keys
    oldest = max(0, int(guards[0]) - ring_format.capacity)  # read again: the ring may be in use
    return sorted(key for key in found if key >= oldest)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
