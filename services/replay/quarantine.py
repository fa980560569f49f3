"""Quarantine: keeps what is not finite out of the ring, lane by lane."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from services.common.chunk import VALID, Chunk, FinalObservations


def _bad_rows(column: npt.NDArray[Any], num_leading: int) -> npt.NDArray[np.bool_]:
    """Where a column <dtype>[leading..., trailing...] holds anything that is not finite, <bool>[leading...]."""
    leading = column.shape[:num_leading]
    if column.dtype.kind != "f":
        return np.zeros(leading, np.bool_)
    finite = np.isfinite(column)
    if finite.all():
        return np.zeros(leading, np.bool_)
    bad: npt.NDArray[np.bool_] = np.any(~finite.reshape(*leading, -1), axis=-1)
    return bad


def non_finite_lanes(chunk: Chunk) -> npt.NDArray[np.bool_]:
    """Lanes <bool>[B] of which an observation, or the action or reward of a step, is not finite.

    Reward and action of a row that is no step are junk by contract and are not looked at.
    """
    bad = _bad_rows(chunk.action, 2) | _bad_rows(chunk.reward, 2)
    bad &= (chunk.flags & VALID) != 0
    for column in chunk.observation.values():
        bad |= _bad_rows(column, 2)
    lanes: npt.NDArray[np.bool_] = np.any(bad, axis=0)
    for column in chunk.final.observation.values():
        lanes[chunk.final.step[_bad_rows(column, 1)] % chunk.num_lanes] = True
    return lanes


def without_lanes(chunk: Chunk, lanes: npt.NDArray[np.bool_]) -> Chunk:
    """A chunk of the same shape whose rows hold only what may enter the ring.

    The rows of `lanes` <bool>[B] become zero and are no steps, their final observations go, and so do action and
    reward of rows that are no steps. Columns that need no change are shared with `chunk`.
    """
    flags = np.where(lanes, np.uint8(0), chunk.flags)
    no_step = (flags & VALID) == 0
    if not no_step.any():
        return chunk
    observation = chunk.observation
    final = chunk.final
    if lanes.any():
        observation = {name: _zeroed(column, lanes[None, :]) for name, column in observation.items()}
        kept = ~lanes[final.step % chunk.num_lanes]
        final = FinalObservations(
            step=final.step[kept],
            observation={name: column[kept] for name, column in final.observation.items()},
            value=final.value[kept],
            cut=final.cut[kept],
        )
    return dataclasses.replace(
        chunk,
        observation=observation,
        action=_zeroed(chunk.action, no_step),
        reward=_zeroed(chunk.reward, no_step),
        flags=flags,
        final=final,
    )


def _zeroed(column: npt.NDArray[Any], where: npt.NDArray[np.bool_]) -> npt.NDArray[Any]:
    mask = where.reshape(*where.shape, *([1] * (column.ndim - where.ndim)))
    return np.where(mask, np.zeros((), column.dtype), column)
