from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, List, Tuple

import pytest

from services.cli import __main__ as command
from services.cli import doctor_command


@pytest.fixture
def became(monkeypatch: pytest.MonkeyPatch) -> List[Tuple[str, List[str]]]:
    calls: List[Tuple[str, List[str]]] = []

    def become(module: str, arguments: List[str]) -> Any:
        calls.append((module, list(arguments)))
        raise SystemExit(0)

    monkeypatch.setattr(doctor_command, "become", become)
    return calls


@pytest.mark.parametrize(
    ("words", "module", "arguments"),
    [
        (
            ["env", "--env.lanes", "4", "run.toml", "--steps", "9", "--json"],
            "services.actor.conformance",
            ["run.toml", "--steps", "9", "--json", "--env.lanes", "4"],
        ),
        (["lane", "a.safetensors"], "services.actor.conformance.lane", ["a.safetensors"]),
    ],
)
def test_it_becomes_the_process_of_the_actor_with_overrides_last(
    words: List[str], module: str, arguments: List[str], became: Any
) -> None:
    with pytest.raises(SystemExit):
        command.main(["doctor", *words])
    assert became == [(module, arguments)]


def test_help_names_both(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["doctor", "--help"]) == 0
    out = capsys.readouterr().out
    assert "shoal doctor env FILE.toml" in out
    assert "shoal doctor lane DUMP" in out
    assert command.main(["doctor"]) == 2
    assert "doctor" in _help_of_shoal(capsys)


def _help_of_shoal(capsys: pytest.CaptureFixture[str]) -> str:
    command.main([])
    return capsys.readouterr().err


def test_another_command_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["doctor", "actor"]) == 2
    assert "there is no `shoal doctor actor`; there are env and lane" in capsys.readouterr().err


def test_a_flag_that_is_given_twice_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["doctor", "env", "run.toml", "--steps", "1", "--steps", "2"]) == 2
    assert "--steps is given twice" in capsys.readouterr().err


def test_the_whole_way_from_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('[env]\nfactory = "tests.bad_envs:make"\nkwargs = { fault = "long flags" }\n', encoding="utf-8")
    ended = subprocess.run(
        [sys.executable, "-m", "services.cli", "doctor", "env", str(file), "--steps", "30", "--env.lanes", "2"],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ended.returncode == 1, ended.stderr
    assert "terminated is int64; it must be bool (in call 1 of step)" in ended.stdout
    assert "environment tests.bad_envs:make: 2 lanes" in ended.stdout
