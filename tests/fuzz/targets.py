"""What is fuzzed: each target takes any bytes and may refuse them in its own words, or come to a valid result.

A target fails by any other exception, by a structure whose `check_valid` finds fault, by memory beyond `MOST_BYTES`, or
by taking longer than `MOST_S`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import resource
import shutil
import struct
import time
import tracemalloc
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, Tuple

import google_crc32c
import numpy as np
import safetensors.numpy

from services.common.codec import encode_schema
from services.common.config.load import ConfigError, load, to_toml
from services.common.errors import UserError
from services.common.packing import MAX_UNPACKED_BYTES
from services.common.parameter_set import decode_set
from services.common.ring_layout import CHUNKS_FOLDER, FORMAT_FILE, GUARDS_FILE, RingFormat
from services.common.ring_reader import RingReader
from services.common.run_folder import RunFolder
from services.common.sample_codec import decode_batch, decode_drawn, read_response
from services.common.schema import SchemaError
from services.common.sealed import FORMAT_VERSION, _digest, unseal
from services.common.security.tokens import parse_book
from services.common.sick_lane import load_dump
from services.common.staleness_log import StalenessLog, read_rows
from services.common.stamps_codec import StampSource
from services.common.wire import WireError
from services.learner.batch_dump import load_stopped_batch
from services.learner.checkpoint import CheckpointFolder
from services.learner.gradients import decode_gradients
from services.learner.gradients.faults import GradientFault
from services.learner.gradients.wire import extend_checksum
from services.learner.helper_checkpoint import load_helper_state
from services.learner.version_reservation import VersionReservation
from services.replay.records import HEADER
from services.replay.ring_folder import RingFolder
from services.replay.table import Table, TableSettings
from shoal.v1 import gradients_pb2, parameters_pb2, replay_pb2
from tests.fakes import SCHEMA, FakeClock, FakeLog, make_chunk
from tests.fuzz import stand_ins

MOST_BYTES = MAX_UNPACKED_BYTES + (64 << 20)  # that Python and numpy may take for one input
ROOM_BYTES = 8 << 30  # of addresses for one input: who asks for more fails, and does not take the machine along
MOST_S = 20.0  # of processor time for one input; honest ones take some milliseconds
SEGMENT_BYTES = 1 << 18
RING_ROWS = 32
GUARDS_BYTES = 16
NO_KEYS = np.zeros((2, 0), np.int64)

Target = Callable[[bytes, Path], None]


def run(name: str, data: bytes, folder: Path) -> None:
    """Give `data` to a target; `folder` is empty and the target's own."""
    tracemalloc.start()
    began_s = time.process_time()
    try:
        with limited_room():
            TARGETS[name](data, folder)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    took_s = time.process_time() - began_s
    assert peak < MOST_BYTES, f"{name} took {peak} bytes for {len(data)}"
    assert took_s < MOST_S, f"{name} took {took_s:.1f} s for {len(data)} bytes"


@contextlib.contextmanager
def limited_room() -> Iterator[None]:
    """Let an allocation without bounds be a MemoryError here and now."""
    earlier = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + ROOM_BYTES, earlier[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, earlier)


# Messages


def _replay(method: str, request_type: Any) -> Target:
    def target(data: bytes, folder: Path) -> None:
        served = stand_ins.replay()
        table = served.servicer._table_for(replay_pb2.InsertRequest(schema=encode_schema(SCHEMA)))
        table.insert("actor-0", 1, make_chunk(6, 2), max_wait_s=0.0)
        table.insert("actor-1", 1, make_chunk(6, 2, seed=1), max_wait_s=0.0)
        for _ in range(2):  # the second time on what the first one did
            served.call(method, request_type, data)
            assert table.check_valid() is None, table.check_valid()
        told = served.call("GetInfo", replay_pb2.GetReplayInfoRequest, _operator(replay_pb2.GetReplayInfoRequest))
        assert told.num_items == table.info().num_items

    return target


