from __future__ import annotations

import argparse

import pytest

from tests.arguments import positive, positive_count


def test_numbers_above_0_pass() -> None:
    assert (positive("0.5"), positive_count("3")) == (0.5, 3)


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "x", ""])
def test_other_numbers_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is no number above 0"):
        positive(text)


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "x", ""])
def test_other_counts_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is no whole number"):
        positive_count(text)
