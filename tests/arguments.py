"""Types of command-line arguments: what is no sensible number is refused with a sentence before anything starts."""

from __future__ import annotations

import argparse
import math


def positive(text: str) -> float:
    """A finite number above 0.

    Raises:
        ArgumentTypeError: it is none.
    """
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0.0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return number


def positive_count(text: str) -> int:
    """A whole number, at least 1.

    Raises:
        ArgumentTypeError: it is none.
    """
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least 1")
    return int(text)
