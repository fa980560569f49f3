"""Which of many points to keep, so that a file stays bounded and still shows its whole course."""

from __future__ import annotations

from typing import Dict, List, Sequence


def evenly(places: Sequence[int], most: int) -> List[int]:
    """Indices of at most `most` points, evenly spread; rising.

    Of each stretch [k 2^j, (k + 1) 2^j) the first point is kept, and the last of all. Stretches of one width lie within
    those of any larger one, so that a list which grows and is thinned out again and again keeps its beginning, and old
    points stay about as dense as new ones. Leaving out every second point would thin the old ones out to nothing.

    Args:
        places: where each point lies, not negative, as in updates; they may fall, after a crash.
        most: at least 2.
    """
    if len(places) <= most:
        return list(range(len(places)))
    width = 1
    while True:
        firsts: Dict[int, int] = {}
        for index, place in enumerate(places):
            firsts.setdefault(place // width, index)
        if len(firsts) < most:
            return sorted({*firsts.values(), len(places) - 1})
        width *= 2
