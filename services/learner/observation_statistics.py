"""Statistics of observations on their way from the replay, which counts them, to the sets of parameters that hold them.

They change only together with a version, and end to change when enough steps are behind them: what was trained under
one version was acted under the same.
"""

from __future__ import annotations

from typing import Dict

from services.agent.normalizer import Normalizer
from services.common.errors import UserError
from services.common.lifecycle import Lifecycle
from services.common.log import Log
from services.common.moments import Moments, decode_moments
from services.common.rpc import Stopped
from services.learner.replay_client import ReplayClient
from shoal.v1 import replay_pb2

ASK_PERIOD_S = 0.2


class ObservationStatistics:
    """Takes the newest moments into the learner's normalizer at each publication, until they are frozen."""

    def __init__(self, normalizer: Normalizer, *, enabled: bool, warmup_steps: int, log: Log) -> None:
        """Go on where the normalizer is: that of a resumed learner may be frozen already.

        Args:
            normalizer: the learner's.
            enabled: whether observations are normalized at all.
            warmup_steps: once as many steps are behind the statistics, they are frozen.
            log: hears when they are.
        """
        self._normalizer = normalizer
        self._enabled = enabled
        self._warmup_steps = warmup_steps
        self._log = log
        self._newest: Dict[str, Moments] = {}

    @property
    def is_frozen(self) -> bool:
        """Whether they will not change any more."""
        return not self._enabled or self._normalizer.steps >= self._warmup_steps

    def note(self, info: replay_pb2.GetReplayInfoResponse) -> None:
        """Hear what the replay counted; may be called from any thread.

        Raises:
            UserError: it counts nothing.
        """
        if self.is_frozen or not info.HasField("schema"):
            return
        if not info.moments:
            raise UserError(
                "normalization.observations is on, and the replay keeps no moments of observations: start the replay "
                "with the same run file, or set normalization.observations = false"
            )
        self._newest = decode_moments(info.moments)

    def take(self) -> None:
        """Use the newest moments from now on, if more steps are behind them; to be called before a publication."""
        newest = self._newest  # another thread may replace it
        steps = min((moments.count for moments in newest.values()), default=0)
        if self.is_frozen or steps <= self._normalizer.steps:
            return
        self._normalizer.take(newest)
        if self._normalizer.steps >= self._warmup_steps:
            self._log.info("statistics of observations are frozen", steps=self._normalizer.steps)

    def wait_for_first(self, replay: ReplayClient, lifecycle: Lifecycle, *, min_steps: int) -> bool:
        """Before the first update, wait for the moments of enough steps and take them.

        Args:
            replay: is asked.
            lifecycle: ends the wait.
            min_steps: that suffice: no more than the replay waits for before a first draw.

        Returns:
            Whether there are new statistics to publish.

        Raises:
            Stopped: the process is to end.
        """
        if self.is_frozen or self._normalizer.steps:
            return False
        while not lifecycle.stopping.wait(ASK_PERIOD_S):
            self.note(replay.info(with_moments=True))
            steps = min((moments.count for moments in self._newest.values()), default=0)
            if steps >= min(min_steps, self._warmup_steps):
                self.take()
                return True
        raise Stopped
