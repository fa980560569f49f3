"""Files that are either whole or not there."""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import os
import stat
import time
from pathlib import Path
from typing import Callable, List, TypeVar

from services.common.errors import EXIT_CRASH, UserError

FILE_MODE = 0o640  # the group of the services may read
# Descriptors that callers hold come back within seconds. Shorter than a stop may take.
DESCRIPTOR_WAIT_S, LOOK_S = 8.0, 0.1

Made = TypeVar("Made")


class OutOfDescriptors(UserError):
    """A file could not be opened, for this process or the machine has too many open: a later life may find one free."""

    exit_code = EXIT_CRASH

    def __init__(self, sentence: str) -> None:
        """Say `sentence`, and what to do."""
        super().__init__(f"{sentence}: raise its limit (ulimit -n; LimitNOFILE= of a unit; ulimits of a container)")


def write_atomically(file: Path, data: bytes, mode: int = 0) -> None:
    """Write aside, fsync, rename: a crash at any instant leaves the old file or the new one.

    Args:
        file: its folder is made if need be.
        data: the whole content.
        mode: of the file; 0: as the process's umask has it.

    Raises:
        UserError: the disk is full or the folder cannot be written; the old file is untouched.
    """
    make_atomically(file, lambda aside: aside.write_bytes(data), mode)


def make_atomically(file: Path, write: Callable[[Path], object], mode: int = 0) -> None:
    """As `write_atomically`, of a file that `write` fills: it is called with the path of an empty one.

    Args:
        file: its folder is made if need be.
        write: writes to the path that it is given, or puts another file in its place.
        mode: of the file; 0: as the process's umask has it.

    Raises:
        UserError: the disk is full or the folder cannot be written; the old file is untouched.
    """
    try:
        with_a_descriptor(lambda: _make(file, write, mode))
    except OSError as error:
        raise cannot_write(file, error) from None


def with_a_descriptor(action: Callable[[], Made]) -> Made:
    """Do what opens a file; while there is no free descriptor for it, wait for one, and begin it again.

    Args:
        action: may be begun several times.

    Raises:
        OSError: of `action`; EMFILE or ENFILE after DESCRIPTOR_WAIT_S of them.
    """
    deadline = time.monotonic() + DESCRIPTOR_WAIT_S
    while True:
        try:
            return action()
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE) or time.monotonic() > deadline:
                raise
        time.sleep(LOOK_S)


def files_in(folder: Path, *patterns: str) -> List[Path]:
    """Files of `folder` whose names match any of `patterns`, sorted; none where there is no folder.

    `Path.glob` would take a folder that cannot be opened for an empty one, on newer Pythons.

    Raises:
        UserError: it cannot be looked into, or there was no free descriptor for it in time.
    """
    try:
        found = with_a_descriptor(lambda: list(folder.iterdir()))
    except FileNotFoundError:
        return []
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise OutOfDescriptors(f"cannot look into {str(folder)!r}: too many files are open") from None
        raise UserError(
            f"cannot look into {str(folder)!r}: {error.strerror}; make the folder readable for this user"
        ) from None
    return sorted(file for file in found if any(fnmatch.fnmatchcase(file.name, pattern) for pattern in patterns))


def _make(file: Path, write: Callable[[Path], object], mode: int) -> None:
    aside = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        aside.touch(FILE_MODE)
        wanted = mode or stat.S_IMODE(aside.stat().st_mode)
        write(aside)
        with aside.open("rb") as stream:
            os.fchmod(stream.fileno(), wanted)
            os.fsync(stream.fileno())
        aside.replace(file)
        sync_folder(file.parent)
    except OSError:
        with contextlib.suppress(OSError):  # the first error is the one to tell
            aside.unlink()
        raise


def cannot_write(file: Path, error: OSError) -> UserError:
    """The sentence for a file of a run that could not be written, with what to do about this reason."""
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return OutOfDescriptors(f"cannot write {str(file)!r}: too many files are open")
    advice = "choose another run.folder"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        advice = f"free some space or {advice}"
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        advice = f"make the folder writable for this user, or {advice}"
    return UserError(f"cannot write {str(file)!r}: {error.strerror}; {advice}")


def storage_error(file: Path, error: OSError, need: str) -> UserError:
    """The sentence for a file that could not be written: `need` says what for."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return UserError(f"no space is left for {str(file)!r}, and {need}: free some space or choose another folder")
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return UserError(
            f"{str(file)!r} cannot be written ({error.strerror}), and {need}: make the folder writable for this user, "
            "or choose another folder"
        )
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return OutOfDescriptors(f"{str(file)!r} cannot be opened, and {need}: too many files are open")
    return UserError(f"{str(file)!r} cannot be written, and {need}: {error.strerror}")


def sync_folder(folder: Path) -> None:
    """Make renames in `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
