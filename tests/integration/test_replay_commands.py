"""`shoal replay …` against real servers and folders: what a person sees, and the sentence where there is nothing."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional, Tuple

import numpy as np
import pytest

from services.cli.__main__ import main
from services.common.chunk import TERMINATED, VALID
from services.common.ring_layout import RingFormat, column_file
from services.replay.ring_folder import RingFolder
from services.replay.servicer import ReplayServicer
from services.replay.table import Table, TableSettings
from shoal.v1 import parameters_pb2_grpc, replay_pb2_grpc
from tests.conftest import Serve
from tests.fakes import RUN_ID, SCHEMA, FakeChief, FakeLog, make_chunk

SETTINGS = TableSettings(capacity=256, n_step=2, discount=0.5, max_batch_size=64)


class Replay:
    """A served table."""

    def __init__(self, serve: Serve, folder: Optional[Path] = None) -> None:
        ring: Optional[RingFolder] = None
        if folder is not None:
            ring_format = RingFormat(RUN_ID, SCHEMA, SETTINGS.capacity, 2, 0.5, boot_id="", made_wall_s=time.time())
            ring = RingFolder.create(folder, ring_format, "0123")
        self.table = Table(SETTINGS, SCHEMA, clock=time.monotonic, folder=ring)
        self.ring_folder = ring
        servicer = ReplayServicer(
            run_id=RUN_ID,
            incarnation=99,
            make_table=lambda schema: self.table,
            log=FakeLog(),
            fail=pytest.fail,
            table=self.table,
        )
        self.address = serve(replay_pb2_grpc.add_ReplayServiceServicer_to_server, servicer)

    def fill(self, chunks: int = 3, actor: str = "actor-0") -> None:
        for i in range(chunks):
            flags = np.full((4, 2), VALID, np.uint8)
            flags[3] |= TERMINATED
            chunk = make_chunk(flags=flags, sequence=i, first_step=4 * i, seed=i, version=i + 1)
            assert self.table.insert(actor, 5, chunk, max_wait_s=0.0).reason == ""
        self.table.set_newest(10, 1000)


@pytest.fixture
def replay(serve: Serve) -> Replay:
    return Replay(serve)


@pytest.fixture
def durable(serve: Serve, tmp_path: Path) -> Any:
    made = Replay(serve, tmp_path / "ring")
    yield made
    assert made.ring_folder is not None
    made.ring_folder.close()


@pytest.fixture
def shoal(capsys: pytest.CaptureFixture[str]) -> Callable[..., List[str]]:
    """Run a command that succeeds and return its lines."""

    def run(*words: str) -> List[str]:
        assert main(["replay", *words]) == 0
        answer = capsys.readouterr()
        assert answer.err == ""
        return answer.out.splitlines()

    return run


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command that the user must mend and return its one sentence."""

    def run(*words: str) -> str:
        assert main(["replay", *words]) == 2
        answer = capsys.readouterr()
        assert answer.out == ""
        (line,) = answer.err.splitlines()
        return line

    return run


def rows_of(lines: List[str]) -> List[Dict[str, str]]:
    """The table's rows by heading; `age s` is the one heading of two words."""
    begin = next(place for place, line in enumerate(lines) if line.split()[:2] == ["key", "actor"])
    end = lines.index("", begin)
    headings = lines[begin].replace("age s", "age").split()
    return [dict(zip(headings, line.split())) for line in lines[begin + 1 : end]]


def test_items_come_in_the_order_that_is_asked_for(replay: Replay, shoal: Any) -> None:
    replay.fill()
    lines = shoal("items", replay.address)
    assert lines[0] == f"run {RUN_ID}: 24 items in 30 of 256 rows, n_step 2, discount 0.5, newest version 10"
    shown = rows_of(lines)
    assert len(shown) == 20
    priorities = [float(row["priority"]) for row in shown]
    assert priorities == sorted(priorities, reverse=True)
    oldest = [int(row["key"]) for row in rows_of(shoal("items", replay.address, "--order", "oldest", "--max", "5"))]
    assert oldest == [0, 1, 2, 3, 4]
    newest = rows_of(shoal("items", replay.address, "--order", "newest", "--max", "24"))
    keys = [int(row["key"]) for row in newest]
    assert keys == sorted(keys, reverse=True)
    assert len(keys) == 24
    assert newest[0]["version"] == "3"
    assert newest[0]["lag"] == "7"
    assert newest[0]["bootstrap"] == "-"


def test_the_spread_counts_every_item_once(replay: Replay, shoal: Any) -> None:
    replay.fill()
    replay.table.sample(1, 64, max_wait_s=0.0)
    lines = shoal("items", replay.address, "--max", "1")
    spreads = {line.split("  ")[1].strip(): line for line in lines[lines.index("all items:") + 1 :]}
    assert list(spreads) == ["priority", "age, s", "lag, versions", "times sampled"]
    for line in spreads.values():
        bars = line.split("|")[1]
        assert bars.strip()
    lag = spreads["lag, versions"]
    assert lag.split("|")[0].split()[-1] == "7"
    assert lag.split("|")[2].strip() == "9"
    assert len(lag.split("|")[1].replace(" ", "")) == 3  # three versions, eight items each
    assert set(lag.split("|")[1]) == {" ", "█"}


