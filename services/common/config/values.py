"""Types of values that people write in more than one way."""

from __future__ import annotations

import re
from typing import Any, Tuple

from pydantic import BeforeValidator, Field
from typing_extensions import Annotated


def _whole(value: Any) -> Any:
    """1e6 is a whole number to a person, and a float to TOML."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def _split(value: Any) -> Any:
    """One name, or several with commas between, where a list is asked for."""
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else value


Count = Annotated[int, BeforeValidator(_whole)]
Names = Annotated[Tuple[str, ...], BeforeValidator(_split)]
Port = Annotated[int, Field(ge=0, le=65535)]
Width = Annotated[Count, Field(ge=1, le=65536)]  # of a layer

_DEVICE = re.compile(r"(cpu|cuda(:\d{1,3})?)\Z")

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
