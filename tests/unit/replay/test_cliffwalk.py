"""Prioritized draws against uniform ones on the blind cliffwalk (Schaul 2016, section 3.1).

Of two actions in each state one goes on and the other ends the episode; only going on to the end is rewarded. The
store holds every sequence of actions once, so transitions that teach anything are as rare as 2^-n.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from services.replay.item_store import Intake, ItemStore
from services.replay.sampler_settings import SamplerSettings

NUM_STATES, DISCOUNT, RATE = 7, 0.9, 0.25


def _walks() -> Any:
    """All steps of all sequences of actions, as columns (state, action, ended, reward)."""
    steps = []
    for sequence in range(2**NUM_STATES):
        for state in range(NUM_STATES):
            action = (sequence >> state) & 1
            right = action == state % 2
            at_the_end = state == NUM_STATES - 1
            steps.append((state, action, not right or at_the_end, float(right and at_the_end)))
            if steps[-1][2]:
                break
    return [np.array(column) for column in zip(*steps)]


def _updates_needed(schema: Any, make_chunk: Any, sampling: SamplerSettings, seed: int) -> int:
    """Updates of the table of Q values, eight a draw, until it is right."""
    state, action, ended, reward = _walks()
    order = np.random.default_rng(seed).permutation(len(state))
    state, action, ended, reward = (column[order] for column in (state, action, ended, reward))
    chunk = make_chunk(T=len(state), B=1, ends=[(int(t), 0) for t in range(len(state))])
    chunk.reward[:, 0] = reward
    store = ItemStore(capacity=2 * len(state), schema=schema, n_step=1, discount=DISCOUNT, sampling=sampling)
    store.insert(chunk, np.full((1, 1), -1), Intake(np.zeros(1, np.bool_), 0, False, 0, 0.0))
    truth = np.zeros((NUM_STATES, 2))
    for s in range(NUM_STATES):
        truth[s, s % 2] = DISCOUNT ** (NUM_STATES - 1 - s)
    q, rng = np.zeros((NUM_STATES, 2)), np.random.default_rng(seed + 100)
    for updates in range(8, 80_000, 8):
        keys = store.draw(rng, 1, 8).keys
        td_error = np.zeros(8)
        for i, key in enumerate(keys):
            s, a = state[key], action[key]
            future = 0.0 if ended[key] else DISCOUNT * q[s + 1].max()
            td_error[i] = reward[key] + future - q[s, a]
            q[s, a] += RATE * td_error[i]
        store.update_priorities(keys, np.abs(td_error))
        if ((q - truth) ** 2).mean() < 1e-3:
            return updates
    return 80_000


@pytest.mark.parametrize("rule", ["td_error", "td_error_visits"])
def test_priorities_learn_the_cliffwalk_in_a_fraction_of_the_updates(schema: Any, make_chunk: Any, rule: str) -> None:
    prioritized = SamplerSettings(priority_exponent=0.8, priority_rule=rule)
    uniform = SamplerSettings(selector="uniform")
    needed = np.array(
        [[_updates_needed(schema, make_chunk, how, seed) for how in (prioritized, uniform)] for seed in range(5)]
    )
    assert (needed < 80_000).all()
    assert np.median(needed[:, 0]) < 0.5 * np.median(needed[:, 1])
