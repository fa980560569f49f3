"""The report that ends a run: the best parameters on the held-out goal set B, a table, a curve, a video.

python -m services.actor.evaluator.report RUN_FOLDER [--episodes N] [--seed S] [--video | --no-video]
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import threading
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, cast

from services.actor.envs.contract import VectorEnv
from services.actor.envs.factory import build_env
from services.actor.evaluator.episodes import EpisodeStatistics, run_episodes
from services.actor.seeds import HELD_OUT, env_seed
from services.agent.algorithm import Parameters, Policy
from services.agent.registry import policy_class
from services.common.config.load import load
from services.common.config.run import MAX_SEED, RunConfig
from services.common.errors import EXIT_OK, UserError
from services.common.files import write_atomically
from services.common.run_folder import Evaluation, Progress, RunFolder
from services.common.schema import Schema

MAX_LANES = 100
VIDEO_EPISODES = 2


def main(arguments: Sequence[str]) -> int:
    """Evaluate, print the table, write the files; return the exit code."""
    parser = argparse.ArgumentParser(prog="shoal eval", description="Judge a run's best parameters on held-out tasks.")
    parser.add_argument("run", help="the run's folder, as in runs/NAME")
    parser.add_argument("--episodes", type=int, help="held-out episodes (default: report.episodes of the run)")
    parser.add_argument("--seed", type=int, help="of the held-out tasks (default: the run's)")
    video = parser.add_mutually_exclusive_group()
    video.add_argument("--video", dest="video", action="store_true", default=None, help="draw eval.mp4")
    video.add_argument("--no-video", dest="video", action="store_false", help="do not")
    options = parser.parse_args(arguments)
    try:
        report(Path(options.run), episodes=options.episodes, seed=options.seed, video=options.video)
    except UserError as error:
        print(f"shoal eval: {error}", file=sys.stderr)
        return error.exit_code
    return EXIT_OK


def report(run: Path, *, episodes: Optional[int], seed: Optional[int], video: Optional[bool]) -> None:
    """Judge the best parameters of a run and leave result.json, learning_curve.png and eval.mp4 in its folder.

    Raises:
        UserError: there is no such run, or it has no parameters yet.
    """
    folder = RunFolder(run)
    if not folder.config.exists():
        raise UserError(f"there is no run in {str(run)!r}: it has no config.toml; name a folder under runs/")
    config = load(folder.config).config
    episodes = episodes if episodes is not None else config.report.episodes
    if episodes < 1:
        raise UserError(f"--episodes is {episodes}; at least 1 is needed")
    if seed is not None and not 0 <= seed <= MAX_SEED:
        raise UserError(f"--seed is {seed}; a whole number from 0 to {MAX_SEED} is needed")
    best = folder.load_best()
    if best is None:
        raise UserError(f"the run in {str(run)!r} has no best parameters yet: its evaluator has not judged any version")
    parameters, chosen = best
    goals = HeldOutGoals(seed if seed is not None else config.run.seed)
    statistics = _judge(config, parameters, episodes, goals)
    evaluations = folder.evaluations()
    result = summarize(config, chosen, folder.load_progress(), statistics)
    write_atomically(folder.result, (json.dumps(result, indent=2) + "\n").encode())
    for line in table_lines(result):
        print(line)
    files = [folder.result, draw_learning_curve(folder.learning_curve, evaluations, chosen, result)]
    if video if video is not None else config.report.video:
        files.append(_draw_video(config, parameters, folder.video, goals))
    print("\n".join(f"  {file}" for file in files if file))


class HeldOutGoals:
    """Seeds of goal set B, which no actor trains on and no choice is made by."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def __call__(self, number: int) -> int:
        return env_seed(self._seed, HELD_OUT, f"round-{number}")


def summarize(
    config: RunConfig, chosen: Evaluation, progress: Progress, statistics: EpisodeStatistics
) -> Dict[str, Any]:
    """What result.json holds; a success rate of None means that the environment reports none."""
    episodes, rate = len(statistics.returns), statistics.success_rate
    return {
        "run": config.run.name,
        "success_rate": rate if rate >= 0 else None,
        "success_error": math.sqrt(rate * (1 - rate) / episodes) if rate >= 0 else None,
        "mean_return": float(statistics.returns.mean()),
        "mean_episode_steps": float(statistics.lengths.mean()),
        "episodes": episodes,
        "best_version": chosen.version,
        "best_updates": chosen.updates,
        "updates": progress.updates,
        "env_steps": progress.env_steps,
        "wall_s": round(progress.training_seconds, 1),
        "seed": config.run.seed,
    }


