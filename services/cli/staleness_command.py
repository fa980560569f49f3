"""`shoal staleness RUN`: how stale the data of a run were, whether it runs, has ended or was killed."""

from __future__ import annotations

from pathlib import Path
from typing import Optional, TextIO

from services.cli.staleness_view import describe
from services.common.errors import EXIT_OK, UserError
from services.common.run_folder import RunFolder
from services.common.staleness_log import read_rows


def run(target: str, picture: Optional[str], output: TextIO) -> int:
    """Show the ledger of a run's folder, and draw it if `picture` names a file; returns the exit code.

    Raises:
        UserError: there is no such run, it has no ledger yet, or the picture cannot be drawn.
    """
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
    output.write("\n".join(describe(name, rows)) + "\n")
    if picture is not None:
        from services.cli.staleness_figure import draw

        draw(Path(picture), name, rows)
        output.write(f"\n  {picture}\n")
    return EXIT_OK