def _first_insert(data: bytes, folder: Path) -> None:
    """The first call of all: it decides what the table looks like."""
    served = stand_ins.replay(capacity=16)
    with contextlib.suppress(MemoryError):
        served.call("Insert", replay_pb2.InsertRequest, data)
    table = served.servicer.table
    assert table is None or table.check_valid() is None


def _parameters(method: str, request_type: Any) -> Target:
    def target(data: bytes, folder: Path) -> None:
        served = stand_ins.chief(folder)
        served.call(method, request_type, data)
        request = parameters_pb2.GetLearnerInfoRequest
        assert served.call("GetInfo", request, _operator(request)).version == 1  # it still tells everybody else

    return target


def _gradients(method: str, request_type: Any) -> Target:
    def target(data: bytes, folder: Path) -> None:
        chief = stand_ins.GradientChief()
        for _ in range(2):
            chief.served.call(method, request_type, data)
            assert chief.exchange.check_valid() is None

    return target


def _gradient_segments(data: bytes, folder: Path) -> None:
    """Segments behind a checksum that is right."""
    try:
        request = gradients_pb2.PushRequest.FromString(data)
    except Exception:  # noqa: BLE001 (what protobuf refuses is the gate's to see, and its own target)
        return
    crc = 0
    for segment in request.segments:
        crc = extend_checksum(crc, segment, segment.scales, segment.data)
    try:
        decoded = decode_gradients(request.segments, crc, stand_ins.SHAPES)
    except GradientFault:
        return
    for name, gradient in decoded.items():
        assert gradient.shape == stand_ins.SHAPES[name]
        assert np.isfinite(gradient).all()


def _sample_response(data: bytes, folder: Path) -> None:
    """What a learner receives."""
    source = StampSource(7, ("actor-0", "actor-1"))
    with contextlib.suppress(SchemaError, WireError):
        answer = read_response(data)
        if answer.items is None:
            return
        drawn = decode_drawn(answer.items, source)
        assert len(drawn.keys) == len(drawn.bootstrap_keys)
    with contextlib.suppress(SchemaError, WireError):
        batch = decode_batch(read_response(data).items or b"", 10, source)
        batch.check(SCHEMA)
        assert all(len(column) == len(batch) for column in batch.observation.values())


def _parameter_set(data: bytes, folder: Path) -> None:
    with contextlib.suppress(ValueError):
        for array in decode_set(data).values():
            assert not array.flags.writeable


# Files


def _sealed_file(data: bytes, folder: Path) -> None:
    """A file as it lies on a bad disk."""
    file = folder / "000000000007.safetensors"
    file.write_bytes(data)
    _read_sealed(file)


def _sealed_facts(data: bytes, folder: Path) -> None:
    """A file whose digest is right, and whose facts are anything."""
    text = data.decode(errors="replace")
    tensors = {"updates": np.zeros(3, np.float32), "batch.keys": np.zeros(2, np.int64)}
    whole = {"facts": text, "digest": _digest(tensors, text), "format_version": str(FORMAT_VERSION)}
    file = folder / "000000000007.safetensors"
    file.write_bytes(safetensors.numpy.save(tensors, metadata=whole))
    _read_sealed(file)


def _read_sealed(file: Path) -> None:
    with contextlib.suppress(ValueError):
        tensors, facts = unseal(file)
        assert isinstance(facts, dict)
        assert all(isinstance(tensor, np.ndarray) for tensor in tensors.values())
    with contextlib.suppress(ValueError):
        load_dump(file)
    with contextlib.suppress(UserError):
        load_stopped_batch(file)
    with contextlib.suppress(UserError):
        CheckpointFolder(file.parent, FakeLog()).load_newest()
    load_helper_state(file, FakeLog())
    run_folder = RunFolder(file.parent)
    shutil.copy(file, run_folder._best)
    with contextlib.suppress(UserError):
        run_folder.load_best()


