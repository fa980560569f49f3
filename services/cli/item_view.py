"""Items of a replay as text: a table of them, one in full, and how they spread as small bars."""

from __future__ import annotations

from typing import List, Sequence

import numpy as np

from services.cli import figures
from services.common.chunk import TERMINATED, TRUNCATED, VALID
from services.common.codec import decode_tensor
from shoal.v1 import replay_pb2, tensor_pb2

HEADINGS = ("key", "actor", "priority", "sampled", "age s", "version", "lag", "return", "discount", "bootstrap")
LEFT = ("actor",)
FLAGS = {VALID: "valid", TERMINATED: "terminated", TRUNCATED: "truncated"}
SPREADS = {
    "priority": "priority",
    "age_seconds": "age, s",
    "lag_versions": "lag, versions",
    "times_sampled": "times sampled",
}


def items(info: replay_pb2.GetReplayInfoResponse, answer: replay_pb2.InspectResponse) -> str:
    """The table of an answer's items, below it the histograms of all items."""
    lines = [_heading(info)]
    if not answer.items:
        lines += ["no items"]
    else:
        lines += ["", *_table(info, answer.items)]
    if answer.histograms:
        lines += ["", "all items:", *(_spread(histogram) for histogram in answer.histograms)]
    return "\n".join(lines) + "\n"


def item(info: replay_pb2.GetReplayInfoResponse, one: replay_pb2.InspectedItem) -> str:
    """One item with all that the ring holds of its start row and of the row it bootstraps from."""
    lag = max(0, info.newest_version - one.policy_version)
    bootstrap = f"from key {one.bootstrap_key}" if one.discount else "none: the episode terminated"
    facts = [
        ("actor", one.actor),
        ("chunk", one.chunk),
        ("priority", f"{one.priority:.6g}"),
        ("times sampled", str(one.times_sampled)),
        ("age", f"{one.age_seconds:.1f} s"),
        ("version", f"{one.policy_version}, {lag} behind the newest"),
        ("n-step return", f"{one.n_step_return:.6g}"),
        ("discount", f"{one.discount:.6g}"),
        ("bootstrap", bootstrap),
    ]
    width = max(len(column.name) for column in one.columns) if one.columns else 0
    lines = [_heading(info), "", f"item {one.key}", *(f"  {name:<13}  {text}" for name, text in facts), ""]
    lines += [f"  {column.name:<{width}}  {_column(column)}" for column in one.columns]
    return "\n".join(lines) + "\n"


def _heading(info: replay_pb2.GetReplayInfoResponse) -> str:
    if not info.capacity_rows:
        return f"run {info.run_id}: no actor has introduced itself yet, so there is no table"
    return (
        f"run {info.run_id}: {figures.count(info.num_items)} items in {figures.count(info.rows)} of "
        f"{figures.count(info.capacity_rows)} rows, n_step {info.n_step}, discount {info.discount:g}, newest version "
        f"{info.newest_version}"
    )


def _table(info: replay_pb2.GetReplayInfoResponse, shown: Sequence[replay_pb2.InspectedItem]) -> List[str]:
    rows = [HEADINGS] + [
        (
            str(each.key),
            each.actor,
            f"{each.priority:.4g}",
            str(each.times_sampled),
            f"{each.age_seconds:.1f}",
            str(each.policy_version),
            str(max(0, info.newest_version - each.policy_version)),
            f"{each.n_step_return:.4g}",
            f"{each.discount:.4g}",
            str(each.bootstrap_key) if each.discount else "-",
        )
        for each in shown
    ]
    widths = [max(len(row[place]) for row in rows) for place in range(len(HEADINGS))]
    return ["  ".join(_aligned(*cell) for cell in zip(HEADINGS, row, widths)).rstrip() for row in rows]


def _aligned(heading: str, text: str, width: int) -> str:
    return text.ljust(width) if heading in LEFT else text.rjust(width)


def _spread(histogram: replay_pb2.Histogram) -> str:
    name = SPREADS.get(histogram.name, histogram.name)
    low, high = histogram.edges[0], histogram.edges[-1]
    return f"  {name:<14} {low:>10.4g} |{figures.bars(histogram.counts)}| {high:.4g}"


def _column(column: tensor_pb2.Tensor) -> str:
    array = decode_tensor(column)
    if column.name == "flags":
        return f"{int(array)} ({', '.join(word for bit, word in FLAGS.items() if int(array) & bit)})"
    with np.printoptions(precision=5, threshold=24, edgeitems=4):
        values = " ".join(str(array).split())  # on one line, however long
    return f"{array.dtype.name}{list(array.shape)} {values}"
