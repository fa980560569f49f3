"""One input given to one target in the long form: what fails, or takes for ever, is kept in the corpus."""

from __future__ import annotations

import signal
import tempfile
import traceback
from pathlib import Path
from types import FrameType
from typing import Optional

from tests.fuzz.corpus_files import keep
from tests.fuzz.targets import run

HANGS_S = 60  # an input that is not done with by then is a failure


def attempt(name: str, data: bytes) -> bool:
    """Whether the input met a refusal or a valid result; in the main thread alone."""
    earlier = signal.signal(signal.SIGALRM, _give_up)
    signal.alarm(HANGS_S)
    try:
        with tempfile.TemporaryDirectory() as folder:
            run(name, data, Path(folder))
    except Exception:  # noqa: BLE001 (whatever it is: that is what is looked for)
        traceback.print_exc()
        print(f"{name:<20} FAILED; the input is kept in {keep(name, data)}", flush=True)
        return False
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, earlier)
    return True


def _give_up(_signal: int, _frame: Optional[FrameType]) -> None:
    raise TimeoutError(f"an input takes longer than {HANGS_S} s")