def table_lines(result: Mapping[str, Any]) -> List[str]:
    """The result as a table for the terminal."""
    rate, error = result["success_rate"], result["success_error"]
    rows = [
        ("success on held-out goals", f"{rate:.1%} +- {error:.1%}" if rate is not None else "not reported"),
        ("mean return", f"{result['mean_return']:.2f}"),
        ("episodes", f"{result['episodes']}, {result['mean_episode_steps']:.0f} steps on average"),
        ("best version", f"{result['best_version']} (update {result['best_updates']:,} of {result['updates']:,})"),
        ("environment steps", f"{result['env_steps']:,}"),
        ("wall time of training", f"{result['wall_s']:.0f} s"),
        ("seed", str(result["seed"])),
    ]
    title = f" {result['run']} "
    return [f"{title:-^64}", *(f"  {name:<28}{value}" for name, value in rows), "-" * 64]


def draw_learning_curve(
    file: Path, evaluations: Sequence[Evaluation], chosen: Evaluation, result: Mapping[str, Any]
) -> Optional[Path]:
    """Draw success (or return) over updates; returns the file, or None if matplotlib is not there."""
    try:
        import matplotlib as mpl
    except ImportError:
        print("no learning_curve.png: matplotlib is not installed; install shoal[report]", file=sys.stderr)
        return None
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    reports_success = result["success_rate"] is not None
    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")

    def value(evaluation: Evaluation) -> float:
        return 100 * evaluation.success_rate if reports_success else evaluation.mean_return

    axes.plot([e.updates for e in evaluations], [value(e) for e in evaluations], color="#1f6f8b", lw=1.6, marker=".")
    axes.plot([chosen.updates], [value(chosen)], "o", color="#e76f51", ms=9, label=f"best: version {chosen.version}")
    final = 100 * result["success_rate"] if reports_success else result["mean_return"]
    label = f"best on {result['episodes']} held-out episodes: {final:.1f}{' %' if reports_success else ''}"
    axes.axhline(final, color="#2a9d8f", ls="--", lw=1.2, label=label)
    axes.set_xlabel("updates")
    axes.set_ylabel("success on goal set A, %" if reports_success else "mean return on goal set A")
    axes.set_title(f"{result['run']}: {result['env_steps']:,} environment steps in {result['wall_s']:.0f} s")
    axes.grid(alpha=0.25)
    axes.legend(loc="lower right", frameon=False)
    figure.savefig(file, dpi=120)
    plt.close(figure)
    return file


def _policy(config: RunConfig, env: VectorEnv) -> Policy:
    policy: Policy = policy_class(config.algorithm.name)(
        Schema(tuple(env.observation_spec), env.action_spec),
        config.algorithm_settings,
        num_lanes=env.num_lanes,
        actor_index=0,
        num_actors=1,
    )
    return policy


def _judge(config: RunConfig, parameters: Parameters, episodes: int, goals: HeldOutGoals) -> EpisodeStatistics:
    env = build_env(config.env.factory, config.env.kwargs, min(episodes, MAX_LANES), goals(0))
    try:
        policy = _policy(config, env)
        return run_episodes(
            env,
            lambda observation: policy.act_greedily(parameters, observation),
            episodes=episodes,
            seed_of_round=goals,
            stopping=threading.Event(),
        )
    finally:
        env.close()


def _draw_video(config: RunConfig, parameters: Parameters, file: Path, goals: HeldOutGoals) -> Optional[Path]:
    """Draw eval.mp4; a machine without a renderer is said, and is no error."""
    from services.actor.envs.video import RenderableEnv, record

    env = build_env(config.env.factory, config.env.kwargs, 1, goals(0))
    try:
        if not hasattr(env, "render"):
            print("no eval.mp4: this environment cannot be drawn", file=sys.stderr)
            return None
        policy = _policy(config, env)
        drawn = cast(RenderableEnv, env)
        record(drawn, lambda o: policy.act_greedily(parameters, o), file, episodes=VIDEO_EPISODES, seed=goals(0))
    except RuntimeError as error:
        print(f"no eval.mp4: {error}", file=sys.stderr)
        return None
    finally:
        env.close()
    return file


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
