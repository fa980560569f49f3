"""One section of the benchmark in a process of its own, with the environment that `shoal up` gives to an actor.

python -m bench.actor.measure SECTION JSON-ARGUMENTS writes one line of JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any, Callable, Dict, List

from bench.actor import bare_loop, inference, overlap, scaling, sustained, wire
from services.cli.plan import child_environ
from services.common.lifecycle import LIFELINE_VARIABLE

SECTIONS: Dict[str, Callable[..., Any]] = {
    "bare_loop": bare_loop.measure,
    "sustained": sustained.measure,
    "overlap": overlap.measure,
    "inference": inference.measure,
    "wire": wire.measure,
    "scaling": scaling.measure,
}


def ask(section: str, arguments: Dict[str, Any], timeout_s: float) -> Any:
    """Measure a section in a process of its own.

    Raises:
        RuntimeError: it failed; the message is what it said last.
    """
    environ = child_environ(os.environ, 0, threads=1)
    del environ[LIFELINE_VARIABLE]
    command = [sys.executable, "-m", "bench.actor.measure", section, json.dumps(arguments)]
    try:
        ended = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            env=environ,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"it took more than {timeout_s:g} s") from None
    if ended.returncode:
        raise RuntimeError((ended.stderr.strip().splitlines() or ["it said nothing"])[-1])
    return json.loads(ended.stdout.splitlines()[-1])


def main(arguments: List[str]) -> int:
    print(json.dumps(SECTIONS[arguments[0]](**json.loads(arguments[1]))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
