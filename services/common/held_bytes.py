"""Bytes that a server holds for its callers, within a budget: of requests, or of answers that nobody has taken yet."""

from __future__ import annotations

import threading


class HeldBytes:
    """So many bytes are held at once. Thread-safe."""

    def __init__(self, budget_bytes: int) -> None:
        if budget_bytes < 1:
            raise ValueError(f"a budget of {budget_bytes} bytes holds nothing: give it one byte or more")
        self.budget_bytes = budget_bytes
        self._num_bytes = 0
        self._lock = threading.Lock()

    @property
    def num_bytes(self) -> int:
        """Held now."""
        return self._num_bytes

    def hold(self) -> Hold:
        """What one call holds: nothing yet."""
        return Hold(self)

    def _add(self, hold: Hold, num_bytes: int) -> bool:
        with self._lock:
            if hold.is_over or self._num_bytes + num_bytes > self.budget_bytes:
                return False
            self._num_bytes += num_bytes
            hold.num_bytes += num_bytes
            return True

    def _release(self, hold: Hold) -> None:
        with self._lock:
            self._num_bytes -= hold.num_bytes
            hold.num_bytes, hold.is_over = 0, True


class Hold:
    """The bytes of one call; once they are released, it holds no more, whatever comes late."""

    def __init__(self, held: HeldBytes) -> None:
        self.num_bytes = 0
        self.is_over = False
        self._held = held

    def add(self, num_bytes: int) -> bool:
        """Hold more; False: there is no room, or the call is over."""
        return self._held._add(self, num_bytes)

    def release(self) -> None:
        """Hold nothing any more; harmless when repeated."""
        self._held._release(self)
