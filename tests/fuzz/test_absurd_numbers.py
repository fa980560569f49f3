"""Records of a chunk log with right checksums, of which one number is another one: refused, or a valid table."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any, Iterator, List, Tuple

import pytest

from services.common.ring_layout import CHUNKS_FOLDER
from services.replay import records
from services.replay.records import Record, RecordKind
from tests.fuzz.targets import limited_room, make_ring, open_ring

NUMBERS = (-1, 0, 1, 5, 1 << 16, 1 << 28, (1 << 32) - 1, 1 << 40, (1 << 63) - 1)
NO_NUMBERS = (float("nan"), float("inf"))
BEHIND_THE_COUNTS = {
    RecordKind.CHUNK: records._CHUNK.format[len(records._COUNTS.format) :],
    RecordKind.CLOSED: records._INDEX.format[1:],
    RecordKind.GAP: records._GROUP.format[1:],
    RecordKind.VERSION: records._VERSION.format[1:],
}
Change = Tuple[str, bytes]  # which number, and the body with it


def _changes(record: Record) -> Iterator[Change]:
    return _changed_facts(record) if record.kind is RecordKind.SUMMARY else _changed_fields(record)


def _changed_fields(record: Record) -> Iterator[Change]:
    layout = struct.Struct(records._COUNTS.format + BEHIND_THE_COUNTS.get(record.kind, ""))
    values = layout.unpack_from(record.body)
    for place, value in enumerate(values):
        for number in (*NUMBERS, *NO_NUMBERS) if isinstance(value, float) else NUMBERS:
            try:
                packed = layout.pack(*values[:place], number, *values[place + 1 :])
            except (struct.error, OverflowError):  # no room for it
                continue
            yield f"field {place}: {number}", packed + record.body[layout.size :]


def _changed_facts(record: Record) -> Iterator[Change]:
    whole = json.loads(record.body)

    def look(facts: Any, where: str) -> Iterator[Change]:
        for key in list(facts) if isinstance(facts, dict) else range(len(facts)):
            if isinstance(facts[key], (dict, list)):
                yield from look(facts[key], f"{where} {key}")
                continue
            before = facts[key]
            for number in (*NUMBERS, *NO_NUMBERS):
                facts[key] = number
                yield f"{where} {key}: {number}", json.dumps(whole).encode()
            facts[key] = before

    yield from look(whole, "")


@pytest.fixture(params=["same boot", "another boot"])
def written(request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> List[Record]:
    """What a replay wrote, which comes back in the same life of the machine or in another."""
    path, _ = make_ring(tmp_path / "made")
    if request.param == "another boot":
        boots = iter(range(1 << 20))
        monkeypatch.setattr("services.replay.ring_folder.boot_id", lambda: f"boot {next(boots)}")
    return records.parse((path / CHUNKS_FOLDER / "00000000.log").read_bytes()).records


@pytest.mark.parametrize("kind", [kind for kind in RecordKind if kind is not RecordKind.DROPPED])
def test_another_number_meets_a_refusal_or_a_valid_result(
    kind: RecordKind, written: List[Record], tmp_path: Path
) -> None:
    place = max(index for index, record in enumerate(written) if record.kind is kind)
    faults: List[str] = []
    for number, (name, body) in enumerate(_changes(written[place])):
        changed = [*written[:place], Record(kind, body), *written[place + 1 :]]
        log = b"".join(records._seal(record.kind, record.body) for record in changed)
        folder = tmp_path / str(number)
        folder.mkdir()

        def damage(ring: Path, log: bytes = log) -> None:
            file = ring / CHUNKS_FOLDER / "00000000.log"
            file.write_bytes(log.ljust(file.stat().st_size, b"\0"))

        try:
            with limited_room():
                open_ring(folder, damage)
        except Exception as error:  # noqa: BLE001 (any: that is what is looked for)
            faults.append(f"{name}: {error!r}")
    assert number > 100
    assert not faults
