"""`shoal top` against real servers that answer as a replay and a learner would."""

from __future__ import annotations

import io
import json
import os
import pty
import threading
from typing import Any, List

import pytest
from rich.console import Console

from services.cli import __main__ as command
from services.cli import top_command
from services.cli.keys import Keys
from services.cli.operator import Operator
from services.cli.poller import Poller
from services.cli.target import Addresses
from services.cli.top_command import Top
from services.common.config.security import SecuritySection
from shoal.v1 import parameters_pb2_grpc, replay_pb2_grpc
from tests.conftest import Eventually, Serve
from tests.unit.cli.test_poller import Learner, Replay

REPLAY = replay_pb2_grpc.add_ReplayServiceServicer_to_server
LEARNER = parameters_pb2_grpc.add_ParameterServiceServicer_to_server


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(top_command, "ONCE_GAP_S", 0.05)
    monkeypatch.setattr(top_command, "FRAME_S", 0.05)


@pytest.fixture
def flags(serve: Serve) -> List[str]:
    return ["--replay.addresses", serve(REPLAY, Replay()), "--learner.address", serve(LEARNER, Learner())]


@pytest.mark.parametrize("once", [["--once"], []])  # here the output is no terminal
def test_one_frame_has_the_flow_the_panels_and_each_process(
    flags: List[str], once: List[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["top", *once, *flags]) == 0
    text = capsys.readouterr().out
    for words in (
        "1 actors 0.0 steps/s +40.0 buffered ─▶ replay 0.0 items/s ─▶ learner 0.0 updates/s +6 batches ─▶ version 5",
        "ring 10/30",
        "draining: actors",
        "the drain: 0:04 waiting for actors",
        "● replay",
        "● helper-0",
        "● actor-0",
        "its Insert: long",
        "the environment hangs",
    ):
        assert words in text, words
    assert "\x1b" not in text  # nothing that moves a cursor


def test_one_frame_for_scripts(flags: List[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["top", "--json", "--sort", "name", *flags]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["replay"]["rows"] == 1200
    assert facts["learner"]["updates"] == 100
    assert facts["actors"]["actor-0"]["buffered_steps"] == 40
    assert [each["name"] for each in facts["processes"]][:2] == ["replay", "learner"]
    assert {wait["who"] for wait in facts["waits"]} >= {"learner", "actor-0"}


def test_what_is_away_is_said_and_is_an_exit_code(flags: List[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["top", "--once", *flags[:2], "--learner.address", "127.0.0.1:1"]) == 1
    text = capsys.readouterr().out
    assert "▲ learner" in text
    assert "does not answer" in text
    assert "● replay" in text
    assert command.main(["top", "--json", "--replay.addresses", "127.0.0.1:1", "--learner.address", "127.0.0.1:1"]) == 1
    facts = json.loads(capsys.readouterr().out)
    assert (facts["replay"], facts["learner"]) == (None, None)


def test_the_live_view_survives_a_service_that_goes_sorts_by_a_key_and_quits_by_another(
    flags: List[str], eventually: Eventually
) -> None:
    poller = Poller(Operator(Addresses(flags[1], flags[3]), SecuritySection()), period_s=0.05, timeout_s=1.0)
    console = Console(file=io.StringIO(), force_terminal=True, width=120, height=40)
    written: Any = console.file
    top = Top(poller, "a", "staleness")
    master, slave = pty.openpty()
    with os.fdopen(slave, "r") as stream:
        poller.start()
        live = threading.Thread(target=lambda: top.live(console, Keys(stream)))
        live.start()
        eventually(lambda: "1 200" in written.getvalue())
        os.write(master, b"s")
        eventually(lambda: "s sorts by rate" in written.getvalue())
        os.write(master, b"q")
        live.join(10)
        assert not live.is_alive()
        poller.stop()
    os.close(master)


@pytest.mark.parametrize(("width", "height"), [(40, 12), (84, 20), (200, 60)])
def test_a_frame_fits_its_terminal(flags: List[str], width: int, height: int) -> None:
    poller = Poller(Operator(Addresses(flags[1], flags[3]), SecuritySection()), timeout_s=1.0)
    poller.look()
    console = Console(file=io.StringIO(), width=width, height=height, color_system=None, force_terminal=True)
    console.print(Top(poller, "a", "name").frame(width, height))
    written: Any = console.file
    lines = written.getvalue().rstrip("\n").splitlines()
    assert max(map(len, lines)) <= width
    assert len(lines) <= height
    poller.stop()
