"""Importance weights: what prioritized sampling owes to an unbiased mean (Schaul et al. 2016, section 3.4)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from services.common.batch import Batch


def importance_weights(batch: Batch, exponent: float) -> npt.NDArray[np.float32]:
    """w_i = (N P_i)^-beta / max_j w_j.

    Args:
        batch: its `probability` is the priority part alone.
        exponent: beta, 0 (no correction) to 1 (full).

    Returns:
        <float32>[batch], in (0, 1].
    """
    weights: npt.NDArray[np.float64] = (batch.num_items * batch.probability) ** -exponent
    scaled: npt.NDArray[np.float32] = (weights / weights.max()).astype(np.float32)
    return scaled
