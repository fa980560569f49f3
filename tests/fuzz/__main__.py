"""`python -m tests.fuzz [--minutes N] [--target NAME]`: the long form; inputs that fail are added to the corpus.

Where `atheris` is installed, `--engine atheris` looks for new paths by coverage instead of changing inputs blindly.
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path
from types import FrameType
from typing import List, Optional

from tests.fuzz.corpus_files import CORPUS, inputs_of, keep
from tests.fuzz.mutation import MAX_BYTES, mutate
from tests.fuzz.targets import TARGETS, run

HANGS_S = 60  # an input that is not done with by then is a failure


def main(arguments: List[str]) -> int:
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=2.0, help="of all targets together")
    parser.add_argument("--target", choices=sorted(TARGETS), action="append", help="this one alone; may be repeated")
    parser.add_argument("--seed", type=int, default=0, help="another one tries other changes; 0: a random one")
    parser.add_argument("--engine", choices=("changes", "atheris"), default="changes")
    options = parser.parse_args(arguments)
    names = options.target or sorted(TARGETS)
    seconds = options.minutes * 60 / len(names)
    warnings.simplefilter("error")  # as in the tests
    signal.signal(signal.SIGALRM, _give_up)
    if options.engine == "atheris":
        if len(names) == 1:
            return _by_coverage(names[0], seconds)
        failed = [name for name in names if not _in_a_process(name, seconds)]
    else:
        seed = options.seed or random.SystemRandom().randrange(1, 2**32)
        print(f"seed {seed}: {len(names)} targets, {seconds:.1f} s each")
        failed = [name for name in names if not _by_changes(name, seed, seconds)]
    print(f"failed: {', '.join(failed)}" if failed else "every input met a refusal or a valid result")
    return 1 if failed else 0


def _by_changes(name: str, seed: int, seconds: float) -> bool:
    """Change inputs until the time is over; False: one failed, and is kept."""
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
    signal.alarm(HANGS_S)
    try:
        with tempfile.TemporaryDirectory() as folder:
            run(name, data, Path(folder))
    except Exception:  # noqa: BLE001 (whatever it is: that is what is looked for)
        traceback.print_exc()
        print(f"{name:<20} FAILED; the input is kept in {keep(name, data)}")
        return False
    finally:
        signal.alarm(0)
    return True


def _give_up(_signal: int, _frame: Optional[FrameType]) -> None:
    raise TimeoutError(f"an input takes longer than {HANGS_S} s")


def _in_a_process(name: str, seconds: float) -> bool:
    """Fuzz one target by coverage; libFuzzer ends the process when its time is over."""
    words = ["--engine", "atheris", "--target", name, "--minutes", str(seconds / 60)]
    return subprocess.run([sys.executable, "-m", "tests.fuzz", *words]).returncode == 0


def _by_coverage(name: str, seconds: float) -> int:
    """Look for new paths, from the corpus on, until the time is over or an input fails, which is kept."""
    try:
        import atheris
    except ImportError:
        print("atheris is not installed: pip install atheris, or leave --engine away")
        return 2

    def one(data: bytes) -> None:
        if not _try(name, data):
            raise AssertionError(f"{name} failed, as told above")

    atheris.instrument_all()
    with tempfile.TemporaryDirectory() as found:  # where new paths go; the corpus is read alone
        flags = [f"-max_total_time={max(1, round(seconds))}", f"-max_len={MAX_BYTES}", f"-artifact_prefix={found}/"]
        atheris.Setup([sys.argv[0], found, str(CORPUS / name), *flags], one)
        atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
