"""`shoal staleness RUN`: how stale the data of a run were, whether it runs, has ended or was killed."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Sequence, TextIO

from services.cli.arguments import split_overrides
from services.cli.staleness_view import describe
from services.common.errors import EXIT_OK, UserError
from services.common.run_folder import RunFolder
from services.common.staleness_log import read_rows


def run(words: Sequence[str], out: TextIO) -> int:
    """Show the ledger of a run's folder, and draw it if a file is named for it; returns the exit code.

    Raises:
        UserError: there is no such run, it has no ledger yet, or the picture cannot be drawn.
    """
    rest, overrides = split_overrides(words)
    if overrides:
        raise UserError(f"`shoal staleness` reads what a run has written; leave out {overrides[0]}")
    options = parser().parse_args(rest)
    target, picture = options.run, options.png
    folder = RunFolder(Path(target))
    if not folder.config.exists():
        raise UserError(f"there is no run in {target!r}: it has no config.toml; name a folder under runs/")
    try:
        rows = read_rows(folder.staleness)
    except OSError as error:
        raise UserError(f"the ledger {str(folder.staleness)!r} cannot be read: {error.strerror}") from None
    if not rows:
        raise UserError(
            f"the run in {target!r} has no staleness ledger yet: its learner writes the first row after some seconds "
            "of training"
        )
    name = folder.path.resolve().name
    out.write("\n".join(describe(name, rows)) + "\n")
    if picture is not None:
        from services.cli.staleness_figure import draw

        draw(Path(picture), name, rows)
        out.write(f"\n  {picture}\n")
    return EXIT_OK


def parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    made = argparse.ArgumentParser(
        prog="shoal staleness",
        description="Show how far behind the policy of trained items was: acting, in flight, in the ring and in the "
        "prefetch, over training, and by actor. The run may go on, have ended, or have been killed.",
        usage="shoal staleness RUN_FOLDER [--png FILE]",
        allow_abbrev=False,
    )
    made.add_argument("run", metavar="RUN_FOLDER", help="the folder of a run")
    made.add_argument("--png", metavar="FILE", help="draw it too (needs matplotlib)")
    return made
