from __future__ import annotations

from services.common.round_trip import WINDOW, RoundTrips


def test_transit_is_half_of_the_shortest_trip_without_what_the_server_took() -> None:
    trips = RoundTrips()
    assert trips.half_s == 0.0
    trips.note(3.0, 2.0)
    assert trips.half_s == 0.5
    trips.note(0.25, 0.0)
    trips.note(9.0, 1.0)
    assert trips.half_s == 0.125


def test_old_trips_are_forgotten_and_nonsense_is_none() -> None:
    trips = RoundTrips()
    trips.note(1.0, 5.0)  # a server that claims more than there was
    assert trips.half_s == 0.0
    for _ in range(WINDOW):
        trips.note(1.0, -5.0)
    assert trips.half_s == 0.5
