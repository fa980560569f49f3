"""`python -m tests.fuzz [--minutes N] [--target NAME]`: the long form; inputs that fail are added to the corpus.

Where `atheris` is installed, `--engine atheris` looks for new paths by coverage instead of changing inputs blindly.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path
from typing import List

from tests.fuzz.corpus_files import inputs_of, keep
from tests.fuzz.mutation import MAX_BYTES, mutate
from tests.fuzz.targets import TARGETS, run


def main(arguments: List[str]) -> int:
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=2.0, help="of all targets together")
    parser.add_argument("--target", choices=sorted(TARGETS), action="append", help="this one alone; may be repeated")
    parser.add_argument("--seed", type=int, default=0, help="another one tries other changes; 0: a random one")
    parser.add_argument("--engine", choices=("changes", "atheris"), default="changes")
    options = parser.parse_args(arguments)
    names = options.target or sorted(TARGETS)
    if options.engine == "atheris":
        return _by_coverage(names[0], options.minutes * 60)
    seed = options.seed or random.SystemRandom().randrange(1, 2**32)
    print(f"seed {seed}: {len(names)} targets, {options.minutes * 60 / len(names):.1f} s each")
    failed = [name for name in names if not _by_changes(name, seed, options.minutes * 60 / len(names))]
    print(f"failed: {', '.join(failed)}" if failed else "every input met a refusal or a valid result")
    return 1 if failed else 0


def _by_changes(name: str, seed: int, seconds: float) -> bool:
    """Change inputs until the time is over; False: one failed, and is kept."""
    warnings.simplefilter("error")  # as in the tests
    rng, inputs = random.Random(seed), inputs_of(name)
    deadline_s, tried = time.monotonic() + seconds, 0
    while time.monotonic() < deadline_s:
        data = mutate(rng.choice(inputs), rng, inputs)
        tried += 1
        if not _try(name, data):
            return False
    print(f"{name:<20} {tried} inputs")
    return True


def _try(name: str, data: bytes) -> bool:
    try:
        with tempfile.TemporaryDirectory() as folder:
            run(name, data, Path(folder))
    except Exception:  # noqa: BLE001 (whatever it is: that is what is looked for)
        traceback.print_exc()
        print(f"{name:<20} FAILED; the input is kept in {keep(name, data)}")
        return False
    return True


def _by_coverage(name: str, seconds: float) -> int:
    try:
        import atheris
    except ImportError:
        print("atheris is not installed: pip install atheris, or leave --engine away")
        return 2

    def one(data: bytes) -> None:
        with tempfile.TemporaryDirectory() as folder:
            run(name, data, Path(folder))

    atheris.instrument_all()
    atheris.Setup([sys.argv[0], f"-max_total_time={int(seconds)}", f"-max_len={MAX_BYTES}"], one)
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
