"""`python -m tests.fuzz.by_coverage TARGET SECONDS`: looks for new paths by coverage; libFuzzer ends the process."""

from __future__ import annotations

import sys
import tempfile
import warnings
from typing import List

import atheris  # type: ignore[import-not-found,import-untyped,unused-ignore]  # few have it

with atheris.instrument_imports(include=["services"]):  # what is imported later, or elsewhere, is not watched
    from tests.fuzz.attempt import HANGS_S, attempt

from tests.fuzz.corpus_files import CORPUS
from tests.fuzz.mutation import MAX_BYTES


def main(arguments: List[str]) -> None:
    """Begin with the corpus, and go on until the time is over or an input fails, which is kept."""
    name, seconds = arguments[0], float(arguments[1])
    warnings.simplefilter("error")  # as in the tests

    def one(data: bytes) -> None:
        if not attempt(name, data):
            raise AssertionError(f"{name} failed, as told above")

    with tempfile.TemporaryDirectory() as found:  # where new paths go; the corpus is read alone
        flags = [f"-max_total_time={max(1, round(seconds))}", f"-max_len={MAX_BYTES}", f"-timeout={2 * HANGS_S}"]
        atheris.Setup([sys.argv[0], found, str(CORPUS / name), f"-artifact_prefix={found}/", *flags], one)
        atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1:])
