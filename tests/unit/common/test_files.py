from __future__ import annotations

import errno
import os
import resource
import subprocess
import threading
from pathlib import Path
from typing import Any, Iterator, List

import pytest

from services.common import files
from services.common.errors import EXIT_CRASH, UserError
from services.common.files import cannot_write, files_in, storage_error, with_a_descriptor, write_atomically


def test_a_file_is_written_whole_into_a_folder_that_is_made(tmp_path: Path) -> None:
    file = tmp_path / "a" / "b" / "c.bin"
    write_atomically(file, b"one")
    write_atomically(file, b"two")
    assert file.read_bytes() == b"two"
    assert [its.name for its in file.parent.iterdir()] == ["c.bin"]


def test_the_name_is_given_after_the_content_is_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "x"
    order: List[str] = []
    fsync, replace = os.fsync, Path.replace

    def note_sync(descriptor: int) -> None:
        order.append("sync")
        fsync(descriptor)

    def note_name(self: Path, target: Path) -> Path:
        order.append("name")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(Path, "replace", note_name)
    write_atomically(file, b"content")
    assert order == ["sync", "name", "sync"]


def test_a_disk_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "x"
    write_atomically(file, b"old")

    def fail(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(UserError, match=r"cannot write '.*x': No space left on device"):
        write_atomically(file, b"new")
    assert file.read_bytes() == b"old"
    assert [its.name for its in tmp_path.iterdir()] == ["x"]


def test_a_file_where_a_folder_must_be_is_told(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(UserError, match="cannot write"):
        write_atomically(tmp_path / "runs" / "x", b"")


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.EACCES, "make the folder writable for this user, or choose another run.folder"),
        (errno.EROFS, "make the folder writable for this user, or choose another run.folder"),
        (errno.ENOSPC, "free some space or choose another run.folder"),
        (errno.EIO, "choose another run.folder"),
    ],
)
def test_the_advice_is_for_the_reason(
    number: int, advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    monkeypatch.setattr(files, "DESCRIPTOR_WAIT_S", 0.0)
    with pytest.raises(UserError) as caught:
        write_atomically(tmp_path / "x", b"new")
    assert str(caught.value) == f"cannot write {str(tmp_path / 'x')!r}: {os.strerror(number)}; {advice}"


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted: Any = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip("only root may mount a tiny disk")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_leaves_the_old_file(tiny_disk: Path) -> None:
    file = tiny_disk / "x"
    write_atomically(file, b"o" * 1000)
    with pytest.raises(UserError, match="No space left on device"):
        write_atomically(file, b"n" * 100_000)
    assert file.read_bytes() == b"o" * 1000
    assert [its.name for its in tiny_disk.iterdir()] == ["x"]
    write_atomically(file, b"n" * 2000)
    assert file.read_bytes() == b"n" * 2000


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_too_many_open_files_are_no_mistake_in_the_run_file(number: int) -> None:
    error = OSError(number, os.strerror(number))
    for found in (cannot_write(Path("x"), error), storage_error(Path("x"), error, "it is needed")):
        assert "too many files are open: raise its limit" in str(found)
        assert "folder" not in str(found)
        assert found.exit_code == EXIT_CRASH  # supervision starts it again


def test_a_process_without_a_free_descriptor_waits_for_one(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.open(os.devnull, os.O_RDONLY)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, before[1]))
    freed = threading.Timer(0.4, lambda: resource.setrlimit(resource.RLIMIT_NOFILE, before))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            os.open(os.devnull, os.O_RDONLY)
    finally:
        freed.start()
    try:
        assert files_in(tmp_path, "*") == []
        write_atomically(tmp_path / "x", b"new")
    finally:
        freed.join()
    assert (tmp_path / "x").read_bytes() == b"new"
    assert [its.name for its in tmp_path.iterdir()] == ["x"]


def test_no_other_error_is_waited_out() -> None:
    tries = []

    def fail() -> None:
        tries.append(1)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OSError, match="No space"):
        with_a_descriptor(fail)
    assert len(tries) == 1


def test_files_are_listed_by_patterns_in_order(tmp_path: Path) -> None:
    for name in ("b.log", "a.log", ".a.log.7", "c.txt"):
        (tmp_path / name).touch()
    assert [file.name for file in files_in(tmp_path, "*.log")] == ["a.log", "b.log"]
    assert [file.name for file in files_in(tmp_path, "[!.]*.txt", ".*.log.*")] == [".a.log.7", "c.txt"]
    assert files_in(tmp_path / "missing", "*") == []


def test_a_folder_that_cannot_be_looked_into_is_not_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "DESCRIPTOR_WAIT_S", 0.0)
    for number, sentence in ((errno.EMFILE, "too many files are open"), (errno.EACCES, "make the folder readable")):

        def fail(_folder: Path, number: int = number) -> List[Path]:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(Path, "iterdir", fail)
        with pytest.raises(UserError, match=f"cannot look into .*{sentence}"):
            files_in(tmp_path, "*")
