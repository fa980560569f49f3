"""The short form of `make load`: many light actors at one replay, in real processes."""

from __future__ import annotations

import pytest

from tests.soak.load import run


@pytest.mark.timeout(300)
@pytest.mark.parametrize("limited", [False, True], ids=["without limiter", "held by the limiter"])
@pytest.mark.parametrize("count", [64, 256])
def test_many_actors_have_their_shares_and_one_too_many_is_refused(count: int, limited: bool) -> None:
    outcome = run(count, 6.0, 1.0, limited=limited)
    print(outcome.row)
    assert outcome.faults == [], outcome.row
