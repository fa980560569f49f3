"""The folder of a run: its name, who may use it, and what may change when it is resumed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Iterator, Mapping, Optional, Sequence

from services.cli.config_command import toml_value
from services.common.config.load import LoadedConfig, load, to_toml
from services.common.errors import UserError
from services.common.files import cannot_write, write_atomically

CONFIG_NAME = "config.toml"
LOCK_NAME = ".lock"
LOG_FOLDER_NAME = "logs"
FOLDER_MODE = 0o750
FILE_MODE = 0o640
MAX_STEM = 64  # characters of a run file's name in that of a run, which also holds the time

CHANGEABLE_SECTIONS = ("evaluator", "helper", "report", "log", "metrics", "security")
CHANGEABLE_KEYS = (
    "run.folder",
    "replay.addresses",
    "replay.data_dir",
    "replay.dump_dir",
    "replay.max_dumps",
    "replay.listen",
    "learner.address",
    "learner.listen",
    "learner.max_updates",
    "learner.checkpoint_period_s",
    "learner.checkpoints_kept",
    "learner.max_evaluations",
    "learner.max_event_bytes",
    "learner.max_dumps",
    "learner.max_non_finite_updates",
    "learner.transport",
    "learner.torch_threads",
    "learner.wire_dtype",
    "learner.device",
    "staleness.max_rows",
    "gradients.lease_s",
    "gradients.max_helpers",
    "actor.count",
    "actor.buffer_chunks",
    "actor.lane_groups",
    "actor.inference",
    "actor.torch_threads",
    "actor.cpus",
    "actor.max_step_s",
    "actor.compression",
)
# Chosen anew at each start unless somebody set them, and then not written to the run's config.
EPHEMERAL_KEYS = (
    "replay.addresses",
    "learner.address",
    "replay.metrics_port",
    "learner.metrics_port",
    "helper.metrics_port",
    "actor.metrics_port",
    "evaluator.metrics_port",
)


@dataclass(frozen=True)
class OpenRun:
    """A run that this launcher holds the lock of."""

    loaded: LoadedConfig
    folder: Path
    lock: int  # descriptor; children inherit it, so that the folder is free only when the last of them has gone
    resumed: bool

    @property
    def name(self) -> str:
        return self.loaded.config.run.name

    @property
    def config_file(self) -> Path:
        return self.folder / CONFIG_NAME

    def close(self) -> None:
        os.close(self.lock)


def open_run(target: str, overrides: Sequence[str], environ: Mapping[str, str], now: time.struct_time) -> OpenRun:
    """Make the folder of a new run, or open that of an old one to resume it; write its resolved config.

    Args:
        target: a run file, or the folder of a run.
        overrides: flags.
        environ: variables.
        now: local time, for the name of a run that has none.

    Raises:
        UserError: the config is wrong, does not fit the run that is there, the folder is in use, or cannot be written.
    """
    path = Path(target)
    loaded = _load_resumed(path, overrides, environ) if path.is_dir() else load(path, overrides, environ)
    loaded = _named(loaded, path.stem, now)
    folder = Path(loaded.config.run.folder) / loaded.config.run.name
    if path.is_dir() and folder.resolve() != path.resolve():
        raise UserError(
            f"{target} holds the config of run {loaded.config.run.name!r} in folder {loaded.config.run.folder!r}: "
            "a run's folder bears its name; rename the folder back, and leave run.name and run.folder unset"
        )
    # As an absolute path it means the same to whoever reads the config, wherever that is started.
    loaded = _with_run(loaded, folder=str(folder.parent.resolve()))
    _refuse_foreign(folder)
    with _disk_errors(folder):
        folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        (folder / LOG_FOLDER_NAME).mkdir(mode=FOLDER_MODE, exist_ok=True)
    lock = lock_folder(folder)
    try:
        config_file = folder / CONFIG_NAME
        resumed = config_file.exists()
        if resumed:
            check_resume(load(config_file), loaded)
        write_atomically(config_file, config_text(loaded).encode())
    except BaseException:
        os.close(lock)
        raise
    return OpenRun(loaded, folder, lock, resumed)


def _load_resumed(folder: Path, overrides: Sequence[str], environ: Mapping[str, str]) -> LoadedConfig:
    file = folder / CONFIG_NAME
    if not file.exists():
        raise UserError(f"{str(folder)!r} is a folder without a {CONFIG_NAME}; give a run file, or the folder of a run")
    loaded = load(file, overrides, environ)
    # Where the folder lies now counts, not where it lay when the run began.
    return _with_run(loaded, folder=str(folder.resolve().parent))


def _named(loaded: LoadedConfig, stem: str, now: time.struct_time) -> LoadedConfig:
    name = loaded.config.run.name
    if name:
        return loaded
    made = f"{re.sub(r'[^A-Za-z0-9._-]', '-', stem)[:MAX_STEM]}-{time.strftime('%Y%m%d-%H%M%S', now)}"
    parent = Path(loaded.config.run.folder)
    taken = 1
    name = made
    while (parent / name).exists():
        taken += 1
        name = f"{made}-{taken}"
    return _with_run(loaded, name=name)


def _with_run(loaded: LoadedConfig, **values: str) -> LoadedConfig:
    run = loaded.config.run.model_copy(update=values)
    return LoadedConfig(loaded.config.model_copy(update={"run": run}), loaded.origins)


def _refuse_foreign(folder: Path) -> None:
    """Refuse a folder that holds something else than a run."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{str(folder)!r} is a file where the run's folder should be; choose another run.name")
    if not folder.exists() or (folder / CONFIG_NAME).exists():
        return
    with _disk_errors(folder):
        found = sorted(entry.name for entry in folder.iterdir() if entry.name not in {LOCK_NAME, LOG_FOLDER_NAME})
    if found:
        raise UserError(
            f"the folder {str(folder)!r} is not empty and holds no {CONFIG_NAME} (there is {found[0]!r}), so it is no "
            "run's; choose another run.name or run.folder, or empty it"
        )