def test_items_of_one_actor(replay: Replay, shoal: Any, refused: Any) -> None:
    replay.fill(2, "a")
    replay.fill(1, "b")
    shown = rows_of(shoal("items", replay.address, "--actor", "b"))
    assert [row["actor"] for row in shown] == ["b"] * 8
    assert refused("items", replay.address, "--actor", "c") == "shoal: the replay knows no actor 'c'; it has a, b"


def test_one_item_in_full_is_what_the_actor_reported(replay: Replay, shoal: Any, refused: Any) -> None:
    replay.fill(1)
    flags = np.full((4, 2), VALID, np.uint8)
    flags[3] |= TERMINATED
    sent = make_chunk(flags=flags, version=1)
    lines = shoal("items", replay.address, "--key", "3")
    text = {line.split()[0]: line.split(maxsplit=1)[1] for line in lines if line.startswith("  ")}
    assert "item 3" in lines
    assert text["bootstrap"] == "from key 7"
    numbers = " ".join(str(sent.observation["policy"][1, 1]).split())
    assert text["observation.policy"] == f"float32[2] {numbers}"
    assert text["next_observation.policy"] == f"float32[2] {' '.join(str(sent.observation['policy'][3, 1]).split())}"
    assert float(text["reward"].split()[-1]) == pytest.approx(float(sent.reward[1, 1]), abs=1e-5)
    assert text["flags"] == "1 (valid)"
    sentence = refused("items", replay.address, "--key", "999")
    assert sentence.startswith("shoal: no item in the ring starts at key 999: the row is overwritten, not written yet")
    assert refused("items", replay.address, "--key", "8").startswith("shoal: no item in the ring starts at key 8")


def test_an_empty_table_is_no_mistake(replay: Replay, shoal: Any) -> None:
    assert shoal("items", replay.address)[1:] == ["no items"]


def test_a_snapshot_opens_as_a_ring(durable: Replay, tmp_path: Path, shoal: Any, refused: Any) -> None:
    durable.fill()
    copy = tmp_path / "copy"
    (line,) = shoal("snapshot", durable.address, str(copy))
    assert line.startswith(f"24 steps are copied to {copy}: ")
    assert refused("snapshot", durable.address, str(copy)).endswith("name a folder that does not")
    opened = RingFolder.open(copy, "4567")
    table = Table(SETTINGS, SCHEMA, clock=time.monotonic, folder=opened)
    assert table.check_valid() is None
    assert table.info().num_items == 24
    opened.close()


def test_a_relative_folder_is_meant_from_here(
    durable: Replay, tmp_path: Path, shoal: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    durable.fill(1)
    monkeypatch.chdir(tmp_path)
    shoal("snapshot", durable.address, "mine")
    assert (tmp_path / "mine" / "format.json").exists()


def test_a_ring_in_memory_takes_no_snapshot(replay: Replay, tmp_path: Path, refused: Any) -> None:
    replay.fill(1)
    sentence = refused("snapshot", replay.address, str(tmp_path / "copy"))
    assert "keeps its ring in memory and takes no snapshots: set replay.data_dir" in sentence
    assert not (tmp_path / "copy").exists()


@pytest.mark.parametrize("words", [("items",), ("snapshot", "copy")])
def test_a_learner_is_no_replay(words: Tuple[str, ...], serve: Serve, refused: Any) -> None:
    address = serve(parameters_pb2_grpc.add_ParameterServiceServicer_to_server, FakeChief())
    sentence = refused(words[0], address, *words[1:])
    assert sentence.startswith(f"shoal: what listens at {address} is not a replay; ")


def test_a_folder_is_inspected_and_damage_is_found(durable: Replay, tmp_path: Path) -> None:
    durable.fill()

    def inspect(*words: str) -> Any:
        command = [sys.executable, "-m", "services.cli", "replay", "inspect", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    folder = tmp_path / "ring"
    found = inspect(str(folder), "--check")
    assert found.returncode == 0, found.stderr
    assert "24 items" in found.stdout
    assert "damaged        0 chunks" in found.stdout
    with column_file(folder, "reward").open("r+b") as column:
        column.write(b"\xff\xff")
    found = inspect(str(folder), "--check")
    assert found.returncode == 1, found.stderr
    assert "damaged        1 chunks, from key 0" in found.stdout
    found = inspect(str(tmp_path))
    assert found.returncode == 2
    (sentence,) = found.stderr.splitlines()
    assert sentence.endswith("holds no ring; choose another folder")