def _chunk_log(data: bytes, folder: Path) -> None:
    """A segment as it lies on a bad disk."""
    open_ring(folder, lambda ring: (ring / CHUNKS_FOLDER / "00000000.log").write_bytes(data))


def _chunk_records(data: bytes, folder: Path) -> None:
    """Records whose checksums are right, and that hold anything."""
    sealed = bytearray(data)
    at = 0
    while at + HEADER.size <= len(sealed):
        _, length, kind = HEADER.unpack_from(sealed, at)
        length = max(HEADER.size, min(length, len(sealed) - at))
        HEADER.pack_into(sealed, at, 0, length, kind)
        sealed[at : at + 4] = struct.pack("<I", google_crc32c.value(bytes(sealed[at + 4 : at + length])))
        at += length
    open_ring(folder, lambda ring: (ring / CHUNKS_FOLDER / "00000000.log").write_bytes(bytes(sealed)))


def _ring_format(data: bytes, folder: Path) -> None:
    open_ring(folder, lambda ring: (ring / FORMAT_FILE).write_bytes(data))


def _ring_format_facts(data: bytes, folder: Path) -> None:
    """A format file whose digest is right."""

    def damage(ring: Path) -> None:
        facts = json.loads((ring / FORMAT_FILE).read_bytes())
        with contextlib.suppress(ValueError, RecursionError):
            changes = json.loads(data)
            if isinstance(changes, dict):
                facts.update(changes)
        facts.pop("digest", None)
        with contextlib.suppress(ValueError, RecursionError):
            from services.common.ring_layout import _digest as digest_of

            (ring / FORMAT_FILE).write_text(json.dumps({**facts, "digest": digest_of(facts)}))

    open_ring(folder, damage)


