"""Files of TensorBoard events that stay bounded: curves are thinned out, and none is cut off."""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import Dict, Iterator, List, NamedTuple

from services.common.files import make_atomically
from services.common.thinning import evenly

FRAME_BYTES = 16  # of a record beside its data: length and two checksums (the TFRecord format)
_HEAD = struct.Struct("<QI")
_NUMBERED = re.compile(r"\.(\d{4,})$")


class _Record(NamedTuple):
    tag: str  # the metric's name; empty for a file's own head
    updates: int
    framed: bytes


def event_files(folder: Path) -> List[Path]:
    """The event files of a folder, the oldest first; what is being written aside is none."""
    return sorted(folder.glob("events.out.tfevents.*"))


def next_suffix(folder: Path) -> str:
    """The end of a new file's name: their other parts are the second and the host, which two files may share."""
    found = [_NUMBERED.search(file.name) for file in event_files(folder)]
    return f".{1 + max((int(match.group(1)) for match in found if match), default=0):04d}"


def thin_out(folder: Path) -> None:
    """Make one file of all, with at most half of each metric's points, evenly spread and its newest among them.

    Metrics with less than half as many points as the others have on average keep theirs. About a quarter of all points
    goes, or more. What a crash left unfinished at the end of a file is left out.

    Raises:
        UserError: the disk is full; the files are untouched.
    """
    files = event_files(folder)
    if not files:
        return
    curves: Dict[str, List[int]] = {}
    for file in files:
        for record in _records(file):
            curves.setdefault(record.tag, []).append(record.updates)
    rare = sum(map(len, curves.values())) / (2 * len(curves)) if curves else 0
    kept = {
        tag: set(evenly(curve, max(2, len(curve) // 2)) if len(curve) >= rare else range(len(curve)))
        for tag, curve in curves.items()
    }
    kept[""] = {0}  # of the heads of the files, one

    def write(aside: Path) -> None:
        seen: Dict[str, int] = dict.fromkeys(curves, -1)
        with aside.open("wb") as stream:
            for file in files:
                for record in _records(file):
                    seen[record.tag] += 1
                    if seen[record.tag] in kept[record.tag]:
                        stream.write(record.framed)

    make_atomically(files[0], write)
    for file in files[1:]:
        file.unlink()


def _records(file: Path) -> Iterator[_Record]:
    """The whole records of a file."""
    from tensorboardX.proto import event_pb2

    data = file.read_bytes()
    start = 0
    while start + FRAME_BYTES <= len(data):
        length, _checksum = _HEAD.unpack_from(data, start)
        end = start + FRAME_BYTES + length
        if end > len(data):
            return
        event = event_pb2.Event.FromString(data[start + _HEAD.size : end - 4])
        tag = event.summary.value[0].tag if event.summary.value else ""
        yield _Record(tag, event.step, data[start:end])
        start = end
