"""An actor that is frozen, replaced and thawed: the new one is at work at once, and nothing of the old one stays."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import Dict, Iterator, List, Optional, Set, Tuple

import pytest

from tests.e2e.launcher import wait_for
from tests.e2e.test_replay_field_cases import Run

AT_WORK_S = 10.0  # of a replacement, its start included
FREED_S = 60.0  # a server looks for idle connections every 20 s
LIVES = 3
FENCED = 3  # exit code
ESTABLISHED = "01"  # of /proc/net/tcp


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    made = Run(tmp_path)
    yield made
    for process in made.older:
        process.send_signal(signal.SIGCONT)
    made.stop()


def sockets_of(pid: int) -> Set[str]:
    """Inodes of the sockets that a process holds."""
    found = set()
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed since
            target = os.readlink(file)
            if target.startswith("socket:["):
                found.add(target[len("socket:[") : -1])
    return found


def connections() -> List[Tuple[str, str, str]]:
    """Local port, port of the other end, and inode of each connection of this machine that is open."""
    rows = [
        line.split() for family in ("tcp", "tcp6") for line in Path(f"/proc/net/{family}").read_text().splitlines()[1:]
    ]
    return [(_port(row[1]), _port(row[2]), row[9]) for row in rows if row[3] == ESTABLISHED]


def _port(end: str) -> str:
    return end.rpartition(":")[2]


def held_for(server: int, callers: List[int]) -> int:
    """How many connections a server holds whose other ends belong to these processes."""
    theirs = set().union(*(sockets_of(pid) for pid in callers))
    of_server, every = sockets_of(server), connections()
    ports = {local for local, _, inode in every if inode in theirs}
    return sum(1 for _, other, inode in every if inode in of_server and other in ports)


def acknowledged(run: Run) -> Dict[int, int]:
    """Acknowledged steps of the living incarnations, each of its own life."""
    return {actor.incarnation: actor.life_acknowledged_steps for actor in run.peers.info().actors}


def replace_frozen(run: Run) -> None:
    """Freeze the actor, start another of its name, and see it acknowledged in time."""
    replaced = set(acknowledged(run))
    run.processes["actor-0"].send_signal(signal.SIGSTOP)
    began_s = time.monotonic()
    run.start("actor-0")

    def newcomer_is_acknowledged() -> Optional[bool]:
        living = acknowledged(run)
        return (not replaced & set(living) and min(living.values(), default=0) > 0) or None

    wait_for(newcomer_is_acknowledged, "a chunk of the replacement", AT_WORK_S)
    assert time.monotonic() - began_s < AT_WORK_S


@pytest.mark.timeout(300)
def test_a_frozen_actor_is_replaced_in_ten_seconds_and_its_connections_are_freed(run: Run) -> None:
    for name in ("replay", "learner", "actor-0"):
        run.start(name)
    run.wait_for_training()
    servers = {name: run.processes[name].pid for name in ("replay", "learner")}
    held = {name: held_for(pid, [run.processes["actor-0"].pid]) for name, pid in servers.items()}
    assert min(held.values()) > 0, "the connections are not found"

    for _ in range(LIVES):  # what one dead life holds may not show
        replace_frozen(run)
    frozen = [process.pid for process in run.older]
    assert len(frozen) == LIVES

    for name, pid in servers.items():
        wait_for(
            lambda pid=pid: held_for(pid, frozen) == 0 or None, f"that the {name} lets go of the frozen actors", FREED_S
        )
        assert held_for(pid, [run.processes["actor-0"].pid]) <= held[name]

    before = run.peers.info().steps.acknowledged
    for process in run.older:
        process.send_signal(signal.SIGCONT)
    assert [process.wait(20) for process in run.older] == [FENCED] * LIVES
    wait_for(lambda: run.peers.info().steps.acknowledged > before + 400 or None, "the newest one's work", 20)
    assert [actor.name for actor in run.peers.info().actors] == ["actor-0"]
    assert "Traceback" not in run.log("actor-0")
    run.end("actor-0", "learner", "replay")
