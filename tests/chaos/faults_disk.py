"""Disks that are full, read-only, or hold other bytes than were written."""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Callable, Iterator, List

import numpy as np

from services.common.ring_layout import CHUNKS_FOLDER, FORMAT_FILE, column_file, read_format
from services.replay import records
from services.replay.chunk_log import SPARE_BYTES, segments_in
from tests.chaos.isolation import NAMESPACE, run
from tests.chaos.scenario import Scenario
from tests.chaos.trial import Trial

Fault = Callable[[Trial], None]

KIND = "disk"
RING_SETTINGS = {"replay.capacity": "60000"}
LEFT_BYTES = SPARE_BYTES + (6 << 10)  # of a log's file: room for two dozen records before a new one is needed


def small_disk(trial: Trial, folder: Path, megabytes: int) -> None:
    """Put a file system of its own under `folder`, for as long as the system lives."""
    run("mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder))
    trial.system.resources.callback(run, "umount", str(folder))


@contextlib.contextmanager
def filled(folder: Path) -> Iterator[None]:
    """No byte is left on the file system of `folder`."""
    file = folder / "somebody-elses"
    block = bytes(1 << 16)
    with file.open("wb", buffering=0) as stream, contextlib.suppress(OSError):
        while stream.write(block):
            pass
    try:
        yield
    finally:
        file.unlink()


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Nobody can open a file for writing in `folder`; who has one open goes on."""
    run("mount", "--bind", str(folder), str(folder))
    try:
        run("mount", "-o", "remount,bind,ro", str(folder))
        yield
    finally:
        run("umount", "--lazy", str(folder))


def flip(file: Path, offset: int, bits: int = 0xFF) -> None:
    """Make one byte another; the same again puts it back."""
    with file.open("r+b") as stream:
        stream.seek(offset)
        (byte,) = stream.read(1)
        stream.seek(offset)
        stream.write(bytes([byte ^ bits]))


def age_log(folder: Path) -> None:
    """Write on in a log, as a replay does that has run for hours, until its file is all but full."""
    segment = segments_in(folder)[-1].file
    data = segment.read_bytes()
    parsed = records.parse(data)
    record = records.pack_state(records.counts_of(parsed.records[-1]))
    count = (len(data) - LEFT_BYTES - parsed.end) // len(record)
    with segment.open("r+b") as stream:
        stream.seek(parsed.end)
        stream.write(record * max(0, count))


def full_under_the_log(trial: Trial) -> None:
    """The log of chunks needs a new file, and there is no room: inserts wait and say so."""
    small_disk(trial, trial.system.folder / "rings", 24)
    trial.begin()
    trial.kill("replay")
    age_log(trial.system.ring / CHUNKS_FOLDER)
    trial.start_and_measure("replay")
    with filled(trial.system.folder / "rings"):

        def held() -> bool:
            replay = trial.observer.replay
            return replay is not None and any("no space is left" in waiter.reason for waiter in replay.waiters)

        trial.until(held, "an insert that waits for room, and says so")
        trial.hold(3.0)
        mark = trial.mark()
    trial.works_again(mark, ("actor-0",), 10.0)


def on_small_disks(trial: Trial, fault: Fault, megabytes: int = 24) -> None:
    """Ring and run have disks of their own, so that one of them can be filled."""
    for folder in ("rings", "runs"):
        small_disk(trial, trial.system.folder / folder, megabytes)
    trial.begin()
    fault(trial)


def full_at_the_replays_start(trial: Trial) -> None:
    """The replay is killed, and comes back to a disk without a free byte."""
    with filled(trial.system.folder / "rings"):
        trial.kill("replay")
        trial.is_refused("replay", "space")
    trial.start_and_measure("replay")


def full_under_the_checkpoints(trial: Trial) -> None:
    """A checkpoint cannot be written: the learner ends with a sentence, and the last one is whole."""
    with filled(trial.system.folder / "runs"):
        seen = _learner_ends(trial, "space")
    trial.resume_learner(seen, periods=2)  # the period whose checkpoint failed, and what its end takes


def read_only_checkpoints(trial: Trial) -> None:
    """The folder of the checkpoints becomes read-only."""
    with read_only(trial.system.run_folder / "checkpoints"):
        seen = _learner_ends(trial, "cannot write", "Read-only")
    trial.resume_learner(seen, periods=2)


def _learner_ends(trial: Trial, *words: str) -> int:
    """The learner ends by itself, in one sentence with `words`; returns the updates that it was seen to have done."""
    before = len(trial.system.log("learner"))
    trial.remember("learner")
    code = trial.system.wait("learner", 60.0 * trial.strain)
    trial.note_end("learner")
    trial.says_why("learner", code, before, *words)
    return trial.observer.watch.updates


def read_only_ring(trial: Trial) -> None:
    """The replay is killed, and comes back to a folder that it may not write."""
    trial.kill("replay")
    with read_only(trial.system.ring):
        trial.is_refused("replay", "Read-only")
    trial.start_and_measure("replay")


def damaged_log(trial: Trial) -> None:
    """A byte in the middle of the log is another: refused by name, and as it was when the byte is put back."""
    trial.kill("replay")
    segment = segments_in(trial.system.ring / CHUNKS_FOLDER)[-1].file
    middle = records.parse(segment.read_bytes()).end // 2
    flip(segment, middle)
    trial.is_refused("replay", segment.name, "is damaged")
    flip(segment, middle)
    trial.start_and_measure("replay")


def damaged_column(trial: Trial) -> None:
    """A row that says of itself that an episode ends there: refused by name."""
    trial.kill("replay")
    file = column_file(trial.system.ring, "flags")
    row = trial.rng.randrange(100, 400)
    flip(file, row, bits=8)
    trial.is_refused("replay", "flags", "is damaged")
    flip(file, row, bits=8)
    trial.start_and_measure("replay")


def damaged_after_a_crash(trial: Trial) -> None:
    """The machine stops, and some pages were never written back: damaged chunks are dropped and counted."""
    trial.kill("replay")
    ring = trial.system.ring
    found = read_format(ring)
    (ring / FORMAT_FILE).write_bytes(replace(found, boot_id="of another life of the machine").to_bytes())
    file = column_file(ring, "observation.policy")
    row_bytes = int(np.prod(found.schema.observation[0].shape)) * 4
    with file.open("r+b") as stream:
        for row in trial.rng.sample(range(400), 3):
            stream.seek(row * row_bytes)
            stream.write(os.urandom(64))
    trial.start_and_measure("replay")
    reset = trial.until(
        lambda: trial.observer.replay.steps.reset if trial.observer.replay else 0, "a count of what was dropped"
    )
    trial.note(f"{reset} steps counted as reset")


def damaged_checkpoint(trial: Trial) -> None:
    """The newest checkpoint holds another byte: the one before it is taken, and the log says so."""
    trial.until(lambda: len(trial.work.checkpoints()) >= 2, "a second checkpoint")
    seen = trial.observer.watch.updates
    trial.kill("learner")
    *_, before, newest = trial.work.checkpoints()
    flip(newest, newest.stat().st_size // 2)
    trial.resume_learner(seen, expected=before, periods=2)
    if "a damaged checkpoint is passed over" not in trial.system.log("learner"):
        trial.fault("the learner does not say that a checkpoint is damaged")


def scenarios() -> List[Scenario]:
    """All of this kind."""
    return [
        Scenario(
            "full_under_the_log", KIND, "no room for the next file of the chunk log", full_under_the_log,
            settings=RING_SETTINGS, needs=(NAMESPACE,), begins=False,
        ),
        Scenario(
            "full_at_the_replays_start", KIND, "kill -9 of the replay, and its disk is full",
            partial(on_small_disks, fault=full_at_the_replays_start), settings=RING_SETTINGS,
            needs=(NAMESPACE,), begins=False,
        ),
        Scenario(
            "full_under_the_checkpoints", KIND, "no room for a checkpoint",
            partial(on_small_disks, fault=full_under_the_checkpoints), settings=RING_SETTINGS,
            needs=(NAMESPACE,), begins=False, quick=True,
        ),
        Scenario(
            "read_only_checkpoints", KIND, "the checkpoints' folder becomes read-only", read_only_checkpoints,
            needs=(NAMESPACE,),
        ),
        Scenario(
            "read_only_ring", KIND, "kill -9 of the replay, and its folder is read-only", read_only_ring,
            needs=(NAMESPACE,),
        ),
        Scenario("damaged_log", KIND, "a byte of the chunk log flips", damaged_log, quick=True),
        Scenario("damaged_column", KIND, "a bit of the ring's flags flips", damaged_column),
        Scenario(
            "damaged_after_a_crash", KIND, "the machine crashed, and rows are damaged", damaged_after_a_crash,
            may_reset=True,
        ),
        Scenario("damaged_checkpoint", KIND, "a byte of the newest checkpoint flips", damaged_checkpoint),
    ]  # fmt: skip
