"""`python -m bench.learning`: the default arm, a chief and two helpers, int8 with feedback against float32.

Both arms are synchronous and differ in nothing but the codec. Runs of one seed follow each other, so that both meet
the machine in like states. Prints a table, and writes a JSON line for each run and one for the comparison.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Dict, List, Tuple

import numpy as np

from bench.learning.curves import area, compare, first_at, verdict
from bench.replay.machine import describe
from services.common.run_folder import RunFolder

ARMS: Dict[str, Tuple[str, ...]] = {
    "float32": ("--gradients.codec", "none"),
    "int8": ("--gradients.codec", "int8", "--gradients.error_feedback", "true"),
}
BAR, WIDEST, RUN_TIMEOUT_S = 0.9, 0.15, 900.0


def train(arm: str, seed: int, options: argparse.Namespace, folder: Path) -> Dict[str, Any]:
    """One training run; what its evaluator saw."""
    name = f"{arm}-{seed}"
    command = [
        *(sys.executable, "-m", "services.cli", "up", options.run_file),
        *("--run.name", name, "--run.folder", str(folder), "--run.seed", str(seed)),
        *("--learner.max_updates", str(options.updates), "--helper.count", str(options.helpers)),
        *("--report.episodes", "100", "--report.video", "false", "--evaluator.period_s", "0.1"),
        *ARMS[arm],
    ]
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{name} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    run = RunFolder(folder / name)
    curve = sorted(run.evaluations(), key=lambda each: each.updates)
    updates, success = [each.updates for each in curve], [each.success_rate for each in curve]
    steps = [each.env_steps for each in curve]
    return {
        "arm": arm,
        "seed": seed,
        "area": area(updates, success, options.updates),
        "updates_to_bar": first_at(BAR, updates, success),
        "env_steps_to_bar": first_at(BAR, steps, success),
        "evaluations": len(curve),
        "held_out_success": json.loads(run.result.read_text(encoding="utf-8"))["success_rate"],
        "wall_seconds": time.monotonic() - began,
        "training_seconds": run.load_progress().training_seconds,
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.learning", description=__doc__)
    parser.add_argument("--run-file", default="configs/arm_reach.toml")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--helpers", type=int, default=2)
    parser.add_argument("--updates", type=int, default=5000)
    parser.add_argument("--out", type=Path, default=Path(".cache/bench/learning.jsonl"))
    options = parser.parse_args()
    lines: List[Dict[str, Any]] = [{"kind": "machine", **describe()}]
    runs: List[Dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="shoal-learning-") as folder:
        for seed in range(1, options.seeds + 1):
            for arm in sorted(ARMS, reverse=seed % 2 == 0):  # neither is always the first
                runs.append(train(arm, seed, options, Path(folder)))
                print(" ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in runs[-1].items()))
                sys.stdout.flush()
    areas = {arm: [run["area"] for run in runs if run["arm"] == arm] for arm in ARMS}
    found = compare(areas["float32"], areas["int8"], np.random.default_rng(0))
    passed, sentence = verdict(found, WIDEST)
    print(f"area under the success curve, interquartile mean: float32 {found.reference:.3f}, int8 {found.other:.3f}")
    print(f"{'pass' if passed else 'FAIL'}: {sentence}; it must cover 0 and be at most {100 * WIDEST:.0f} % wide")
    lines += [{"kind": "run", **run} for run in runs]
    lines.append({"kind": "comparison", "passed": passed, **vars(found)})
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
