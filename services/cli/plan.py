"""Which processes a run consists of, and the command and environment of each."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, List, Mapping, Tuple

from services.cli.modules import SERVICES
from services.cli.ports import Endpoints
from services.common.config.load import ENV_PREFIX
from services.common.config.run import RunConfig
from services.common.lifecycle import LIFELINE_VARIABLE

# Freed buffers stay with the process instead of being mapped and faulted in page by page for each message: with these
# a unary call of 1 MB takes 1.5 ms instead of 2.4, and 15 page faults instead of 600. 32 MiB is the most that every
# glibc accepts as a threshold.
ALLOCATION = {
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(256 << 20),
    "MALLOC_TOP_PAD_": str(16 << 20),
    "MALLOC_ARENA_MAX": "2",
}


@dataclass(frozen=True)
class ChildSpec:
    """A process to be started and watched."""

    name: str  # "replay", "actor-0"
    role: str  # "replay", "learner", "helper", "actor", "evaluator"
    command: Tuple[str, ...]
    environ: Mapping[str, str]


def plan_children(
    config: RunConfig, config_file: Path, endpoints: Endpoints, environ: Mapping[str, str], lifeline: int
) -> List[ChildSpec]:
    """The run's processes in the order of their start.

    Args:
        config: resolved.
        config_file: where it lies, which every process reads.
        endpoints: chosen for this start.
        environ: of the launcher.
        lifeline: descriptor of the pipe's read end, inherited by each.
    """
    shared = ("--replay.addresses", endpoints.replay, "--learner.address", endpoints.learner, "--log.style", "console")
    specs: List[ChildSpec] = []

    def add(name: str, role: str, threads: int, *flags: str) -> None:
        command = (
            sys.executable,
            "-m",
            SERVICES.get(role, SERVICES["learner"]),  # a helper is a learner
            str(config_file),
            *shared,
            f"--{role}.metrics_port",
            str(endpoints.metrics[name]),
            *flags,
        )
        specs.append(ChildSpec(name, role, command, child_environ(environ, lifeline, threads=threads)))

    # A folder that the run file does not name lies in the run's own.
    folders: List[str] = []
    if not config.replay.dump_dir:
        folders += ["--replay.dump_dir", str(config_file.parent / "quarantine")]
    if not config.replay.data_dir:
        folders += ["--replay.data_dir", str(config_file.parent / "ring")]
    add("replay", "replay", 1, *folders)
    # A `helper.chief` of the run file is for learners that are started by hand.
    add("learner", "learner", config.learner.torch_threads, *(["--helper.chief", ""] if config.helper.chief else []))
    for index in range(config.helper.count):
        name = f"helper-{index}"
        chief = ("--helper.chief", endpoints.learner, "--helper.name", name)
        add(name, "helper", config.learner.torch_threads, *chief)
    if config.evaluator.enabled:
        add("evaluator", "evaluator", 1)
    for index in range(config.actor.count):
        name = f"actor-{index}"
        add(name, "actor", config.actor.torch_threads, "--actor.index", str(index), "--actor.name", name)
    return specs


def child_environ(environ: Mapping[str, str], lifeline: int, *, threads: int) -> Dict[str, str]:
    """The environment of a process: what the user set wins, but for what the config file already holds."""
    kept = {name: value for name, value in environ.items() if not name.startswith(ENV_PREFIX)}
    return {
        **ALLOCATION,
        "OMP_NUM_THREADS": str(threads),
        **kept,
        "PYTHONUNBUFFERED": "1",
        LIFELINE_VARIABLE: str(lifeline),
    }
