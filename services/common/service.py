"""The five acts of every process: parse the config, build the parts, start, run, stop in reverse order."""

from __future__ import annotations

import atexit
import contextlib
import errno
import os
import sys
import threading
import traceback
from pathlib import Path
from typing import Callable, Dict, List, Mapping, NoReturn, Optional, Sequence

from services.common.config.load import load
from services.common.config.run import RunConfig
from services.common.errors import EXIT_CRASH, EXIT_OK, Crash, UserError
from services.common.lifecycle import Lifecycle
from services.common.log import Log, make_log
from services.common.rpc import Stopped

Run = Callable[[RunConfig, Lifecycle, Log], None]


def main(
    service: str,
    run: Run,
    arguments: Sequence[str],
    short_flags: Optional[Mapping[str, str]] = None,
    name_of: Optional[Callable[[RunConfig], str]] = None,
) -> int:
    """Run a service to its end and return the exit code.

    Args:
        service: its name, for help and errors.
        run: builds the parts, starts them, runs, and stops them.
        arguments: `[FILE.toml] [--section.key VALUE ...]`.
        short_flags: other names of flags, as in `--chief` for `--helper.chief`.
        name_of: the service's name in its log, where the run file decides; else `service`.
    """
    short: Dict[str, str] = dict(short_flags or {})
    flags: List[str] = [_in_full(word, short) for word in arguments]
    if "--help" in flags or "-h" in flags:
        names = "".join(f" [{name} VALUE]" for name in short)
        print(f"usage: shoal {service} [FILE.toml]{names} [--section.key VALUE ...]   (`shoal config show` lists keys)")
        return EXIT_OK
    file = flags.pop(0) if flags and not flags[0].startswith("--") else ""
    lifecycle = Lifecycle()
    try:
        loaded = load(Path(file) if file else None, flags, os.environ)
        # All processes of one file agree on its stem when the run has no name.
        config = loaded.config.named(Path(file).stem if file else "shoal")
        name = name_of(config) if name_of else service
        log = make_log(
            sys.stdout,
            style=config.log.style,
            level=config.log.level_of(name),
            service=name,
            run=config.run.name,
            incarnation=f"{lifecycle.incarnation:016x}",
        )
        lifecycle.start(os.environ)
        threading.excepthook = lambda failed: lifecycle.fail(failed.exc_value or SystemError(failed.exc_type))
        _live(run, config, lifecycle, log)
    except (UserError, Crash) as error:
        lifecycle.stop("a mistake to mend" if isinstance(error, UserError) else "a crash")
        print(f"shoal {service}: {error}", file=sys.stderr, flush=True)
        return error.exit_code
    except OSError as error:
        lifecycle.stop("a crash")
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            traceback.print_exc()
            return EXIT_CRASH
        what = f" for {error.filename!r}" if error.filename else ""
        print(f"shoal {service}: no space is left{what}: free some, and start again", file=sys.stderr, flush=True)
        return UserError.exit_code
    except Exception:  # noqa: BLE001 (the edge of the process: said in full, then the exit code)
        lifecycle.stop("a crash")
        traceback.print_exc()
        return EXIT_CRASH
    log.info("stopped", reason=lifecycle.reason or "done")
    return EXIT_OK


def end_process(code: int) -> NoReturn:
    """End this process with `code`, for the entry of a process alone.

    All that Python does for others is done: it waits for threads, and calls the exit functions, which remove temporary
    folders and end child processes. What is left out is the last collection, and taking down every module: with torch
    a third of a second of computing, which on a starved machine is longer than a stop may take.
    """
    is_leaving = False

    def leave() -> None:
        nonlocal is_leaving
        if is_leaving:  # it is one of the exit functions that it calls
            return
        is_leaving = True
        try:
            atexit._run_exitfuncs()
        finally:
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError, ValueError):  # whoever read it is gone
                    stream.flush()
            os._exit(code)

    atexit.register(leave)  # the last to be registered is the first to be called
    sys.exit(code)


def _live(run: Run, config: RunConfig, lifecycle: Lifecycle, log: Log) -> None:
    """Run, and raise what a thread failed with; but a stop that was asked for is not made a mistake by a last call."""
    try:
        with contextlib.suppress(Stopped):
            run(config, lifecycle, log)
    except UserError as error:
        lifecycle.fail(error)  # a thread may have failed with something graver
    try:
        lifecycle.check()
    except UserError as error:
        if not (lifecycle.was_asked and error.is_refusal):
            raise
        log.warning("a last call was refused", reason=str(error))


def _in_full(word: str, short_flags: Mapping[str, str]) -> str:
    name, equals, value = word.partition("=")
    return short_flags.get(name, name) + equals + value
