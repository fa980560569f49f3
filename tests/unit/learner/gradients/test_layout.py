from __future__ import annotations

from typing import Dict, List, Tuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.learner.gradients import layout as layout_module
from services.learner.gradients.faults import BadGradient
from services.learner.gradients.layout import Layout, num_values
from tests.unit.learner.gradients.arrays import patient

SHAPES = st.lists(st.lists(st.integers(0, 9), max_size=3).map(tuple), min_size=1, max_size=6)


@patient
@given(shapes=SHAPES, block_size=st.integers(1, 5), chosen=st.data())
def test_strips_cover_each_value_of_the_chosen_tensors_once(
    shapes: List[Tuple[int, ...]], block_size: int, chosen: st.DataObject
) -> None:
    layout = Layout(block_size)
    for index, shape in enumerate(shapes):
        assert layout.add(str(index), shape)
    names = [n for n in layout.places if chosen.draw(st.booleans())] or ["0"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout_module, "STRIP_VALUES", 3 * block_size)
        plan = layout.plan(names)
    covered: Dict[str, np.ndarray] = {n: np.zeros(num_values(p.shape), int) for n, p in layout.places.items()}
    blocks: List[int] = []
    for strip in plan.strips:
        assert 0 < strip.end_block - strip.first_block <= 3
        blocks += range(strip.first_block, strip.end_block)
        for piece in strip.pieces:
            covered[piece.name][piece.begin : piece.end] += 1
            assert piece.start == layout.places[piece.name].start + piece.begin
            assert strip.first_block * block_size <= piece.values.start
            assert piece.values.stop <= strip.end_block * block_size
    assert {name for name, count in covered.items() if count.any()} <= set(names)
    assert all((covered[name] == 1).all() for name in names)
    assert blocks == plan.blocks.tolist()
    assert plan.covers_all == (len(names) == len(shapes))
    for block, owner in zip(plan.blocks, plan.owners):
        assert plan.places[owner].first_block <= block < plan.places[owner].end_block
    filled = [index for index, place in enumerate(plan.places) if place.size]
    assert plan.owners[plan.starts].tolist() == filled


def test_a_tensor_keeps_its_place_and_its_shape() -> None:
    layout = Layout(4)
    assert layout.add("a", (5,))
    assert layout.add("b", (2, 3))
    assert not layout.add("a", (5,))
    assert (layout.places["b"].first_block, layout.num_blocks) == (2, 4)
    with pytest.raises(BadGradient, match=r"'a' has shape \[6\], it had \[5\] before"):
        layout.check("a", (6,))
    for name, shape in (("a", (5,)), ("c", (1,))):
        layout.check(name, shape)


def test_plans_know_tensors_that_came_later() -> None:
    layout = Layout(4)
    layout.add("a", (5,))
    assert layout.plan(["a"]).covers_all
    layout.add("b", (5,))
    assert not layout.plan(["a"]).covers_all
    assert layout.plan(["b", "a"]).covers_all
