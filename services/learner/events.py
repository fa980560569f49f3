"""TensorBoard events: scalars over updates, written by the caller's thread."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from services.common.errors import UserError
from services.learner.event_files import FRAME_BYTES, event_files, next_suffix, thin_out

FLUSH_PERIOD_S = 5.0


class EventLog:
    """A folder of event files. No thread of its own: a disk that fills up is heard where it happens."""

    def __init__(self, folder: Path, *, max_bytes: int) -> None:
        """Begin a file in `folder`.

        Args:
            folder: for the files.
            max_bytes: of all of them; when there are more, they are thinned out.

        Raises:
            UserError: it cannot be written.
        """
        self._folder = folder
        self._max_bytes = max_bytes
        self._flushed_at = time.monotonic()
        self._writer: Any = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._begin()
        except OSError as error:
            raise self._trouble(error) from None

    def scalar(self, name: str, value: float, updates: int) -> None:
        """Add one value.

        Raises:
            UserError: it cannot be written.
        """
        from tensorboardX.proto import event_pb2, summary_pb2

        summary = summary_pb2.Summary(value=[summary_pb2.Summary.Value(tag=name, simple_value=value)])
        event = event_pb2.Event(wall_time=time.time(), step=updates, summary=summary)
        try:
            self._writer.write_event(event)
            self._num_bytes += event.ByteSize() + FRAME_BYTES
            if self._num_bytes > self._max_bytes:
                self._writer.close()
                thin_out(self._folder)
                self._begin()
            if time.monotonic() - self._flushed_at > FLUSH_PERIOD_S:
                self._flushed_at = time.monotonic()
                self._writer.flush()
        except OSError as error:
            raise self._trouble(error) from None

    def close(self) -> None:
        """Write what is left; harmless if called twice.

        Raises:
            UserError: it cannot be written.
        """
        writer, self._writer = self._writer, None
        try:
            if writer is not None:
                writer.close()
        except OSError as error:
            raise self._trouble(error) from None

    def _begin(self) -> None:
        from tensorboardX.event_file_writer import EventsWriter  # slow to import: not before the config is checked

        self._num_bytes = sum(file.stat().st_size for file in event_files(self._folder))
        self._writer = EventsWriter(str(self._folder / "events"), next_suffix(self._folder))

    def _trouble(self, error: OSError) -> UserError:
        return UserError(f"cannot write TensorBoard events to {str(self._folder)!r}: {error.strerror}; free some space")
