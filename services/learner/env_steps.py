"""How many environment steps stand behind the training: what each ring of the replay acknowledged, added up."""

from __future__ import annotations

import contextlib
from typing import Dict, Mapping

from services.common.lifecycle import Lifecycle
from services.common.rpc import Refused, Stopped, Unavailable
from services.learner.observation_statistics import ObservationStatistics
from services.learner.replay_client import ReplayClient
from shoal.v1 import replay_pb2

POLL_PERIOD_S = 1.0


class AcknowledgedSteps:
    """Asks the replay once a second, and remembers earlier rings of it."""

    def __init__(self, earlier: Mapping[str, int]) -> None:
        self._steps: Dict[str, int] = dict(earlier)  # ring -> steps

    @property
    def total(self) -> int:
        return sum(self._steps.values())

    def by_ring(self) -> Dict[str, int]:
        """As kept in checkpoints."""
        return dict(self._steps)

    def watch(self, replay: ReplayClient, lifecycle: Lifecycle, statistics: ObservationStatistics) -> None:
        """Poll until the process stops; run it on a thread. `statistics` hear the same answers while they need them."""
        while not lifecycle.stopping.wait(POLL_PERIOD_S):
            try:
                info = replay.info(with_moments=not statistics.is_frozen)
            except Stopped:
                return
            self._note(info)
            statistics.note(info)

    def poll_once(self, replay: ReplayClient) -> None:
        """Ask now, and be content with what was known if the replay does not answer, or not to us any more."""
        with contextlib.suppress(Refused, Unavailable):
            self._note(replay.info_once())

    def _note(self, info: replay_pb2.GetReplayInfoResponse) -> None:
        if info.ring_id:  # it has one when the first actor has introduced itself
            self._steps[f"{info.ring_id:x}"] = info.steps.acknowledged
