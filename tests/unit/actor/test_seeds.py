from __future__ import annotations

from services.actor.seeds import HELD_OUT, SELECTION, TRAINING, env_seed

PINNED = [365118657, 1578721470, 610303695]


def test_seeds_depend_on_run_stream_and_name_alone() -> None:
    assert env_seed(1, TRAINING, "actor-0") == env_seed(1, TRAINING, "actor-0")
    # Pinned: another rule would make runs of old run files come out otherwise, and without a word.
    assert [env_seed(1, stream, "round-0") for stream in (TRAINING, SELECTION, HELD_OUT)] == PINNED


def test_streams_actors_rounds_and_runs_do_not_meet() -> None:
    seeds = [
        env_seed(run, stream, name)
        for run in range(5)
        for stream in (TRAINING, SELECTION, HELD_OUT)
        for name in [f"actor-{i}" for i in range(20)] + [f"round-{i}" for i in range(20)]
    ]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**31 for seed in seeds)


def test_large_run_seeds_are_taken() -> None:
    assert env_seed(2**40, TRAINING, "a") != env_seed(0, TRAINING, "a")
