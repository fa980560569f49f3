"""The short form of `make load`: many light actors at one replay, in real processes."""

from __future__ import annotations

import pytest

from tests.soak.load import run


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("count", "seconds", "limited"),
    [
        pytest.param(64, 6.0, False, id="64 without limiter"),
        pytest.param(64, 6.0, True, id="64 held by the limiter"),
        pytest.param(256, 20.0, True, id="256 held by the limiter"),  # shorter, and each inserts two or three times
    ],
)
def test_many_actors_have_their_shares_and_one_too_many_is_refused(count: int, seconds: float, limited: bool) -> None:
    outcome = run(count, seconds, 1.0, limited=limited)
    print(outcome.row)
    assert outcome.faults == [], outcome.row
