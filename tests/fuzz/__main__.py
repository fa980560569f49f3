"""`python -m tests.fuzz [--minutes N] [--target NAME]`: the long form; inputs that fail are added to the corpus.

Where `atheris` is installed, `--engine atheris` looks for new paths by coverage instead of changing inputs blindly.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import time
import warnings
from importlib.util import find_spec
from typing import List

from tests.arguments import positive
from tests.fuzz.attempt import attempt
from tests.fuzz.corpus_files import inputs_of
from tests.fuzz.mutation import mutate
from tests.fuzz.targets import TARGETS


def main(arguments: List[str]) -> int:
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("--minutes", type=positive, default=2.0, help="of all targets together")
    parser.add_argument("--target", choices=sorted(TARGETS), action="append", help="this one alone; may be repeated")
    parser.add_argument("--seed", type=int, default=0, help="another one tries other changes; 0: a random one")
    parser.add_argument("--engine", choices=("changes", "atheris"), default="changes")
    options = parser.parse_args(arguments)
    names = options.target or sorted(TARGETS)
    seconds = options.minutes * 60 / len(names)
    if options.engine == "atheris":
        if find_spec("atheris") is None:
            print("atheris is not installed: pip install atheris, or leave --engine away")
            return 2
        failed = [name for name in names if not _by_coverage(name, seconds)]
    else:
        seed = options.seed or random.SystemRandom().randrange(1, 2**32)
        print(f"seed {seed}: {len(names)} targets, {seconds:.1f} s each")
        failed = [name for name in names if not _by_changes(name, seed, seconds)]
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
        if not attempt(name, data):
            return False
    print(f"{name:<20} {tried} inputs")
    return True


def _by_coverage(name: str, seconds: float) -> bool:
    """Fuzz one target in a process of its own, since libFuzzer ends it; False: an input failed, and is kept."""
    words = [sys.executable, "-m", "tests.fuzz.by_coverage", name, str(seconds)]
    done = subprocess.run(
        words, check=False, stderr=subprocess.STDOUT, stdout=subprocess.PIPE, text=True, errors="replace"
    )
    lines = done.stdout.splitlines()
    end = next((line for line in reversed(lines) if line.startswith("Done ")), "it did not get to its end")
    print(f"{name:<20} {end}" if done.returncode == 0 else "\n".join(lines[-60:]), flush=True)
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
