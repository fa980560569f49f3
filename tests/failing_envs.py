"""Environments that fail in the ways simulators do, as a run file names them."""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import Any

from tests.fakes import FakeEnv

GO_ON = threading.Event()  # ends the hang of `make_hanging`


def make_paced(num_lanes: int, seed: int) -> FakeEnv:
    """Two milliseconds a step, episodes of 20 steps."""
    return FakeEnv(num_lanes, episode_steps=20, on_step=lambda _number: time.sleep(0.002))


def make_exploding(num_lanes: int, seed: int, after: int) -> FakeEnv:
    """Raises in its step number `after`."""
    return make_ending(num_lanes, seed, "raise", after)


def make_hanging(num_lanes: int, seed: int) -> FakeEnv:
    """Its first step returns when `GO_ON` is set."""

    def on_step(number: int) -> None:
        if number == 1:
            GO_ON.wait(20)
        time.sleep(0.002)

    return FakeEnv(num_lanes, episode_steps=20, on_step=on_step)


def make_ending(num_lanes: int, seed: int, how: str, after: int) -> FakeEnv:
    """Ends the process in its step number `after`, as a simulator does that lost its device or its window."""
    ends: Any = {"os._exit": lambda: os._exit(7), "sys.exit": lambda: sys.exit(0), "raise": _explode}

    def on_step(number: int) -> None:
        time.sleep(0.002)
        if number == after:
            ends[how]()

    return FakeEnv(num_lanes, episode_steps=20, on_step=on_step)


def _explode() -> None:
    raise ValueError("physics exploded")
