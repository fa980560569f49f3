"""The averaged policy: an exponential average of the acting parameters over updates (Polyak and Juditsky 1992)."""

from __future__ import annotations

from typing import Any, Dict, Mapping

import numpy as np
import numpy.typing as npt


class AveragedParameters:
    """average <- average + (1 - (1 - rate)^k) (parameters - average), for k updates since the last time.

    With parameters that stood still in between that equals k steps of `rate` each, so that the average does not depend
    on how often it is published.
    """

    def __init__(self, rate: float, earlier: Mapping[str, npt.NDArray[Any]], updates: int = 0) -> None:
        """Go on with the average of an earlier life.

        Args:
            rate: tau of one update, in [0, 1); 0: there is no average.
            earlier: as `state` gave it; empty to begin with the first parameters that come.
            updates: of the learner when `earlier` was saved.

        Raises:
            ValueError: `rate` is out of bounds.
        """
        if not 0 <= rate < 1:
            raise ValueError(f"an average rate of {rate:g} is none; it lies in [0, 1)")
        self.rate = rate
        self._average: Dict[str, npt.NDArray[np.float32]] = {
            name: np.array(a, np.float32) for name, a in earlier.items()
        }
        self._updates = updates

    def take_in(self, parameters: Mapping[str, npt.NDArray[np.float32]], updates: int) -> Dict[str, npt.NDArray[Any]]:
        """Average over the updates up to now.

        Args:
            parameters: name -> <float32>, of the learner after `updates` updates.
            updates: not below those of the last call.

        Returns:
            A copy of the average.
        """
        shapes = {name: array.shape for name, array in parameters.items()}
        if shapes != {name: array.shape for name, array in self._average.items()}:
            self._average = {
                name: np.array(array) for name, array in parameters.items()
            }  # the first, or other networks
        else:
            share = np.float32(1.0 - (1.0 - self.rate) ** (updates - self._updates))
            for name, array in parameters.items():
                self._average[name] += share * (array - self._average[name])
        self._updates = updates
        return self.state()

    def state(self) -> Dict[str, npt.NDArray[Any]]:
        """A copy, for a checkpoint."""
        return {name: average.copy() for name, average in self._average.items()}
