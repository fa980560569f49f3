"""Types of values that people write in more than one way."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Tuple, Union

from pydantic import BeforeValidator, Field
from typing_extensions import Annotated, Literal


def _whole(value: Any) -> Any:
    """1e6 is a whole number to a person, and a float to TOML."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _split(value: Any) -> Any:
    """One name, or several with commas between, where a list is asked for."""
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else value


@dataclass(frozen=True)
class PublishPeriod:
    """How often something is published: by updates, or by time; the other is 0."""

    updates: int = 0
    seconds: float = 0.0

    def is_over(self, updates: int, updates_since: int, seconds_since: float) -> bool:
        """Whether it is time.

        Args:
            updates: done so far; periods in updates end at their multiples.
            updates_since: done since the last publishing; nothing is published twice.
            seconds_since: passed since then.
        """
        if updates_since <= 0:
            return False
        return updates % self.updates == 0 if self.updates else seconds_since >= self.seconds


def publish_period(value: Any) -> PublishPeriod:
    """Read a period: a whole number of updates, or seconds as in "2s" or "0.5s".

    Raises:
        ValueError: it is neither.
    """
    text = "" if isinstance(value, bool) else str(value)
    if re.match(r"[1-9]\d{0,17}\Z", text):
        return PublishPeriod(updates=int(text))
    if _SECONDS.match(text) and float(text[:-1]) > 0:
        return PublishPeriod(seconds=float(text[:-1]))
    raise ValueError(f'{value!r} is no period; write a number of updates, as in 20, or seconds, as in "2s"')


def _period(value: Any) -> Any:
    """As it is written in run files: a number, or seconds with their unit."""
    value = _whole(value)
    period = publish_period(value)
    return period.updates or value


Period = Annotated[Union[int, str], BeforeValidator(_period)]  # updates, or seconds as in "2s"
Count = Annotated[int, BeforeValidator(_whole)]
WireDtype = Literal["float32", "float16", "bfloat16"]
Names = Annotated[Tuple[str, ...], BeforeValidator(_split)]
Port = Annotated[int, Field(ge=0, le=65535)]
Width = Annotated[Count, Field(ge=1, le=65536)]  # of a layer

_DEVICE = re.compile(r"(cpu|cuda(:\d{1,3})?)\Z")

_SECONDS = re.compile(r"\d{1,9}(\.\d{1,9})?s\Z")

LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "[::1]")


def check_device(device: str) -> str:
    """Return `device` if torch could have one of that name; whether it is there only the learner can tell.

    Raises:
        ValueError: it is none.
    """
    if not _DEVICE.match(device):
        raise ValueError(f"{device!r} is no device; write cpu, cuda, or cuda:N for the N-th GPU, counted from 0")
    return device


def check_address(address: str) -> str:
    """Return `address` if it is HOST:PORT.

    Raises:
        ValueError: it is not.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{address!r} is no address; write HOST:PORT, as in 127.0.0.1:7401")
    return address


def is_loopback(address: str) -> bool:
    """Whether HOST:PORT cannot be reached from another machine."""
    return address.rpartition(":")[0] in LOOPBACK_HOSTS
