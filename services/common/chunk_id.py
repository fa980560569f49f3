"""The name of a chunk, by which log lines of actor, replay and learner find each other."""

from __future__ import annotations


def chunk_id(actor: str, incarnation: int, sequence: int, lane_group: int = 0) -> str:
    """`actor-0/00c5d1a6b2f01e77/217`; in a lane group other than 0, whose sequences are its own, `…/3.217`.

    Args:
        actor: its name.
        incarnation: of the actor.
        sequence: of the chunk in its lane group.
        lane_group: number of the group.
    """
    number = f"{lane_group}.{sequence}" if lane_group else str(sequence)
    return f"{actor}/{incarnation:016x}/{number}"
