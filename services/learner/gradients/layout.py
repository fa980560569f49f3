"""Where each tensor lies in one flat buffer of blocks, and how a pass over the buffer is cut so that it stays in cache.

A dozen small tensors would take a dozen numpy calls a pass. In one buffer, where each tensor begins at a block's start
and the rest of its last block is zero, a pass over all of them takes one call for each strip of blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, Iterator, List, Mapping, Sequence, Tuple

import numpy as np
import numpy.typing as npt

from services.learner.gradients.faults import BadGradient

Shape = Tuple[int, ...]

STRIP_VALUES = 64 * 1024  # of one strip: values, scratch and residual together stay in a core's own cache


def num_values(shape: Sequence[int]) -> int:
    """Values of a tensor; in Python's integers, since a product of hostile sizes must not wrap."""
    count = 1
    for size in shape:
        count *= size
    return count


def num_blocks(values: int, block_size: int) -> int:
    return -(-values // block_size)


@dataclass(frozen=True)
class Place:
    """A tensor's place in the buffer."""

    name: str
    shape: Shape
    first_block: int
    end_block: int
    start: int  # value that the tensor begins at
    size: int  # values

    @property
    def values(self) -> slice:
        return slice(self.start, self.start + self.size)

    @property
    def blocks(self) -> slice:
        return slice(self.first_block, self.end_block)


@dataclass(frozen=True)
class Piece:
    """A part of one tensor that lies in one strip."""

    name: str
    begin: int  # in the tensor's values
    end: int
    start: int  # in the buffer's values

    @property
    def values(self) -> slice:
        return slice(self.start, self.start + self.end - self.begin)


@dataclass(frozen=True)
class Strip:
    """Neighbouring blocks, and the pieces of tensors in them."""

    first_block: int
    end_block: int
    pieces: Tuple[Piece, ...]

    @property
    def blocks(self) -> slice:
        return slice(self.first_block, self.end_block)


@dataclass(frozen=True)
class Plan:
    """A pass over some of the tensors."""

    places: Tuple[Place, ...]  # in the buffer's order
    strips: Tuple[Strip, ...]
    covers_all: bool  # that have a place
    blocks: npt.NDArray[np.intp]  # of all strips, in order: numbers in the buffer
    owners: npt.NDArray[np.intp]  # [blocks], index of the place that the block belongs to
    starts: npt.NDArray[np.intp]  # where in `blocks` each place begins that has values, in order


class Layout:
    """Places of tensors, given once and kept: policy and critics may come at different rates."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self._places: Dict[str, Place] = {}
        self._plans: Dict[Tuple[str, ...], Plan] = {}
        self.num_blocks = 0

    @property
    def places(self) -> Mapping[str, Place]:
        return self._places

    def check(self, name: str, shape: Shape) -> None:
        """Refuse a tensor that has a place for another shape.

        Raises:
            BadGradient: it has.
        """
        place = self._places.get(name)
        if place is not None and place.shape != shape:
            raise BadGradient(
                f"the gradient of {name!r} has shape {list(shape)}, it had {list(place.shape)} before; "
                "a learner's parameters keep their shapes, so make a new encoder for other parameters"
            )

    def add(self, name: str, shape: Shape) -> bool:
        """Give a tensor its place.

        Returns:
            Whether it had none.
        """
        if name in self._places:
            return False
        size, first = num_values(shape), self.num_blocks
        self.num_blocks += num_blocks(size, self._block_size)
        self._places[name] = Place(name, shape, first, self.num_blocks, first * self._block_size, size)
        self._plans.clear()
        return True

    def plan(self, names: Sequence[str]) -> Plan:
        """A pass over the tensors of these names, each of which has a place."""
        key = tuple(names)
        plan = self._plans.get(key)
        if plan is None:
            places = sorted((self._places[name] for name in key), key=lambda place: place.first_block)
            counts = np.array([place.end_block - place.first_block for place in places], np.intp)
            plan = self._plans[key] = Plan(
                places=tuple(places),
                strips=tuple(strip for run in _runs(places) for strip in self._strips(run)),
                covers_all=len(places) == len(self._places),
                blocks=np.concatenate([np.arange(p.first_block, p.end_block, dtype=np.intp) for p in places]),
                owners=np.repeat(np.arange(len(places)), counts),
                starts=(np.cumsum(counts) - counts)[counts > 0],
            )
        return plan

    def _strips(self, run: List[Place]) -> Iterator[Strip]:
        """Cut neighbouring tensors into strips of whole blocks."""
        step = max(1, STRIP_VALUES // self._block_size)
        for first in range(run[0].first_block, run[-1].end_block, step):
            end = min(first + step, run[-1].end_block)
            low, high = first * self._block_size, end * self._block_size
            pieces = []
            for place in run:
                start, stop = max(low, place.start), min(high, place.start + place.size)
                if start < stop:
                    pieces.append(Piece(place.name, start - place.start, stop - place.start, start))
            yield Strip(first, end, tuple(pieces))


def _runs(places: Sequence[Place]) -> Iterator[List[Place]]:
    """Tensors that lie side by side, together; a tensor without values has no blocks to pass over."""
    run: List[Place] = []
    for place in places:
        if place.size == 0:
            continue
        if run and run[-1].end_block != place.first_block:
            yield run
            run = []
        run.append(place)
    if run:
        yield run
