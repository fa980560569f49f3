"""`python -m tests.chaos`: real processes, real sockets, and everything that can go wrong with them."""

from __future__ import annotations

import argparse
import secrets
import sys
import tempfile
import time
from pathlib import Path
from typing import Optional, Sequence

from bench.replay import machine
from services.common.errors import EXIT_USER, UserError
from tests.chaos import isolation
from tests.chaos.catalogue import all_scenarios, choose
from tests.chaos.report import last_line, replace_section, to_markdown
from tests.chaos.runner import run_all

MODULE = "tests.chaos"


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog=f"python -m {MODULE}", description=__doc__)
    made.add_argument("--list", action="store_true", help="name the scenarios, and run none")
    made.add_argument("--only", metavar="NAME", action="append", help="this scenario; may be given again")
    made.add_argument("--seed", type=int, help="of all that is drawn; printed, and chosen by chance if not given")
    made.add_argument("--quick", action="store_true", help="a choice of each kind, in six minutes")
    made.add_argument("--docs", type=Path, help="page of the docs whose table is replaced")
    made.add_argument("--folder", type=Path, help="for the runs; those that failed stay there")
    made.add_argument("--keep", action="store_true", help="keep the folders of runs that passed too")
    return made


def main(arguments: Optional[Sequence[str]] = None) -> int:
    words = sys.argv[1:] if arguments is None else list(arguments)
    options = parser().parse_args(words)
    scenarios = all_scenarios(quick=options.quick)
    if options.list:
        for scenario in scenarios:
            print(f"{scenario.name:28}{scenario.kind:14}{'quick ' if scenario.quick else '      '}{scenario.text}")
        return 0
    try:
        chosen = choose(scenarios, options.only, quick=options.quick)
        if options.docs is not None:
            check_page(options.docs)
    except UserError as error:
        print(f"chaos: {error}", file=sys.stderr)
        return EXIT_USER
    why_not = isolation.refusal()
    if not why_not and not isolation.is_inside():
        return isolation.enter(MODULE, words)
    if not why_not:
        isolation.prepare()
    lacking = isolation.lacking(why_not)
    for need, reason in lacking.items():
        print(f"NOT TESTED: whatever needs {need}; {reason}", flush=True)
    seed = options.seed if options.seed is not None else secrets.randbelow(1_000_000)
    folder = options.folder or Path(tempfile.mkdtemp(prefix="shoal-chaos-"))
    print(f"seed {seed}, folder {folder}", flush=True)
    facts, began_s = machine.describe(), time.monotonic()

    def say(line: str) -> None:
        print(line, flush=True)

    outcomes = run_all(chosen, seed=seed, folder=folder, lacking=lacking, keep=options.keep, say=say)
    minutes = (time.monotonic() - began_s) / 60
    if options.docs is not None:
        page = options.docs.read_text(encoding="utf-8")
        section = to_markdown(outcomes, facts, seed, minutes)
        options.docs.write_text(replace_section(page, section), encoding="utf-8")
    print(f"seed {seed}, {minutes:.1f} minutes")
    print(last_line(outcomes))
    return 1 if any(outcome.verdict == "FAILED" for outcome in outcomes) else 0


def check_page(file: Path) -> None:
    """Refuse a page that the table could not be written to, before anything runs.

    Raises:
        UserError: it cannot be read, or has no place for the table.
    """
    try:
        replace_section(file.read_text(encoding="utf-8"), "")
    except (OSError, ValueError) as error:
        raise UserError(f"--docs {str(file)!r} cannot take the table: {error}") from None


if __name__ == "__main__":
    sys.exit(main())
