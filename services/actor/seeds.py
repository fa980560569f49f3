"""Seeds: every actor and goal set its own stream, none of which meets another."""

from __future__ import annotations

import zlib

import numpy as np

TRAINING, SELECTION, HELD_OUT = 0, 1, 2  # actors' episodes; goal set A chooses the best; goal set B reports


def env_seed(run_seed: int, stream: int, name: str) -> int:
    """A seed in [0, 2^31) out of the run's seed, the kind of stream, and the name of its user or round."""
    sequence = np.random.SeedSequence([run_seed, stream, zlib.crc32(name.encode())])
    return int(sequence.generate_state(1)[0] >> 1)
