"""`shoal why` and `shoal audit` against real servers that answer as a replay and a learner would."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Callable, Tuple

import pytest

from services.cli import __main__ as command
from services.cli.target import Addresses, announced
from shoal.v1 import experience_pb2, parameters_pb2, parameters_pb2_grpc, replay_pb2, replay_pb2_grpc
from tests.conftest import Serve

Ask = Callable[..., Tuple[int, str]]


class _Answers(replay_pb2_grpc.ReplayServiceServicer, parameters_pb2_grpc.ParameterServiceServicer):
    """Answers GetInfo with one message; asks for an operator without a run, as commands are."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def GetInfo(self, request: Any, context: Any) -> Any:  # noqa: N802
        assert (request.peer.role, request.peer.run_id) == (experience_pb2.ROLE_OPERATOR, "")
        return self.answer


def _replay(**changes: Any) -> replay_pb2.GetReplayInfoResponse:
    info = replay_pb2.GetReplayInfoResponse(schema=experience_pb2.Schema(), num_items=80, **changes)
    for name, value in (
        ("acknowledged", 100), ("resident", 90), ("overwritten", 4), ("quarantined", 5), ("lost_tail", 1),
        ("items", 88), ("unripe", 6),
    ):  # fmt: skip
        setattr(info.steps, name, value)
    for name, acknowledged, buffered in (("actor-0", 60, 8), ("actor-1", 40, 0)):
        info.actors.add(
            name=name,
            acknowledged_steps=acknowledged,
            life_acknowledged_steps=acknowledged,
            seconds_since_insert=0.1,
            counters=experience_pb2.ActorCounters(produced_steps=acknowledged + buffered, buffered_steps=buffered),
        )
    return info


@pytest.fixture
def ask(serve: Serve, capsys: pytest.CaptureFixture[str]) -> Ask:
    def run(words: str, replay: Any = None, learner: Any = None) -> Tuple[int, str]:
        flags = []
        for key, add, answer in (
            ("--replay.addresses", replay_pb2_grpc.add_ReplayServiceServicer_to_server, replay),
            ("--learner.address", parameters_pb2_grpc.add_ParameterServiceServicer_to_server, learner),
        ):
            flags += [key, "127.0.0.1:1" if answer is None else serve(add, _Answers(answer))]
        return command.main([*words.split(), *flags]), capsys.readouterr().out

    return run


def test_an_audit_that_holds(ask: Ask) -> None:
    code, text = ask("audit", _replay())
    assert code == 0
    assert text.splitlines() == [
        "100 acknowledged = 90 resident + 4 overwritten + 0 reset + 5 quarantined + 1 lost tail: holds",
        "100 acknowledged = 88 items + 6 unripe + 0 unripe evicted + 5 quarantined + 1 lost tail: holds",
        "100 acknowledged = 60 of actor-0 + 40 of actor-1: holds",
        "68 produced by actor-0 = 60 acknowledged + 8 buffered: holds",
        "40 produced by actor-1 = 40 acknowledged + 0 buffered: holds",
    ]


def test_a_life_of_an_actor_is_accounted_for_with_its_drops_and_with_what_another_ring_acknowledged(ask: Ask) -> None:
    replay = _replay()
    actor = replay.actors[0]
    actor.life_acknowledged_steps, actor.earlier_lives, actor.elsewhere_steps = 45, 1, 100
    actor.counters.produced_steps = 45 + 100 + 8 + 7 + 2
    actor.counters.dropped_steps["buffer_full"] = 7
    actor.counters.dropped_steps["a"] = 2
    code, text = ask("audit", replay)
    assert code == 0
    lines = text.splitlines()
    assert lines[3] == (
        "162 produced by actor-0 = 45 acknowledged + 100 acknowledged where this ring does not know of it + "
        "2 dropped (a) + 7 dropped (buffer_full) + 8 buffered: holds"
    )
    assert lines[5] == ("15 more are of 1 earlier life of actor-0: produced means the last chunk that was seen of them")


def test_of_a_dead_actor_produced_means_the_last_chunk_that_was_seen(ask: Ask) -> None:
    replay = _replay()
    replay.actors[0].seconds_since_insert = 75.0
    code, text = ask("audit", replay)
    assert code == 0
    lines = text.splitlines()
    assert lines[3] == "60 produced by actor-0 = 60 acknowledged: holds"
    assert lines[5] == (
        "actor-0 sent its last chunk 1:15 ago: produced means up to that one; 8 steps were buffered behind it, and "
        "nobody has seen them"
    )
    replay.actors[0].waiting_for = "at rest: the run is drained"  # it lives, and would have sent them
    assert ask("audit", replay)[1].splitlines()[3] == "68 produced by actor-0 = 60 acknowledged + 8 buffered: holds"


