from __future__ import annotations

import io
from pathlib import Path

import pytest

from services.cli import __main__ as command
from services.cli import staleness_command
from services.common.errors import UserError
from services.common.staleness_log import StalenessLog
from tests.unit.common.test_staleness_log import row_of


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "reach"
    folder.mkdir()
    (folder / "config.toml").write_text("")
    return folder


def _fill(run: Path, rows: int = 30) -> None:
    log = StalenessLog(run / "staleness.jsonl", 512)
    for number in range(rows):
        log.append(row_of([10 * number, 20 * number, 5], updates=100 * number, actor=f"actor-{number % 2}"))


def _shown(run: Path) -> str:
    output = io.StringIO()
    assert staleness_command.run([str(run)], output) == 0
    return output.getvalue()


def test_the_ledger_is_shown_by_part_over_training_and_by_actor(run: Path) -> None:
    _fill(run)
    text = _shown(run)
    assert "run reach: 90 items trained on up to update 2 900; bound: 500 updates" in text
    assert "60 items were beyond the bound" in text
    assert "30 items were of versions that a crash of the learner took" in text
    table, _, rest = text.partition("mean lag over training")
    lines = {line[:17].strip(): line for line in (table + rest.partition("actor  ")[2]).splitlines()}
    assert "100% ████████████████████████" in lines["in the ring"]
    assert lines["acting"].split()[1:5] == ["0", "0", "0", "0"]
    assert lines["actor-1"].split()[-1] == "580"
    assert any("▁" in line and "█" in line for line in text.splitlines())


def test_a_killed_run_is_shown_without_its_broken_line(run: Path) -> None:
    _fill(run, 3)
    file = run / "staleness.jsonl"
    file.write_bytes(file.read_bytes()[:-30])
    assert "6 items" in _shown(run)


def test_one_row_without_any_lag_is_shown(run: Path) -> None:
    StalenessLog(run / "staleness.jsonl", 512).append(row_of([0, 0]))
    assert "in the prefetch" in _shown(run)


def test_what_is_not_there_is_a_sentence(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no staleness ledger yet"):
        _shown(run)
    with pytest.raises(UserError, match="there is no run in"):
        _shown(tmp_path / "elsewhere")
    (run / "staleness.jsonl").mkdir()
    with pytest.raises(UserError, match="cannot be read: Is a directory"):
        _shown(run)


def test_the_command_takes_no_settings(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _fill(run)
    assert command.main(["staleness", str(run)]) == 0
    assert "in flight" in capsys.readouterr().out
    assert command.main(["staleness", str(run), "--run.seed", "2"]) == 2
    assert "leave out --run.seed" in capsys.readouterr().err


def test_a_picture_is_drawn(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    _fill(run)
    picture = tmp_path / "lag.png"
    assert command.main(["staleness", str(run), "--png", str(picture)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert str(picture) in capsys.readouterr().out
    assert command.main(["staleness", str(run), "--png", str(tmp_path / "no" / "lag.png")]) == 2
    assert "cannot write" in capsys.readouterr().err
    assert command.main(["staleness", str(run), "--png", str(tmp_path / "lag.docx")]) == 2
    assert "cannot draw" in capsys.readouterr().err
