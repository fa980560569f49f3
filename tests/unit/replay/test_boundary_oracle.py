from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from services.replay import item_store, rebuild
from services.replay.items import StepOutcome, Timeline, Windows, build_windows
from tests import boundary_oracle
from tests.boundary_oracle import Scenario, run


@pytest.mark.timeout(120)
def test_every_item_of_every_scenario_is_right(capsys: pytest.CaptureFixture[str]) -> None:
    status = boundary_oracle.main()
    assert status == 0, capsys.readouterr().out
    assert " 0 wrong" in capsys.readouterr().out


@pytest.mark.timeout(240)
def test_every_item_is_right_when_the_table_comes_back_from_its_folder_again_and_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    status = boundary_oracle.main(reopen_period=3)
    assert status == 0, capsys.readouterr().out
    assert " 0 wrong" in capsys.readouterr().out


def _wrong_power(timeline: Timeline, n_step: int, discount: float) -> Windows:
    windows = build_windows(timeline, n_step, discount)
    return Windows(
        windows.outcome, windows.n_step_return, np.full_like(windows.discount, discount**n_step), windows.bootstrap_key
    )


def _next_slot(timeline: Timeline, n_step: int, discount: float) -> Windows:
    windows = build_windows(timeline, n_step, discount)
    return Windows(windows.outcome, windows.n_step_return, windows.discount, timeline.key + n_step)


def _runs_on(timeline: Timeline, n_step: int, discount: float) -> Windows:
    flags = timeline.flags & np.uint8(1)
    final_key = np.full_like(timeline.final_key, -1)
    severed = timeline.severed
    return build_windows(
        Timeline(timeline.key, timeline.exists, timeline.reward, flags, final_key, severed), n_step, discount
    )


def _forgets(timeline: Timeline, n_step: int, discount: float) -> Windows:
    windows = build_windows(timeline, n_step, discount)
    outcome = np.where(timeline.severed.any(), np.uint8(StepOutcome.LOST), windows.outcome)
    return Windows(outcome.astype(np.uint8), windows.n_step_return, windows.discount, windows.bootstrap_key)


def test_the_oracle_notices_what_a_reopening_breaks(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = Scenario("killed", "same_step", 3, wraps=False, first_cut=2, num_actors=1)
    assert not run(scenario, tmp_path / "sound", 1).wrong
    monkeypatch.setattr(rebuild, "build_windows", _wrong_power)
    assert run(scenario, tmp_path / "broken", 1).wrong


@pytest.mark.parametrize("mistake", [_wrong_power, _next_slot, _runs_on, _forgets])
def test_the_oracle_notices_mistakes(mistake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(item_store, "build_windows", mistake)
    assert run(Scenario("killed", "same_step", 3, wraps=False, first_cut=2, num_actors=1)).wrong
