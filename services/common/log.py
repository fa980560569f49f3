"""Log lines: `HH:MM:SS level message key=value` for people, or one JSON object a line for machines."""

from __future__ import annotations

import json
import logging
from typing import Any, Callable, Dict, List, MutableMapping, TextIO

import structlog
from typing_extensions import Protocol

LEVELS: Dict[str, int] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


class Log(Protocol):
    """What the code logs to; structlog's loggers are one."""

    def debug(self, event: str, **values: Any) -> Any: ...

    def info(self, event: str, **values: Any) -> Any: ...

    def warning(self, event: str, **values: Any) -> Any: ...

    def error(self, event: str, **values: Any) -> Any: ...


def make_log(stream: TextIO, *, style: str = "console", level: str = "info", **facts: Any) -> Log:
    """Make a log that writes to `stream`; no global state is touched.

    Args:
        stream: takes a line each.
        style: "console" or "json".
        level: lines below it are left out.
        facts: what each JSON line says of the process; a person knows where the line comes from.
    """
    processors: List[Callable[..., Any]] = [structlog.processors.add_log_level]
    if style == "json":
        processors += [structlog.processors.TimeStamper("iso", utc=True), _with(facts), _json]
    else:
        processors += [structlog.processors.TimeStamper("%H:%M:%S", utc=False), _line]
    log: Log = structlog.wrap_logger(
        structlog.PrintLogger(stream),
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
    )
    return log


def _with(facts: Dict[str, Any]) -> Callable[..., MutableMapping[str, Any]]:
    def add(_logger: Any, _method: str, values: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        head = {"time": values.pop("timestamp"), "level": values.pop("level"), "message": values.pop("event")}
        return {**head, **facts, **values}

    return add


def _json(_logger: Any, _method: str, values: MutableMapping[str, Any]) -> str:
    return json.dumps(values, default=_plain)


def _plain(value: Any) -> Any:
    """What JSON does not know: numpy's numbers as Python's, all else as text."""
    return value.item() if hasattr(value, "item") else str(value)


def _line(_logger: Any, _method: str, values: MutableMapping[str, Any]) -> str:
    head = f"{values.pop('timestamp')} {values.pop('level'):<7} {values.pop('event')}"
    return " ".join([head, *(f"{key}={_short(value)}" for key, value in values.items())])


def _short(value: Any) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    # What a peer calls itself must not begin a line of its own.
    return repr(text) if " " in text or not text.isprintable() or not text else text
