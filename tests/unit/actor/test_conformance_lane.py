from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, List

import numpy as np
import pytest

from services.actor.conformance.lane import describe, main, run_again
from services.actor.envs.factory import build_env
from services.actor.seeds import TRAINING, env_seed
from services.common.chunk import TERMINATED, TRUNCATED, VALID
from services.common.config.run import RunConfig
from services.common.sealed import seal
from services.common.sick_lane import SickLane

LANE, CALL = 1, 5  # where and when the environment of the fault "NaN" goes wrong


def config(fault: str, seed: int = 3, **options: Any) -> RunConfig:
    kwargs = {"fault": fault, **options}
    env = {"factory": "tests.bad_envs:make", "lanes": 3, "kwargs": kwargs}
    return RunConfig.model_validate({"run": {"seed": seed}, "env": env})


def live(fault: str, steps: int, *, actor: str = "actor-0", **options: Any) -> SickLane:
    """What the replay would have kept of a lane after `steps` steps of an actor."""
    settings = config(fault, **options)
    seed = env_seed(settings.run.seed, TRAINING, actor)
    env = build_env(settings.env.factory, settings.env.kwargs, 3, seed)
    rng = np.random.default_rng(0)
    observation = env.reset(seed)["policy"].copy()
    observations, actions, rewards, flags = [], [], [], []
    for _ in range(steps):
        action = rng.uniform(-1, 1, (3, 1)).astype(np.float32)
        step = env.step(action)
        observations.append(observation[LANE])
        actions.append(action[LANE])
        rewards.append(step.reward[LANE])
        flags.append(VALID + TERMINATED * step.terminated[LANE] + TRUNCATED * step.truncated[LANE])
        observation = step.observation["policy"].copy()
    return SickLane(
        actor=actor,
        incarnation=7,
        lane_group=0,
        lane=LANE,
        sequence=0,
        step=steps - 1,
        policy_version=4,
        bad_columns=("observation.policy",),
        columns={
            "observation.policy": np.array(observations, np.float32),
            "action": np.array(actions, np.float32),
            "reward": np.array(rewards, np.float32),
            "flags": np.array(flags, np.uint8),
        },
    )


def tail(sick: SickLane, rows: int) -> SickLane:
    return dataclasses.replace(sick, columns={name: column[-rows:] for name, column in sick.columns.items()})


def test_a_whole_life_is_repeated_to_the_bad_step() -> None:
    sick = live("NaN", CALL + 1)
    assert run_again(sick, config("NaN"))[-1] == (f"again: observation.policy not finite after step {CALL - 1}")


def test_what_does_not_happen_again_is_said() -> None:
    sick = live("NaN", CALL)
    lines = run_again(sick, config("", seed=3))
    assert lines[-1].startswith(f"not again: {CALL} steps with the same observations and actions")


def test_another_seed_is_another_life() -> None:
    sick = live("", 4)
    assert "observation 'policy' differs from the dump's in step 0" in run_again(sick, config("", seed=4))[-1]


def test_the_last_steps_are_tried_from_other_beginnings() -> None:
    sick = tail(live("", 30), 6)
    assert run_again(sick, config("NaN", call=3))[-1].startswith("again: in 1 of 60 episodes with the last ")
    lines = run_again(sick, config(""))
    assert "from other beginnings" in lines[0]
    assert lines[1].startswith("not again: 60 episodes with the last ")


def test_only_the_actions_of_the_bad_episode_are_tried() -> None:
    sick = tail(live("", 20), 8)
    flags = np.full(8, VALID, np.uint8)
    flags[4] |= TRUNCATED
    sick.columns["flags"] = flags
    assert "with the last 3 actions" in run_again(sick, config(""))[-1]


def test_a_dump_of_another_run_is_refused() -> None:
    other = RunConfig.model_validate({"env": {"factory": "Pendulum-v1", "lanes": 3}})
    sick = live("", 4)
    sick.columns["observation.policy"] = np.zeros((4, 5), np.float32)
    with pytest.raises(Exception, match="it is of another run"):
        run_again(sick, other)
    with pytest.raises(Exception, match="is of lane 8, and env"):
        run_again(dataclasses.replace(live("", 4), lane=8), config(""))


def test_a_lane_of_another_group_is_run_from_the_seed_of_its_group() -> None:
    split = config("")
    split = split.model_copy(update={"actor": split.actor.model_copy(update={"lane_groups": 3})})
    seeds = {run_again(dataclasses.replace(live("", 4), lane=0, lane_group=group), split)[0] for group in range(3)}
    assert len(seeds) == 3


def test_it_says_what_the_dump_holds() -> None:
    lines = list(describe(live("NaN", CALL + 1)))
    assert lines[0].startswith("actor       actor-0 (incarnation 7), lane 1 of lane group 0")
    assert "5 of the lane's life, in chunk 0, policy version 4" in lines[1]
    assert lines[2] == "not finite  observation.policy: [0] = nan"
    assert lines[3] == "holds       6 steps, 0 to 5, the bad one last"
    assert len(lines) == 10
    assert lines[-1].startswith("  step 5: policy [nan ")


def _written(folder: Path, sick: SickLane) -> str:
    facts = {key: value for key, value in dataclasses.asdict(sick).items() if key != "columns"}
    file = folder / "quarantine-actor-0-1-0-1.safetensors"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(seal(sick.columns, facts))
    return str(file)


def _run_file(file: Path, fault: str) -> str:
    kwargs = f'{{ fault = "{fault}" }}'
    text = f'[run]\nseed = 3\n[env]\nfactory = "tests.bad_envs:make"\nlanes = 3\nkwargs = {kwargs}\n'
    file.write_text(text, encoding="utf-8")
    return str(file)


@pytest.mark.parametrize("is_named", [True, False])
def test_the_run_file_is_named_or_that_of_the_runs_folder(
    tmp_path: Path, is_named: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    dump = _written(tmp_path / "run" / "quarantine", live("NaN", CALL + 1))
    files: List[str] = [dump]
    if is_named:
        files.append(_run_file(tmp_path / "mine.toml", "NaN"))
    else:
        _run_file(tmp_path / "run" / "config.toml", "NaN")
    assert main(files) == 0
    assert "again: observation.policy not finite" in capsys.readouterr().out


def test_without_a_run_file_it_is_only_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([_written(tmp_path / "run" / "quarantine", live("", 4))]) == 0
    assert "not run again: name the run file" in capsys.readouterr().out


def test_an_environment_that_raises_is_an_answer_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    dump = _written(tmp_path / "run" / "quarantine", live("", 6))
    assert main([dump, _run_file(tmp_path / "mine.toml", "raises")]) == 1
    assert "the environment raised RuntimeError: the gripper is lost" in capsys.readouterr().err


def test_mistakes_of_the_user_have_their_sentences(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "no.safetensors").write_bytes(b"nothing")
    assert main([str(tmp_path / "no.safetensors")]) == 2
    assert "is no quarantine dump that can be read" in capsys.readouterr().err
    assert main([]) == 2
    assert main(["--help"]) == 0
