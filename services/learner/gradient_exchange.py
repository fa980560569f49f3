"""Where the calls of helpers meet the training loop: one lock, one condition, and nobody waits for ever."""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import replace
from typing import Callable, List, Optional, Tuple

from services.common.rpc import Stopped
from services.common.waits import Held
from services.learner.contributions import Contributions, Share
from services.learner.helpers import Answer, Helper, Helpers, PushStatus

LOOK_S = 0.1  # between two looks at leases and stops while the loop waits
PATIENCE_S = 0.2  # of a wait before it has a reason: each step waits a little


class GradientExchange:
    """Takes gradients up, hands them to the loop, and holds each helper's answer until its step was taken."""

    def __init__(
        self,
        helpers: Helpers,
        contributions: Contributions,
        *,
        answers_at_once: bool,
        held: Held = contextlib.nullcontext,
    ) -> None:
        """Begin closed: nothing is taken before the first `open`.

        Args:
            helpers: who takes part.
            contributions: what waits for a step.
            answers_at_once: a push is answered when it is taken up, not when its step was taken (asynchronous).
            held: entered while the loop waits for gradients.
        """
        self._held = held
        self._helpers = helpers
        self._contributions = contributions
        self._answers_at_once = answers_at_once
        self._changed = threading.Condition()
        self._newest_version = 0
        self._collecting_since_s: Optional[float] = None
        self._end = ""

    # --- the helpers' side -------------------------------------------------------------------------------------------

    @property
    def newest_version(self) -> int:
        """The newest base that was opened."""
        return self._newest_version

    def join(self, name: str, incarnation: int) -> Tuple[int, bool]:
        """Let a helper take part from the next base on; again, it renews its lease.

        Returns:
            The newest base so far, and whether it took part before.

        Raises:
            HelperFenced: a newer life has replaced this one.
            TooManyHelpers: there is no room.
        """
        with self._changed:
            before = self._helpers.find(name)
            took_part = before is not None and before in self._helpers.living()
            return self._newest_version, self._admit(name, incarnation) is before and took_part

    def leave(self, name: str, incarnation: int) -> None:
        """A helper stops: it is not waited for."""
        with self._changed:
            self._helpers.leave(name, incarnation)
            self._changed.notify_all()

    def begin(self, name: str, incarnation: int, sequence: int, base_version: int) -> Optional[Answer]:
        """Look at a push before it is decoded.

        Returns:
            The answer if it has one already: it was answered before, or it comes too late. PENDING if it was taken up
            and waits for its step. None: decode it, and `add` it.

        Raises:
            HelperFenced: a newer life has replaced this one.
            TooManyHelpers: there is no room.
            ValueError: another push of this helper is under way.
        """
        with self._changed:
            return self._look_at(self._admit(name, incarnation), sequence, base_version)

    def refuse(self, name: str, incarnation: int, sequence: int, answer: Answer) -> None:
        """Note that a push was refused for its content: a resend gets the same answer, and the step goes on without."""
        with self._changed:
            helper = self._helpers.find(name)
            if helper is not None and helper.incarnation == incarnation and sequence > helper.sequence:
                helper.sequence, helper.answer = sequence, answer
                self._contributions.drop(name)
                self._changed.notify_all()

    def add(self, incarnation: int, sequence: int, base_version: int, share: Share, timeout_s: float) -> Answer:
        """Take up a decoded push as soon as there is room.

        Returns:
            As `begin`; PENDING also if there was no room in time.

        Raises:
            HelperFenced, TooManyHelpers, ValueError: as `begin`.
        """
        name = share.contributor
        with self._changed:
            helper = self._admit(name, incarnation)

            def is_settled() -> bool:
                return bool(
                    self._end
                    or self._look_at(helper, sequence, base_version)
                    or self._contributions.has_room(name)
                    or self._helpers.find(name) is not helper
                )

            if not self._changed.wait_for(is_settled, timeout_s):
                return Answer(PushStatus.PENDING, "waiting for the chief's next step: it has gradients enough")
            answer = self._look_at(self._admit(name, incarnation), sequence, base_version)
            if answer is not None:
                return answer
            taken = replace(share, lag=self._contributions.lag(base_version))
            if taken.num_samples or not self._answers_at_once:  # nobody waits for one that abstains
                self._contributions.add(taken)
            helper.sequence = sequence
            helper.answer = _scaled(taken) if self._answers_at_once else None
            self._changed.notify_all()
            return helper.answer or Answer(PushStatus.PENDING)

    def wait(
        self, name: str, incarnation: int, sequence: int, timeout_s: float, is_wanted: Callable[[], bool]
    ) -> Answer:
        """The answer to a push that was taken up; PENDING when its step is not taken in time.

        Args:
            name: of the helper.
            incarnation: of its life.
            sequence: of the push.
            timeout_s: how long to wait.
            is_wanted: whether anybody is left to be answered; `wake` has it asked again.

        Raises:
            HelperFenced: a newer life has replaced this one meanwhile.
        """
        with self._changed:
            helper = self._admit(name, incarnation)
            helper.num_waiting += 1
            try:
                self._changed.wait_for(
                    lambda: bool(
                        helper.answer or self._end or not is_wanted() or self._helpers.find(name) is not helper
                    ),
                    timeout_s,
                )
            finally:
                helper.num_waiting -= 1
            if self._helpers.find(name) is not helper:
                self._admit(name, incarnation)  # which raises: another life has its name
            if helper.sequence != sequence:
                return Answer(PushStatus.TOO_STALE, f"push {sequence} was answered before push {helper.sequence}")
            return helper.answer or Answer(PushStatus.PENDING, self._end or self._missing_sentence())

    def wake(self) -> None:
        """Somebody may be gone: look again."""
        with self._changed:
            self._changed.notify_all()

    # --- the training loop's side ------------------------------------------------------------------------------------

    @property
    def waiting_for(self) -> str:
        """One sentence while the loop waits for gradients; empty otherwise."""
        with self._changed:
            since_s = self._collecting_since_s
            is_long = since_s is not None and time.monotonic() - since_s > PATIENCE_S
            return self._missing_sentence() if is_long else ""

    @property
    def num_living(self) -> int:
        """Helpers whose lease runs."""
        with self._changed:
            return len(self._helpers.living())

    @property
    def is_open(self) -> bool:
        """Whether there is a base that gradients may be of."""
        return self._contributions.version > 0

    def open(self, version: int, updates: int, answer: Optional[Answer] = None) -> None:
        """Take gradients of a new base, and answer the pushes whose step was taken.

        Args:
            version: of the learn set that was just published.
            updates: behind it.
            answer: to those pushes; ACCEPTED if not given.
        """
        with self._changed:
            self._settle(answer or Answer(PushStatus.ACCEPTED))
            self._newest_version = version
            self._contributions.open(version, updates, [helper.name for helper in self._helpers.living()])
            self._changed.notify_all()

    def close(self, reason: str) -> None:
        """Take nothing until the next `open`; pushes that wait are given back as too late."""
        with self._changed:
            self._settle(Answer(PushStatus.TOO_STALE, reason))
            self._contributions.close()
            self._changed.notify_all()

    def end(self, reason: str) -> None:
        """The training loop is over: calls that wait return."""
        with self._changed:
            self._end = reason
            self._changed.notify_all()

    def put(self, share: Share) -> None:
        """Add the chief's own."""
        with self._changed:
            self._contributions.add(share)

    def collect(self, stopping: threading.Event, *, even_few: bool = False) -> List[Share]:
        """The gradients of this step, once nobody is missing whose lease runs; none if there are not enough.

        Args:
            stopping: ends the wait.
            even_few: take what there is: no more will come.

        Raises:
            Stopped: the process is to end.
        """
        with self._changed:
            self._collecting_since_s = time.monotonic()
            try:
                if self._missing():
                    with self._held():
                        self._wait_for_missing(stopping)
            finally:
                self._collecting_since_s = None
            shares = self._contributions.take(even_few=even_few)
            self._changed.notify_all()  # there is room again
            return shares

    def check_valid(self) -> Optional[str]:
        """What is wrong with this structure; None if nothing is."""
        with self._changed:
            return self._helpers.check_valid()

    # --- with the lock held ------------------------------------------------------------------------------------------

    def _admit(self, name: str, incarnation: int) -> Helper:
        before = self._helpers.find(name)
        helper = self._helpers.admit(name, incarnation)
        if before is not None and before is not helper:
            self._contributions.drop(name)  # the newer life takes part from the next base on
            self._changed.notify_all()
        return helper

    def _look_at(self, helper: Helper, sequence: int, base_version: int) -> Optional[Answer]:
        if sequence < 1:
            raise ValueError("a push has sequence 0; they are counted from 1")
        if sequence == helper.sequence:
            return helper.answer or Answer(PushStatus.PENDING)
        if sequence < helper.sequence:
            return Answer(PushStatus.TOO_STALE, f"push {sequence} was answered before push {helper.sequence}")
        if helper.is_pending:
            raise ValueError(
                f"{helper.name} pushes {sequence} while its push {helper.sequence} waits for its step; one at a time"
            )
        reason = self._contributions.why_stale(base_version)
        if reason:
            helper.sequence, helper.answer = sequence, Answer(PushStatus.TOO_STALE, reason)
        return helper.answer if reason else None

    def _settle(self, answer: Answer) -> None:
        for helper in self._helpers.all():
            if helper.is_pending:
                helper.answer = answer
                if helper.num_waiting:  # the step may have taken longer than the lease
                    self._helpers.renew(helper)

    def _wait_for_missing(self, stopping: threading.Event) -> None:
        while self._missing():
            if stopping.is_set():
                raise Stopped
            self._changed.wait(min([LOOK_S, *(self._helpers.lease_left_s(h) for h in self._missing())]))

    def _missing(self) -> List[Helper]:
        living = {helper.name: helper for helper in self._helpers.living()}
        return [living[name] for name in self._contributions.missing(living)]

    def _missing_sentence(self) -> str:
        missing = self._missing()
        if not missing:
            return ""
        names = ", ".join(f"{h.name} (lease ends in {self._helpers.lease_left_s(h):.1f} s)" for h in missing)
        return f"waiting for the gradient of {names}"


def _scaled(share: Share) -> Answer:
    if not share.lag:
        return Answer(PushStatus.ACCEPTED)
    return Answer(PushStatus.SCALED, f"it is {share.lag} updates behind: it counts for less", share.weight)
