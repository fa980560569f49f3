"""Quarantine: keeps what is not finite out of the ring, lane by lane."""

from __future__ import annotations

import dataclasses
from typing import Any, Dict, List

import numpy as np
import numpy.typing as npt

from services.common.chunk import VALID, Chunk, FinalObservations
from services.common.sick_lane import SickLane
from services.replay.admission import ActorRecord, LaneGroup
from services.replay.ring import Ring

MAX_LANES = 8  # of one chunk that are described
MAX_STEPS = 64  # of a sick lane that are described, the last of them the bad one
MAX_RETURN = float(np.finfo(np.float32).max)  # of an item


def _bad_rewards(reward: npt.NDArray[np.float32], n_step: int) -> npt.NDArray[np.bool_]:
    """Where rewards of any shape are not finite, or so large that the sum of n of them might not be."""
    bad: npt.NDArray[np.bool_] = ~(np.abs(reward) <= MAX_RETURN / n_step)  # which NaN is not
    return bad


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


def non_finite_lanes(chunk: Chunk, n_step: int = 1) -> npt.NDArray[np.bool_]:
    """Lanes <bool>[B] of which an observation, or the action or reward of a step, is not finite.

    Neither counts a reward as finite whose like, n_step of them summed, would not be.

    Reward and action of a row that is no step are junk by contract and are not looked at.
    """
    columns = [chunk.action, *chunk.observation.values(), *chunk.final.observation.values()]
    bad = _bad_rewards(chunk.reward, n_step)
    if not bad.any() and all(column.dtype.kind != "f" or np.isfinite(column).all() for column in columns):
        return np.zeros(chunk.num_lanes, np.bool_)
    bad |= _bad_rows(chunk.action, 2)
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
    if chunk.num_valid == chunk.flags.size and not lanes.any():
        return chunk
    flags = np.where(lanes, np.uint8(0), chunk.flags)
    no_step = (flags & VALID) == 0
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


def describe_lanes(
    ring: Ring, record: ActorRecord, group: LaneGroup, chunk: Chunk, lanes: npt.NDArray[np.bool_]
) -> List[SickLane]:
    """Gather what is known of the first MAX_LANES of `lanes` <bool>[B] of `chunk`, before the chunk is applied.

    Args:
        ring: holds the lanes' steps before the chunk.
        record: of the actor.
        group: of the chunk's lanes.
        chunk: as it came.
        lanes: those with values that are not finite.
    """
    open_keys = group.open_keys
    if chunk.first_step != group.next_step:  # steps are missing: those before them did not lead here
        open_keys = np.full_like(open_keys, -1)
    return [
        describe_sick(ring, record.name, record.incarnation, chunk, int(lane), open_keys[:, lane])
        for lane in np.flatnonzero(lanes)[:MAX_LANES]
    ]


def describe_sick(
    ring: Ring, actor: str, incarnation: int, chunk: Chunk, lane: int, open_keys: npt.NDArray[np.int64]
) -> SickLane:
    """Gather what is known of a lane of `chunk` that is not finite, before the chunk is applied.

    Args:
        ring: holds the lane's steps before the chunk.
        actor: its name.
        incarnation: of the actor.
        chunk: as it came.
        lane: index of the lane in its group.
        open_keys: <int64>[n_step], rows of the lane whose windows are open; -1: none.
    """
    final = np.flatnonzero(chunk.final.step % chunk.num_lanes == lane)
    bad = _bad_columns(chunk, lane, final, len(open_keys))
    t = min(bad)
    keys = open_keys[open_keys >= ring.oldest_key]
    before = ring.slots(keys)
    columns: Dict[str, npt.NDArray[Any]] = {}
    for name in ("action", "reward", "flags"):
        columns[name] = np.concatenate((getattr(ring, name)[before], getattr(chunk, name)[: t + 1, lane]))
    columns["policy_version"] = np.concatenate((ring.policy_version[before], chunk.policy_version[: t + 1]))
    for name, column in chunk.observation.items():
        rows = np.concatenate((ring.observation[name][before], column[: t + 1, lane]))
        columns[f"observation.{name}"] = rows
    columns = {name: column[-MAX_STEPS:].copy() for name, column in columns.items()}
    for name, column in chunk.final.observation.items():
        columns[f"final.observation.{name}"] = column[final[chunk.final.step[final] // chunk.num_lanes == t]].copy()
    return SickLane(
        actor=actor,
        incarnation=incarnation,
        lane_group=chunk.lane_group,
        lane=lane,
        sequence=chunk.sequence,
        step=chunk.first_step + t,
        policy_version=int(chunk.policy_version[t]),
        bad_columns=tuple(bad[t]),
        columns=columns,
    )


def _bad_columns(chunk: Chunk, lane: int, final: npt.NDArray[np.int64], n_step: int) -> Dict[int, List[str]]:
    """Names of the columns that are not finite, by step of the chunk; `final` are the lane's final observations."""
    found: Dict[int, List[str]] = {}
    valid = (chunk.flags[:, lane] & VALID) != 0
    bad = {
        "action": _bad_rows(chunk.action[:, lane], 1) & valid,
        "reward": _bad_rewards(chunk.reward[:, lane], n_step) & valid,
    }
    for name, column in chunk.observation.items():
        bad[f"observation.{name}"] = _bad_rows(column[:, lane], 1)
    for name, rows in bad.items():
        for t in np.flatnonzero(rows):
            found.setdefault(int(t), []).append(name)
    for name, column in chunk.final.observation.items():
        for index in final[_bad_rows(column[final], 1)]:
            found.setdefault(int(chunk.final.step[index]) // chunk.num_lanes, []).append(f"final.observation.{name}")
    return found