@pytest.mark.parametrize("by", [-1, 1])
def test_a_step_more_or_less_of_an_actor_breaks_its_equation(ask: Ask, by: int) -> None:
    replay = _replay()
    replay.actors[0].counters.produced_steps += by
    code, text = ask("audit", replay)
    assert code == 1
    assert text.splitlines()[3].endswith(f"BROKEN: {by:+} steps are unaccounted for")


def test_an_audit_for_scripts(ask: Ask) -> None:
    replay = _replay()
    code, text = ask("audit --json", replay)
    facts = json.loads(text)
    assert (code, facts["holds"], len(facts["equations"]), facts["notes"]) == (0, True, 5, [])
    assert facts["equations"][3] == {
        "left": "produced by actor-0",
        "total": 68,
        "right": {"acknowledged": 60, "buffered": 8},
        "difference": 0,
    }
    replay.steps.reset += 2
    code, text = ask("audit --json", replay)
    assert (code, json.loads(text)["holds"], json.loads(text)["equations"][0]["difference"]) == (1, False, -2)


def test_a_broken_sum_is_an_exit_code_and_says_by_how_much(ask: Ask) -> None:
    broken = _replay()
    broken.steps.overwritten -= 3
    broken.actors[1].acknowledged_steps += 2
    code, text = ask("audit", broken)
    assert code == 1
    lines = text.splitlines()
    assert lines[0].endswith("BROKEN: +3 steps are unaccounted for")
    assert lines[1].endswith("holds")
    assert lines[2].endswith("BROKEN: -2 steps are unaccounted for")
    assert [line.endswith("holds") for line in lines[3:]] == [True, True]


def test_an_audit_without_a_replay_or_a_table(ask: Ask, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask("audit", replay_pb2.GetReplayInfoResponse()) == (
        0,
        "the replay has no table yet: no actor has introduced itself\n",
    )
    assert command.main(["audit", "--replay.addresses", "127.0.0.1:1"]) == 2
    sentence = capsys.readouterr().err
    assert sentence.startswith("shoal: no answer from a replay at 127.0.0.1:1 (unavailable")
    assert "nothing can be checked without it" in sentence
    assert ask("audit --json", replay_pb2.GetReplayInfoResponse()) == (
        0,
        '{"holds": true, "equations": [], "notes": []}\n',
    )


def test_nobody_waits(ask: Ask) -> None:
    assert ask("why", _replay(), parameters_pb2.GetLearnerInfoResponse()) == (0, "nobody waits\n")


def test_each_wait_has_a_reason_and_what_would_release_it(ask: Ask) -> None:
    replay = _replay()
    replay.limiter.min_size_to_sample = 1000
    replay.waiters.add(peer_name="learner", call="Sample", seconds=12.0, reason="80 items, 1000 are needed")
    replay.waiters.add(peer_name="actor-0", call="Insert", seconds=75.0, reason="the learner is behind")
    replay.actors[1].seconds_since_insert = 3700.0
    learner = parameters_pb2.GetLearnerInfoResponse(waiting_for="80 items, 1000 are needed")
    learner.readers.add(
        name="actor-1", role=experience_pb2.ROLE_ACTOR, version=3, seconds_since_call=20.0, lag_updates=400
    )
    code, text = ask("why", replay, learner)
    assert code == 0
    lines = text.splitlines()
    assert lines[::2] == [
        "actor-0 waits for 1:15: its Insert: the learner is behind",
        "learner waits for 0:12: its Sample: 80 items, 1000 are needed",
        "actor-1 waits for 1:01:40: it has inserted nothing, and waits for nothing here",
        "learner waits: 80 items, 1000 are needed",
        "actor-1 waits for 0:20: it has not asked for parameters; it runs version 3, 400 updates old",
    ]
    assert lines[1] == (
        "    samples release it: the learner must draw; raise replay.error_buffer to let actors run further ahead"
    )
    assert lines[3] == "    920 more items release it: actors must insert"
    assert all(line.startswith("    ") for line in lines[1::2])


def test_services_that_do_not_answer_are_waited_for(ask: Ask) -> None:
    code, text = ask("why")
    assert code == 0
    assert "everybody waits: no replay answers at 127.0.0.1:1" in text
    assert "every actor waits: no learner answers at 127.0.0.1:1" in text
    assert "replay waits: no actor has introduced itself yet" in ask("why", replay_pb2.GetReplayInfoResponse())[1]


def test_the_folder_of_a_run_that_is_watched_over_names_its_services(
    serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.toml").write_text('[run]\nname = "mine"\n')
    address = serve(replay_pb2_grpc.add_ReplayServiceServicer_to_server, _Answers(_replay()))
    with announced(tmp_path, Addresses(address, "127.0.0.1:1")):
        assert command.main(["audit", str(tmp_path)]) == 0
    capsys.readouterr()
    assert command.main(["audit", str(tmp_path)]) == 2
    assert "no `shoal up` watches over" in capsys.readouterr().err
    (tmp_path / "endpoints.json").write_text("{")
    assert command.main(["audit", str(tmp_path)]) == 2
    assert "endpoints.json' cannot be read" in capsys.readouterr().err
