from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict

import numpy as np
import pytest

from services.common.errors import UserError
from services.common.ring_layout import RingFormat, all_columns
from services.common.ring_reader import RingReader
from services.common.schema import ActionSpec, Schema, TensorSpec
from services.replay.ring import Ring
from services.replay.ring_folder import RingFolder

SCHEMA = Schema((TensorSpec("policy", "float64", (8,)),), ActionSpec((-1.0,), (1.0,)))
CAPACITY, ROWS = 4096, 512

# Writes its key into every column of every row, as fast as it can.
WRITER = f"""
import sys
import numpy as np
from pathlib import Path
from services.replay.ring import Ring
from services.replay.ring_folder import RingFolder
folder = RingFolder.open(Path(sys.argv[1]), "nonce")
ring = Ring({CAPACITY}, folder.format.schema, folder.allocate, folder.guards)
print("writing", flush=True)
while True:
    first = ring.reserve({ROWS})
    keys = np.arange(first, first + {ROWS})
    ring.write(first, dict(
        policy_version=keys, n_step_return=(keys % 1000).astype(np.float32), bootstrap_key=keys + 1,
        **{{"observation.policy": np.repeat(keys[:, None].astype(np.float64), 8, 1)}}))
    ring.commit()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Any:
    made = RingFolder.create(tmp_path / "run", RingFormat("run", SCHEMA, CAPACITY, 3, 0.9, "", 0.0), "nonce")
    yield made
    made.close()


def test_no_row_that_is_called_intact_is_torn(folder: RingFolder) -> None:
    folder.close()
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(folder.path)], stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert writer.stdout is not None
    try:
        assert writer.stdout.readline() == b"writing\n"
        reader = RingReader(folder.path, "nonce")
        while reader.committed < 2 * CAPACITY:
            time.sleep(0.01)
        rng = np.random.default_rng(0)
        torn_and_called_intact = torn = looked_at = intact_rows = 0
        until = time.monotonic() + 5.0
        while time.monotonic() < until:
            newest = reader.committed - 1
            keys = newest - rng.integers(1, CAPACITY - 1, ROWS)
            columns, intact = reader.gather(keys)
            right = (columns["policy_version"] == keys) & (columns["n_step_return"] == keys % 1000)
            right &= (columns["observation.policy"] == keys[:, None]).all(axis=1)
            right &= (columns["next_observation.policy"] == keys[:, None] + 1).all(axis=1)
            looked_at += len(keys)
            intact_rows += int(intact.sum())
            torn += int((~right).sum())
            torn_and_called_intact += int((intact & ~right).sum())
    finally:
        writer.kill()
        writer.wait()
        writer.stdout.close()
    print(f"{looked_at} rows, {torn} torn, {intact_rows} called intact, of which {torn_and_called_intact} torn")
    assert torn > 0  # else nothing was tested
    assert intact_rows > looked_at // 10
    assert torn_and_called_intact == 0


def _write(folder: RingFolder, num_rows: int) -> Ring:
    ring = Ring(CAPACITY, SCHEMA, folder.allocate, folder.guards)
    first = ring.reserve(num_rows)
    keys = np.arange(first, first + num_rows)
    columns: Dict[str, Any] = {"policy_version": keys, "bootstrap_key": keys + 2, "reward": np.ones(num_rows)}
    columns["observation.policy"] = np.repeat(keys[:, None], 8, 1)
    ring.write(first, columns)
    ring.commit()
    return ring


def test_items_are_gathered_with_their_next_observations(folder: RingFolder) -> None:
    ring = _write(folder, 100)
    reader = RingReader(folder.path, "nonce")
    keys = np.array([0, 5, 97, 100, 4000, -1])
    columns, intact = reader.gather(keys)
    assert intact.tolist() == [True, True, True, False, False, False]  # never written, never handed out
    assert columns["policy_version"][:3].tolist() == [0, 5, 97]
    assert columns["observation.policy"][1].tolist() == [5.0] * 8
    assert columns["next_observation.policy"][1].tolist() == [7.0] * 8
    columns, _ = reader.gather(keys[:1], np.array([50]))
    assert columns["next_observation.policy"][0, 0] == 50.0
    assert reader.column("reward")[:100].tolist() == [1.0] * 100
    with pytest.raises(ValueError, match="read-only"):
        reader.column("reward")[0] = 2.0
    first = ring.reserve(CAPACITY - 95)  # rows 0 to 4 may be written over at any moment from now on
    assert first == 100
    assert reader.gather(np.arange(7))[1].tolist() == [False] * 5 + [True] * 2


def test_another_machines_ring_is_not_read(folder: RingFolder, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="its nonce is another"):
        RingReader(folder.path, "of another replay")
    with pytest.raises(UserError, match="lies on another machine"):
        RingReader(tmp_path / "nowhere", "nonce")
    assert RingReader(folder.path).capacity == CAPACITY


def test_a_column_of_another_size_is_named(folder: RingFolder) -> None:
    file = folder.path / "columns" / "discount"
    file.write_bytes(b"123")
    with pytest.raises(UserError, match=f"discount' is damaged: it has 3 bytes, {4 * CAPACITY} belong there"):
        RingReader(folder.path, "nonce")


def test_every_column_of_the_layout_is_a_column_of_the_ring() -> None:
    ring = Ring(4, SCHEMA)
    for spec in all_columns(SCHEMA):
        column = ring.column(spec.name)
        assert (column.dtype.name, column.shape) == (spec.dtype, (4, *spec.shape))
        assert column.nbytes == 4 * spec.row_bytes