def make_ring(folder: Path) -> Tuple[Path, TableSettings]:
    """A ring whose log has one segment with records of each kind but that of a damaged chunk."""
    path = folder / "ring"
    settings = TableSettings(capacity=RING_ROWS, n_step=2, max_batch_size=8)
    made = RingFolder.create(path, RingFormat("run", SCHEMA, RING_ROWS, 2, 0.99, "", 0.0), "5", SEGMENT_BYTES)
    table = Table(settings, SCHEMA, clock=FakeClock(), folder=made)
    for first_step in (0, 5):  # the second one tells of a gap
        table.insert("b", 1, make_chunk(0, 2, sequence=first_step // 5, first_step=first_step), max_wait_s=0.0)
    table.close_actor("b", 1)
    table._journal.roll()  # nothing was inserted: the segment is begun anew, with what it said
    for sequence in range(3):
        table.insert("a", 1, make_chunk(4, 2, sequence=sequence, first_step=4 * sequence), max_wait_s=0.0)
    table.set_newest(3, 60, chief=7)
    table.close_actor("a", 1)
    table.sample(1, 4, max_wait_s=0.0)
    table.note_state()
    made.close()
    return path, settings


def _ring_reader(data: bytes, folder: Path) -> None:
    """Guards of a ring, and keys that a replay sent, that are anything; half of the keys are of bootstrap rows."""
    path, _ = make_ring(folder)
    with (path / GUARDS_FILE).open("r+b") as guards:
        guards.write(data[:GUARDS_BYTES])
    half = (len(data) - GUARDS_BYTES) // 16
    keys, bootstrap_keys = np.frombuffer(data, "<i8", 2 * half, GUARDS_BYTES).reshape(2, half) if half > 0 else NO_KEYS
    reader = RingReader(path)
    for given in (None, bootstrap_keys):
        columns, intact = reader.gather(keys, given)
        assert all(len(column) == len(keys) for column in columns.values())
        assert (keys[intact] < reader.committed).all()
        assert (keys[intact] >= 0).all()


def _run_toml(data: bytes, folder: Path) -> None:
    file = folder / "run.toml"
    file.write_bytes(data)
    with contextlib.suppress(ConfigError):
        config = load(file).config
        file.write_text(to_toml(config), encoding="utf-8")
        assert load(file).config == config


def open_ring(folder: Path, damage: Callable[[Path], Any]) -> None:
    """Make a ring, damage it, and open it as a replay does."""
    path, settings = make_ring(folder)
    damage(path)
    try:  # as a learner on the same machine does
        RingReader(path).gather(np.arange(4))
    except UserError as error:
        _names(path, error)
    try:
        opened = RingFolder.open(path, "6", SEGMENT_BYTES)
    except UserError as error:
        _names(path, error)
        return
    try:
        again = Table(
            dataclasses.replace(settings, n_step=opened.format.n_step), SCHEMA, clock=FakeClock(), folder=opened
        )
        assert again.check_valid() is None, again.check_valid()
    except UserError as error:
        _names(path, error)
    except ValueError:  # the settings' own: n
        assert opened.format.n_step != settings.n_step
    finally:
        opened.close()


def _names(path: Path, error: UserError) -> None:
    assert str(path) in str(error), f"a refusal that does not name the file: {error}"


def _staleness_log(data: bytes, folder: Path) -> None:
    file = folder / "staleness.jsonl"
    file.write_bytes(data)
    rows = read_rows(file)
    for row in rows:
        row.quantile("ring", 0.5)
    StalenessLog(file, max_rows=2)


def _run_files(data: bytes, folder: Path) -> None:
    """The small files of a run's folder."""
    for name in ("progress.json", "evaluations.jsonl", "versions.json"):
        (folder / name).write_bytes(data)
    run_folder = RunFolder(folder)
    run_folder.load_progress()
    run_folder.evaluations()
    with contextlib.suppress(UserError):
        VersionReservation(run_folder.versions)


def _token_book(data: bytes, folder: Path) -> None:
    with contextlib.suppress(UserError):
        parse_book(data.decode(errors="replace"), folder / "tokens.toml")


def _operator(request_type: Any) -> bytes:
    from services.common.peer import Peer
    from shoal.v1 import experience_pb2

    data: bytes = request_type(peer=Peer("", experience_pb2.ROLE_OPERATOR, "test", 5).to_proto()).SerializeToString()
    return data


TARGETS: Dict[str, Target] = {
    "insert": _replay("Insert", replay_pb2.InsertRequest),
    "first_insert": _first_insert,
    "sample": _replay("Sample", replay_pb2.SampleRequest),
    "update_priorities": _replay("UpdatePriorities", replay_pb2.UpdatePrioritiesRequest),
    "inspect": _replay("Inspect", replay_pb2.InspectRequest),
    "snapshot": _replay("Snapshot", replay_pb2.SnapshotRequest),
    "replay_info": _replay("GetInfo", replay_pb2.GetReplayInfoRequest),
    "flush": _replay("Flush", replay_pb2.FlushRequest),
    "get_parameters": _parameters("Get", parameters_pb2.GetParametersRequest),
    "get_manifest": _parameters("GetManifest", parameters_pb2.GetManifestRequest),
    "report_evaluation": _parameters("ReportEvaluation", parameters_pb2.ReportEvaluationRequest),
    "drain": _parameters("Drain", parameters_pb2.DrainRequest),
    "learner_info": _parameters("GetInfo", parameters_pb2.GetLearnerInfoRequest),
    "push": _gradients("Push", gradients_pb2.PushRequest),
    "join": _gradients("Join", gradients_pb2.JoinRequest),
    "leave": _gradients("Leave", gradients_pb2.LeaveRequest),
    "gradient_segments": _gradient_segments,
    "sample_response": _sample_response,
    "parameter_set": _parameter_set,
    "sealed_file": _sealed_file,
    "sealed_facts": _sealed_facts,
    "chunk_log": _chunk_log,
    "chunk_records": _chunk_records,
    "ring_format": _ring_format,
    "ring_format_facts": _ring_format_facts,
    "ring_reader": _ring_reader,
    "run_toml": _run_toml,
    "staleness_log": _staleness_log,
    "run_files": _run_files,
    "token_book": _token_book,
}
