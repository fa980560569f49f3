"""`shoal doctor env FILE.toml`: examine the environment of a run file, in processes of its own, and report.

python -m services.actor.conformance FILE.toml [--steps N] [--seconds S] [--json] [--section.key VALUE ...]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, List, Sequence, Tuple

import numpy as np

from services.actor.conformance.finding import Finding, Level, warning
from services.actor.conformance.record import compare
from services.actor.conformance.trial import Trial
from services.actor.conformance.trial_process import run_trial
from services.common.config.load import load
from services.common.errors import EXIT_OK, UserError

EXIT_FAULTS = 1
STEPS, SECONDS = 2000, 60.0
STALL_S = 300.0  # a simulator may compile its kernels for minutes; nothing takes longer


def main(arguments: Sequence[str]) -> int:
    """Examine and print; the exit code is 1 if there is a fault, 2 if the run file is wrong."""
    options, flags = _parse(arguments)
    try:
        config = load(Path(options.file), flags, os.environ).config
        env = config.env
        if not options.json:
            print(
                f"environment {env.factory}: {env.lanes} lanes, at most {options.steps} calls of step or"
                f" {options.seconds:g} s",
                flush=True,
            )
        with tempfile.TemporaryDirectory(prefix="shoal-doctor-") as folder:
            findings, calls = examine(
                Path(folder), options.file, flags, steps=options.steps, seconds=options.seconds, stall_s=STALL_S
            )
    except UserError as error:
        print(f"shoal doctor env: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    counts = {level: sum(finding.level is level for finding in findings) for level in Level}
    if options.json:
        report: Dict[str, Any] = {
            "environment": env.factory,
            "lanes": env.lanes,
            "seed": config.run.seed,
            "calls": calls,
            "faults": counts[Level.FAULT],
            "warnings": counts[Level.WARNING],
            "findings": [finding.to_dict() for finding in findings],
        }
        print(json.dumps(report, indent=1))
    else:
        for finding in findings:
            print(finding.line())
        print(
            f"{counts[Level.OK]} ok, {counts[Level.WARNING]} to look at, {counts[Level.FAULT]} at fault, after"
            f" {calls} calls of step"
        )
    return EXIT_FAULTS if counts[Level.FAULT] else EXIT_OK


def examine(
    folder: Path, file: str, flags: Sequence[str], *, steps: int, seconds: float, stall_s: float
) -> Tuple[List[Finding], int]:
    """Run two trials, and compare the second with the first.

    Args:
        folder: for the trials' files; it exists.
        file: the run file.
        flags: its overrides.
        steps: calls of step, at most.
        seconds: of stepping, at most.
        stall_s: a trial that does nothing for so long is ended.

    Returns:
        The findings, and the calls of step in the first trial.
    """
    records: List[Path] = []
    findings: List[Finding] = []
    calls = 0
    for number in range(2):
        records.append(folder / f"record-{number}.npz")
        trial = Trial(
            file=file,
            flags=tuple(flags),
            steps=steps,
            seconds=seconds,
            result=str(folder / f"result-{number}.json"),
            record=str(records[-1]),
            stage=str(folder / f"stage-{number}"),
            is_repeat=number > 0,
        )
        outcome = run_trial(trial, folder / f"trial-{number}.json", stall_s)
        if number == 0:
            findings, calls = list(outcome.findings), outcome.calls
            if not outcome.is_complete or not records[0].exists() or not calls:
                return findings, calls
        elif not outcome.is_complete or not records[1].exists():
            why = outcome.findings[0].what if outcome.findings else "it wrote nothing"
            findings.append(warning("determinism", f"a second process did not get as far: {why}", "run it again"))
            return findings, calls
    one, other = (_load(record) for record in records)
    return [*findings, compare(one, other)], calls


def _load(path: Path) -> Dict[str, Any]:
    with np.load(path) as columns:
        return dict(columns)


def _parse(arguments: Sequence[str]) -> Tuple[argparse.Namespace, List[str]]:
    """Our own options, then overrides of the run file."""
    words = list(arguments)
    first = next((i for i, word in enumerate(words) if word.startswith("--") and "." in word.partition("=")[0]), None)
    flags = [] if first is None else words[first:]
    parser = argparse.ArgumentParser(
        prog="shoal doctor env",
        description="Run the environment of a run file for a while, and say what of the contract it keeps.",
        usage="shoal doctor env FILE.toml [--steps N] [--seconds S] [--json] [--section.key VALUE ...]",
        allow_abbrev=False,
    )
    parser.add_argument("file", metavar="FILE.toml", help="a run file")
    parser.add_argument("--steps", type=_positive_int, default=STEPS, metavar="N", help=f"calls of step; else {STEPS}")
    parser.add_argument(
        "--seconds", type=_positive, default=SECONDS, metavar="S", help=f"of stepping, at most; else {SECONDS:g}"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args(words[:first]), flags


def _positive_int(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 upwards")
    return int(text)


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not (np.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return value


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