def check_resume(before: LoadedConfig, after: LoadedConfig) -> None:
    """Refuse to go on with a run whose data and parameters were made with other settings.

    Raises:
        UserError: names each setting that differs, with both values.
    """
    old: Dict[str, Any] = {key: value for key, value, _origin in before.lines()}
    new: Dict[str, Any] = {key: value for key, value, _origin in after.lines()}
    differing = [
        f"{key} = {_value(new, key)} (was {_value(old, key)})"
        for key in sorted({*old, *new})
        if not may_change(key) and old.get(key) != new.get(key)
    ]
    if differing:
        raise UserError(
            f"run {after.config.run.name!r} exists with other settings: {', '.join(differing)}; set "
            f"{'it' if len(differing) == 1 else 'them'} back to resume it, or choose a new run.name"
        )


def may_change(key: str) -> bool:
    """Whether a setting may differ when a run is resumed."""
    section = key.partition(".")[0]
    return key in CHANGEABLE_KEYS or section in CHANGEABLE_SECTIONS or key.endswith(".metrics_port")


def _value(values: Mapping[str, Any], key: str) -> str:
    value = values.get(key)
    return "not set" if value is None else toml_value(value)


def config_text(loaded: LoadedConfig) -> str:
    """The resolved config as a run file, without the addresses that are chosen at each start."""
    left_out = [key for key in EPHEMERAL_KEYS if not loaded.is_set(key)]
    return (
        f"# Written by `shoal up`, which resumes this run when given its folder.\n\n{to_toml(loaded.config, left_out)}"
    )


def lock_folder(folder: Path, *, patience_s: float = 12.0) -> int:
    """Lock a run's folder for this launcher and the processes that inherit the descriptor.

    Args:
        folder: of the run.
        patience_s: how long to wait for the processes of a launcher that has died, which are about to stop.

    Raises:
        UserError: a launcher is running it, or its processes do not go.
    """
    path = folder / LOCK_NAME
    with _disk_errors(path):
        lock = os.open(str(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
    deadline = time.monotonic() + patience_s
    try:
        while not _try_lock(lock):
            _refuse_in_use(lock, folder, is_late=time.monotonic() > deadline)
            time.sleep(0.1)
        with _disk_errors(path):
            os.ftruncate(lock, 0)
            os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    except BaseException:
        os.close(lock)
        raise
    return lock


def _refuse_in_use(lock: int, folder: Path, *, is_late: bool) -> None:
    holder = _holder(lock)
    if holder is not None and _is_alive(holder):
        raise UserError(f"run {folder.name!r} is running already, watched by process {holder}; stop that first")
    if is_late:
        raise UserError(
            f"processes of an earlier start of run {folder.name!r} are still there; look for "
            f"`{folder / CONFIG_NAME}` in `ps ax` and stop them first"
        )


def _try_lock(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(lock: int) -> Optional[int]:
    text = os.pread(lock, 32, 0).decode("ascii", "replace").strip()
    return int(text) if text.isdigit() else None


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


@contextlib.contextmanager
def _disk_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise cannot_write(path, error) from None
