"""Log lines: `HH:MM:SS level message key=value`, one a line, to standard output."""

from __future__ import annotations

from typing import Any, MutableMapping, TextIO

import structlog
from typing_extensions import Protocol


class Log(Protocol):
    """What the code logs to; structlog's loggers are one."""

    def debug(self, event: str, **values: Any) -> Any: ...

    def info(self, event: str, **values: Any) -> Any: ...

    def warning(self, event: str, **values: Any) -> Any: ...

    def error(self, event: str, **values: Any) -> Any: ...


def make_log(stream: TextIO) -> Log:
    """Make a log that writes to `stream`; no global state is touched."""
    log: Log = structlog.wrap_logger(
        structlog.PrintLogger(stream),
        processors=[structlog.processors.add_log_level, structlog.processors.TimeStamper("%H:%M:%S", utc=False), _line],
    )
    return log


def _line(_logger: Any, _method: str, values: MutableMapping[str, Any]) -> str:
    head = f"{values.pop('timestamp')} {values.pop('level'):<7} {values.pop('event')}"
    return " ".join([head, *(f"{key}={_short(value)}" for key, value in values.items())])


def _short(value: Any) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return repr(text) if " " in text or not text else text
