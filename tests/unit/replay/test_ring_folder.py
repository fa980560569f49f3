from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Callable, Iterator

import numpy as np
import pytest

from services.common.errors import UserError
from services.common.ring_layout import RingFormat, column_file, read_format
from services.common.schema import ActionSpec, Schema, TensorSpec
from services.replay import ring_folder
from services.replay.ring_folder import RingFolder, owner_of

SCHEMA = Schema((TensorSpec("policy", "float32", (2,)), TensorSpec("../camera", "uint8", (4,))), ActionSpec((), (), 3))


def _format(capacity: int = 100, schema: Schema = SCHEMA) -> RingFormat:
    return RingFormat("run", schema, capacity, 3, 0.9, "", 12.0)


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Mount a file system, or skip out loud."""
    mounted = []

    def make(*arguments: str) -> Path:
        target = tmp_path / f"mount-{len(mounted)}"
        target.mkdir()
        command = ["mount", *arguments, str(target)]
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
        if answer.returncode != 0:
            pytest.skip(f"NOT TESTED: this user may not mount ({' '.join(command)}: {answer.stderr.strip()})")
        mounted.append(target)
        return target

    yield make
    for target in mounted:
        subprocess.run(["umount", "--lazy", str(target)], check=True)


def test_a_folder_has_all_of_its_bytes_from_the_start_and_only_its_group_may_read(tmp_path: Path) -> None:
    folder = RingFolder.create(tmp_path / "rings" / "run", _format(), "abc")
    column = folder.allocate("reward", (100,), np.dtype("float32"))
    assert not column.any()
    file = column_file(folder.path, "reward")
    assert file.stat().st_blocks * 512 >= 400 == file.stat().st_size
    assert column_file(folder.path, "observation.../camera").parent == folder.path / "columns"
    assert len(list((folder.path / "columns").iterdir())) == 16
    assert (folder.path / "nonce").read_text() == "abc"
    for path in folder.path.rglob("*"):
        assert path.stat().st_mode & 0o777 == (0o750 if path.is_dir() else 0o640), path
    assert folder.path.stat().st_mode & 0o777 == 0o750
    assert read_format(folder.path) == folder.format
    assert [path.name for path in folder.path.parent.iterdir()] == ["run"]
    folder.close()


def test_a_folder_has_one_owner(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(ring_folder, "LOCK_PATIENCE_S", 0.05)
    path = tmp_path / "run"
    folder = RingFolder.create(path, _format(), "abc")
    with pytest.raises(UserError, match=rf"ring in '{path}' belongs to the process {os.getpid()}, which runs"):
        RingFolder.open(path, "x")
    assert owner_of(path) == str(os.getpid())
    assert (path / "nonce").read_text() == "abc"
    folder.close()
    assert owner_of(path) == ""
    again = RingFolder.open(path, "def")
    assert (path / "nonce").read_text() == "def"
    again.close()


def test_the_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    path = tmp_path / "run"
    RingFolder.create(path, _format(), "abc").close()
    code = (
        "import sys; from pathlib import Path; from services.replay.ring_folder import RingFolder;"
        "folder = RingFolder.open(Path(sys.argv[1]), 'x'); print('open', flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert child.stdout is not None
    assert child.stdin is not None
    assert child.stdout.readline() == b"open\n"
    assert owner_of(path) == str(child.pid)
    child.send_signal(signal.SIGKILL)
    RingFolder.open(path, "y").close()
    child.wait()
    child.stdin.close()
    child.stdout.close()


@pytest.mark.parametrize(
    ("capacity", "schema", "sentence"),
    [
        (99, SCHEMA, "has 100 rows, the run file asks for 99: set replay.capacity = 100"),
        (
            100,
            Schema((TensorSpec("policy", "float32", (3,)),), SCHEMA.action),
            r"policy' is float32\[2\] here, .*\[3\]",
        ),
    ],
)
def test_another_ring_than_the_one_that_is_there_is_refused(
    capacity: int, schema: Schema, sentence: str, tmp_path: Path
) -> None:
    folder = RingFolder.create(tmp_path / "run", _format(), "abc")
    with pytest.raises(UserError, match=sentence):
        folder.check_fits(capacity, schema)
    folder.check_fits(100, SCHEMA)
    folder.close()


def test_a_newer_format_is_refused_with_both_versions(tmp_path: Path) -> None:
    RingFolder.create(tmp_path / "run", _format(), "abc").close()
    file = tmp_path / "run" / "format.json"
    file.write_bytes(file.read_bytes().replace(b'"format_version": 1', b'"format_version": 2'))
    with pytest.raises(UserError, match="newer format version 2, this shoal reads and writes 1: use the shoal that"):
        RingFolder.open(tmp_path / "run", "x")


def test_what_a_process_left_that_died_while_it_made_a_ring_is_cleared(tmp_path: Path, monkeypatch: Any) -> None:
    def die(*_values: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patches:
        patches.setattr(Path, "rename", die)
        with pytest.raises(KeyboardInterrupt):
            RingFolder.create(tmp_path / "run", _format(), "abc")
    assert not (tmp_path / "run").exists()
    for descriptor in Path("/proc/self/fd").iterdir():  # a death lets go of its locks
        if str(descriptor.resolve()).endswith(".run.making/lock"):
            os.close(int(descriptor.name))
    RingFolder.create(tmp_path / "run", _format(), "abc").close()
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_file_system_that_is_too_small_is_noticed_at_the_start(mount: Any, monkeypatch: Any) -> None:
    small = mount("-t", "tmpfs", "-o", "size=3m", "none")
    with pytest.raises(UserError, match=r"the ring of 100000 rows takes .* MiB, and '.*' has 3.0 MiB left: free some"):
        RingFolder.create(small / "run", _format(100_000), "abc")
    assert list(small.iterdir()) == []
    # The space can go between the look and the taking.
    monkeypatch.setattr(ring_folder, "_check_space", lambda *_values: None)
    with pytest.raises(UserError, match=r"no space is left for .*, and the ring of 100000 rows takes"):
        RingFolder.create(small / "run", _format(100_000), "abc")
    assert list(small.iterdir()) == []
    RingFolder.create(small / "run", _format(10_000), "abc").close()


def test_a_small_dev_shm_comes_with_advice(tmp_path: Path, monkeypatch: Any) -> None:
    class Small:
        f_bavail, f_frsize = 64, 1 << 20

    monkeypatch.setattr(ring_folder.os, "statvfs", lambda _path: Small)
    path = Path("/dev/shm") / f"test-{os.getpid()}"
    with pytest.raises(UserError, match=r"has 64.0 MiB left: a container's /dev/shm is small unless .* --shm-size"):
        RingFolder.create(path, _format(10_000_000), "abc")
    assert not path.exists()


def test_a_read_only_folder_is_said(mount: Any, tmp_path: Path) -> None:
    RingFolder.create(tmp_path / "rings" / "run", _format(), "abc").close()
    read_only = mount("--bind", str(tmp_path / "rings"))
    subprocess.run(["mount", "-o", "remount,ro,bind", str(read_only)], check=True)
    with pytest.raises(
        UserError, match=r"lock' cannot be written .Read-only file system., and the replay must own its"
    ):
        RingFolder.open(read_only / "run", "x")
    with pytest.raises(UserError, match=r"cannot be written .Read-only file system., and the ring of 100 rows takes"):
        RingFolder.create(read_only / "other", _format(), "abc")


def test_pages_are_taken_in_piece_by_piece(make_durable: Any, feed: Any) -> None:
    durable = make_durable(capacity=4096)
    feed(durable.table, 3)
    before = {name: durable.table.store.ring.column(name).copy() for name in ("reward", "priority")}
    pieces = 0
    while durable.folder.populate(1 << 14):
        pieces += 1
    assert pieces == 0 or pieces >= 16  # a kernel before 5.14 has no such call
    for name, column in before.items():
        assert durable.table.store.ring.column(name).tolist() == column.tolist()
