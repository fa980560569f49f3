"""The newest parameters: whole sets, fetched when the chief has a newer one, swapped at once."""

from __future__ import annotations

import contextlib
import math
import random
import threading
import time
from functools import partial
from typing import Callable, Optional

from services.common.lifecycle import Lifecycle
from services.common.log import Log
from services.common.parameter_download import ParameterDownload
from services.common.parameter_set import ParameterSet, ParameterShapes
from services.common.peer import Peer
from services.common.rpc import Caller, Stopped
from services.common.security.transport import CALL_IN_THE_CLEAR, ClientSecurity
from services.common.waits import Held
from shoal.v1 import parameters_pb2

RETRY_S = 0.1  # between two questions when the answer was not what is known to be there
HINTS_ALIVE_S = 10.0  # hints that came so lately are relied upon: the poll is slow while they come
JITTER = 0.25  # of a poll's period, to both sides: readers that began together do not ask together


class Draining(Exception):
    """The run is being brought to rest, and there is nothing to act with meanwhile."""


class ParameterClient:
    """Keeps the newest set at hand; one slot, no queue."""

    def __init__(
        self,
        address: str,
        *,
        peer: Peer,
        poll_period_s: float,
        lifecycle: Lifecycle,
        log: Log,
        role: parameters_pb2.ParameterRole.ValueType = parameters_pb2.PARAMETER_ROLE_ACT,
        waiting_for: Callable[[], str] = lambda: "",
        is_drained: Callable[[], bool] = lambda: False,
        shapes: Optional[ParameterShapes] = None,
        security: ClientSecurity = CALL_IN_THE_CLEAR,
        parked: Held = contextlib.nullcontext,
        away: Held = contextlib.nullcontext,
    ) -> None:
        """Connect to nothing yet.

        Args:
            address: HOST:PORT of the chief.
            peer: who asks.
            poll_period_s: between two questions while no hint comes.
            lifecycle: of the process.
            log: told of waits and of damaged answers.
            role: which set.
            waiting_for: what the process waits for, in one sentence or none; told to the chief, whom people ask.
            is_drained: whether the process is at rest since the run is drained; told to the chief.
            shapes: of the network that is to run on the sets; None: any.
            security: certificates and token.
            parked: entered while whoever acts waits for parameters.
            away: entered while the chief does not answer.
        """
        self._caller = Caller("chief", address, lifecycle.stopping, log, security=security, held=away)
        self._parked = parked
        self._download = ParameterDownload(
            self._caller,
            peer=peer,
            role=role,
            stopping=lifecycle.stopping,
            log=log,
            waiting_for=waiting_for,
            is_drained=is_drained,
            shapes=shapes,
        )
        self._newest: Optional[ParameterSet] = None
        self._poll_period_s = poll_period_s
        self._ask_again_s = 0.0  # as the chief wishes while hints come
        self._max_age_s = math.inf  # beyond which whoever waits for parameters parks
        self._lifecycle = lifecycle
        self._log = log
        self._rng = random.Random()
        self._hinted_version = 0
        self._hinted_draining = False
        self._asks_now = False
        self._num_parked = 0  # who waits in `wait_for_newest`
        self.is_draining = False  # as the chief said last
        self._hinted_at = -HINTS_ALIVE_S
        self._changed = threading.Condition()
        self._confirmed_at = time.monotonic()
        self.run_state: parameters_pb2.RunState.ValueType = parameters_pb2.RUN_STATE_UNSPECIFIED
        lifecycle.on_stop(self._wake)

    @property
    def newest(self) -> Optional[ParameterSet]:
        """The newest set at hand; None before the first."""
        return self._newest

    @property
    def newest_known_version(self) -> int:
        """The newest version that this process has heard of."""
        newest = self.newest
        return max(self._hinted_version, newest.version if newest else 0)

    @property
    def age_s(self) -> float:
        """Seconds since the chief last confirmed that this is the newest set."""
        return time.monotonic() - self._confirmed_at

    @property
    def waiting_for(self) -> str:
        """One sentence while the chief does not answer; empty otherwise."""
        return self._caller.waiting_for

    def hint(self, version: int) -> None:
        """Somebody said that the chief's newest version is `version`."""
        with self._changed:
            if version:  # a replay that has not heard of the chief says nothing
                self._hinted_at = time.monotonic()
            if version != self._hinted_version:
                self._hinted_version = version
                self._changed.notify_all()

    def hint_draining(self, draining: bool) -> None:
        """Somebody said whether the run is brought to rest; the chief is asked when that is news."""
        if draining != self._hinted_draining:
            self._hinted_draining = draining
            self.ask_now()

    def ask_now(self) -> None:
        """Let the next question come at once: there is something to tell, or to hear."""
        with self._changed:
            self._asks_now = True
            self._changed.notify_all()

    @property
    def parked_for(self) -> str:
        """One sentence while somebody waits for parameters to act with; empty otherwise."""
        if not self._num_parked:
            return ""
        if self.newest is None:
            return "waiting for the chief's first parameters"
        return (
            f"parked: the chief has not confirmed its parameters for {self.age_s:.0f} s, and after "
            f"{self._max_age_s:g} s (actor.max_policy_age_s) they are too old to act with"
        )

    def fetch(self) -> parameters_pb2.GetManifestResponse:
        """Ask the chief once and take the newest set if there is one.

        Raises:
            Refused: it has none for this process, as `ParameterDownload.fetch` tells.
            Stopped: the process is to end.
        """
        manifest = self._download.fetch()
        self._confirmed_at = time.monotonic()
        self._ask_again_s = manifest.ask_again_seconds
        self.run_state = manifest.run_state
        with self._changed:
            self.is_draining = manifest.draining  # before the set: who acts with it knows that it must not
            self._newest = self._download.newest
            self._changed.notify_all()
        return manifest

    def run(self) -> None:
        """Fetch on hints, and by the poll period without one; run it on a thread."""
        while not self._lifecycle.stopping.is_set():
            hinted_version = self._hinted_version
            self._asks_now = False
            try:
                self.fetch()
            except Stopped:
                return
            if self.run_state == parameters_pb2.RUN_STATE_FINISHED:
                self._lifecycle.stop("training is finished")
                return
            # A chief that has just restarted does not have the hinted version yet: it is asked soon, not at once.
            newest = self.newest
            is_behind = newest is None or newest.version < hinted_version
            with self._changed:
                period_s = self._period_s()
                self._changed.wait_for(
                    partial(self._is_news, hinted_version), min(RETRY_S, period_s) if is_behind else period_s
                )

    def _is_news(self, hinted_version: int) -> bool:
        return self._asks_now or self._hinted_version != hinted_version or self._lifecycle.stopping.is_set()

    def wait_for_newest(self, max_age_s: float) -> ParameterSet:
        """The newest set; waits for the first, and parks while none was confirmed for `max_age_s`.

        Raises:
            Draining: the run is brought to rest before there is one.
            Stopped: the process is to end.
        """
        self._max_age_s = max_age_s
        newest = self.newest
        if newest is not None and self.age_s <= max_age_s:
            return newest
        with self._changed:
            self._num_parked += 1
        try:
            with self._parked():
                return self._park(max_age_s)
        finally:
            with self._changed:
                self._num_parked -= 1

    def _park(self, max_age_s: float) -> ParameterSet:
        said = False
        while not self._lifecycle.stopping.is_set():
            newest = self.newest
            if newest is not None and self.age_s <= max_age_s:
                if said:
                    self._log.info("acting goes on", version=newest.version)
                return newest
            if self.is_draining:
                raise Draining
            if not said:
                said = True
                what = "parked: the parameters are too old" if newest else "waiting for the chief's first parameters"
                self._log.warning(what, age_s=round(self.age_s, 1)) if newest else self._log.info(what)
            self._lifecycle.stopping.wait(0.05)
        raise Stopped

    def wait_while_draining(self) -> None:
        """Wait until the chief says that the run goes on.

        Raises:
            Stopped: the process is to end.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self.is_draining or self._lifecycle.stopping.is_set())
        if self._lifecycle.stopping.is_set():
            raise Stopped

    def close(self) -> None:
        self._caller.close()

    def _period_s(self) -> float:
        """Until the next question: where hints bring versions it is for the end of training alone."""
        hints_come = time.monotonic() - self._hinted_at < HINTS_ALIVE_S
        period_s = max(self._poll_period_s, self._ask_again_s) if hints_come else self._poll_period_s
        return min(period_s, self._max_age_s / 2) * self._rng.uniform(1 - JITTER, 1 + JITTER)

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()
