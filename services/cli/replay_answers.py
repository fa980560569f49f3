"""What a person asks of a replay that runs, as text: its items, one of them in full, a copy of its ring."""

from __future__ import annotations

from pathlib import Path

from services.cli import figures, item_view
from services.cli.operator import REPLAY, Operator
from services.common.errors import UserError
from shoal.v1 import replay_pb2

ORDERS = {
    "highest-priority": replay_pb2.INSPECT_ORDER_HIGHEST_PRIORITY,
    "oldest": replay_pb2.INSPECT_ORDER_OLDEST,
    "newest": replay_pb2.INSPECT_ORDER_NEWEST,
}


def items(system: Operator, order: str, max_items: int, actor: str) -> str:
    """The first items in an order, and how all items spread.

    Args:
        system: has the replay's address.
        order: one of ORDERS.
        max_items: to show.
        actor: of this one alone; empty: of all.

    Raises:
        UserError: the replay does not answer, or knows no such actor.
    """
    info = _info(system)
    names = [each.name for each in info.actors]
    if actor and actor not in names:
        raise UserError(f"the replay knows no actor {actor!r}; it has {', '.join(sorted(names)) or 'none yet'}")
    return item_view.items(info, system.inspect(order=ORDERS[order], max_items=max_items, actor=actor))


def item(system: Operator, key: int) -> str:
    """One item in full.

    Raises:
        UserError: the replay does not answer, or no item in the ring starts at `key`.
    """
    info = _info(system)
    answer = system.inspect(one=True, key=key)
    if not answer.items:
        raise UserError(
            f"no item in the ring starts at key {key}: the row is overwritten, not written yet, or starts none "
            "(`shoal replay items` shows keys that do)"
        )
    return item_view.item(info, answer.items[0])


def snapshot(system: Operator, folder: str) -> str:
    """Copy the ring to a new folder; a relative path is meant from here, since the replay is on this machine.

    Raises:
        UserError: the replay does not answer, or cannot copy; the sentence is its own.
    """
    _info(system)
    target = Path(folder).absolute()
    answer = system.snapshot(str(target))
    return (
        f"{figures.count(answer.steps)} steps are copied to {target}: {answer.bytes / 2**20:.1f} MiB in "
        f"{answer.seconds:.1f} s\n"
    )


def _info(system: Operator) -> replay_pb2.GetReplayInfoResponse:
    info = system.replay()
    if info is None:
        raise UserError(system.silence(REPLAY))
    return info
