"""Types of values that people write in more than one way."""

from __future__ import annotations

from typing import Any, Tuple

from pydantic import BeforeValidator
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
