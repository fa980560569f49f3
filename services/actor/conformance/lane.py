"""`shoal doctor lane DUMP [FILE.toml]`: what a quarantine dump holds, and whether it happens again.

python -m services.actor.conformance.lane DUMP [FILE.toml] [--section.key VALUE ...]
"""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from typing import Iterator, List, Optional, Sequence, Tuple

import numpy as np

from services.actor.conformance.rerun import rerun_exactly, rerun_from_elsewhere
from services.actor.envs.factory import build_env
from services.actor.lane_group import group_seed
from services.common.chunk import TERMINATED, TRUNCATED, VALID
from services.common.config.load import load
from services.common.config.run import RunConfig
from services.common.errors import EXIT_CRASH, EXIT_OK, EXIT_USER, UserError
from services.common.sick_lane import SickLane, load_dump

USAGE = "usage: shoal doctor lane DUMP [FILE.toml] [--section.key VALUE ...]"
SHOWN_STEPS = 8
SHOWN_NUMBERS = 6


def main(arguments: Sequence[str]) -> int:
    """Print what the dump holds, then run the environment; 1 if the environment raised, 2 if a file is wrong."""
    words = list(arguments)
    if "--help" in words or "-h" in words:
        print(USAGE)
        return EXIT_OK
    first = next((i for i, word in enumerate(words) if word.startswith("--")), len(words))
    files, flags = words[:first], words[first:]
    if not 1 <= len(files) <= 2:
        print(USAGE, file=sys.stderr)
        return EXIT_USER
    try:
        _report(Path(files[0]), files[1:], flags)
    except UserError as error:
        print(f"shoal doctor lane: {error}", file=sys.stderr)
        return error.exit_code
    except Exception as error:  # noqa: BLE001 (whatever the environment raises is an answer too)
        traceback.print_exc()
        print(f"shoal doctor lane: the environment raised {type(error).__name__}: {error}", file=sys.stderr)
        return EXIT_CRASH
    return EXIT_OK


def _report(dump: Path, files: Sequence[str], flags: Sequence[str]) -> None:
    sick = _load(dump)
    print("\n".join(describe(sick)), flush=True)
    config = _config(dump, files, flags)
    if config is None:
        print("not run again: name the run file as a second argument, as the dump does not lie in a run's folder")
    else:
        print("\n".join(run_again(sick, config)))


def describe(sick: SickLane) -> Iterator[str]:
    """The lines about a dump."""
    steps = len(sick.columns["flags"])
    yield f"actor       {sick.actor} (incarnation {sick.incarnation}), lane {sick.lane} of lane group {sick.lane_group}"
    yield f"bad step    {sick.step} of the lane's life, in chunk {sick.sequence}, policy version {sick.policy_version}"
    for name in sick.bad_columns:
        yield f"not finite  {name}{_places(sick, name)}"
    yield f"holds       {steps} steps, {sick.step - steps + 1} to {sick.step}, the bad one last"
    names = [name for name in sick.columns if name.startswith("observation.")]
    for row in range(max(0, steps - SHOWN_STEPS), steps):
        flags = int(sick.columns["flags"][row])
        ends = [word for bit, word in ((TERMINATED, "terminated"), (TRUNCATED, "truncated")) if flags & bit]
        kind = " ".join(ends) if flags & VALID else "no transition"
        observation = "  ".join(f"{name[len('observation.') :]} {_short(sick.columns[name][row])}" for name in names)
        yield (
            f"  step {sick.step - steps + 1 + row}: {observation}  action {_short(sick.columns['action'][row])}"
            f"  reward {sick.columns['reward'][row]:.6g}{'  ' + kind if kind else ''}"
        )


def run_again(sick: SickLane, config: RunConfig) -> List[str]:
    """Build the run's environment and do what the lane did, as nearly as the dump knows it.

    Raises:
        UserError: the environment cannot be built, or is not the one of the dump.
    """
    seed = group_seed(config.run.seed, sick.actor, sick.lane_group)
    lanes = config.env.lanes // config.actor.lane_groups
    env = build_env(config.env.factory, config.env.kwargs, lanes, seed)
    try:
        _check_fits(sick, env.num_lanes, {spec.name: spec.shape for spec in env.observation_spec})
        if len(sick.columns["flags"]) == sick.step + 1:
            return [f"run again   from the actor's seed {seed}", *rerun_exactly(env, sick, seed)]
        return [
            "run again   from other beginnings: the dump holds the lane's last steps, not all since the seed",
            *rerun_from_elsewhere(env, sick, seed),
        ]
    finally:
        env.close()


def _check_fits(sick: SickLane, num_lanes: int, shapes: object) -> None:
    held = {
        name[len("observation.") :]: tuple(column.shape[1:])
        for name, column in sick.columns.items()
        if name.startswith("observation.")
    }
    if held != shapes:
        raise UserError(f"the dump's observations are {held}, this environment's {shapes}: it is of another run")
    if sick.lane >= num_lanes:
        raise UserError(f"the dump is of lane {sick.lane}, and env.lanes is {num_lanes}: it is of another run")


def _load(path: Path) -> SickLane:
    try:
        return load_dump(path)
    except ValueError as error:
        raise UserError(str(error)) from None


def _config(dump: Path, files: Sequence[str], flags: Sequence[str]) -> Optional[RunConfig]:
    """Of the run file that was named, or of the run in whose folder the dump lies."""
    own = dump.resolve().parent.parent / "config.toml"
    if not files and not own.is_file():
        return None
    return load(Path(files[0]) if files else own, list(flags), os.environ).config


def _places(sick: SickLane, name: str) -> str:
    """Which numbers of the bad row are not finite, and what they are."""
    row = np.atleast_1d(sick.columns[name][-1])
    where: List[Tuple[int, ...]] = [tuple(map(int, place)) for place in np.argwhere(~np.isfinite(row))]
    shown = ", ".join(f"{list(place)} = {row[place]}" for place in where[:SHOWN_NUMBERS])
    return f": {shown}{', …' if len(where) > SHOWN_NUMBERS else ''}"


def _short(value: object) -> str:
    numbers = np.atleast_1d(np.asarray(value)).ravel()
    text = " ".join(f"{number:.4g}" for number in numbers[:SHOWN_NUMBERS].tolist())
    return f"[{text}{' …' if len(numbers) > SHOWN_NUMBERS else ''}]"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
