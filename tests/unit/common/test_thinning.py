from __future__ import annotations

from typing import List

from hypothesis import given
from hypothesis import strategies as st

from services.common.thinning import evenly


@given(st.lists(st.integers(0, 10_000)), st.integers(2, 50))
def test_at_most_so_many_are_kept_in_their_order_and_the_last_among_them(places: List[int], most: int) -> None:
    kept = evenly(places, most)
    assert kept == sorted(set(kept))
    assert len(kept) <= most
    if places:
        assert (kept[0], kept[-1]) == (0, len(places) - 1)
    if len(places) <= most:
        assert kept == list(range(len(places)))


@given(st.lists(st.integers(0, 10_000), min_size=9, unique=True).map(sorted), st.integers(2, 8))
def test_a_point_that_goes_has_an_earlier_one_nearby_that_stays(places: List[int], most: int) -> None:
    kept = [places[index] for index in evenly(places, most)]
    width = 1
    while len({place // width for place in places}) >= most:
        width *= 2
    for place in places:
        assert any(0 <= place - other < width for other in kept)


def test_a_list_that_grows_and_is_thinned_out_again_and_again_stays_even() -> None:
    places: List[int] = []
    for place in range(10_000):
        places.append(place)
        if len(places) >= 100:
            places = [places[index] for index in evenly(places, 50)]
    assert places[-1] == 9_999
    assert max(later - earlier for earlier, later in zip(places, places[1:])) < 10_000 / 15
    assert places[0] == 0


def test_points_at_one_place_are_one_point() -> None:
    assert evenly([5, 5, 5], 2) == [0, 2]  # but for the last
