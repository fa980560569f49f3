from __future__ import annotations

from typing import Any

import pytest

from tests.chaos.accounting import Account
from tests.chaos.catalogue import all_scenarios, choose
from tests.chaos.report import BEGIN, END, last_line, replace_section, to_markdown
from tests.chaos.runner import seed_of
from tests.chaos.scenario import MAX_STRAIN, Measure, Outcome, Scenario

SOUND = Account(acknowledged=1200, present=1200, lost=0, doubled=0, unanswered=0)
FACTS = {"cpu": "a CPU", "cores": 2, "memory_gib": 8.0, "python": "3.11", "load_before": [0.5]}


def outcome(*, may_reset: bool = False, **values: Any) -> Outcome:
    scenario = Scenario("kill_x", "processes", "kill -9 of x", lambda _trial: None, may_reset=may_reset)
    made = Outcome(scenario, 1, **values)
    made.judge()
    return made


def test_a_sound_outcome_passes() -> None:
    assert outcome(account=SOUND, measures=[Measure("x at work", 9.9, 10.0)]).verdict == "passed"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"account": Account(10, 9, 1, 0, 0)}, "1 acknowledged steps are lost"),
        ({"account": Account(10, 10, 0, 3, 0)}, "3 steps are there twice"),
        ({"account": Account(0, 0, 0, 0, 0)}, "no step was acknowledged"),
        ({"account": Account(10, 10, 0, 0, 0, ("a fault of the account",))}, "a fault of the account"),
        ({"account": SOUND, "measures": [Measure("x at work", 10.2, 10.0)]}, "x at work took 10.2 s"),
        ({"account": Account(10, 5, 5, 0, 0), "counted_lost": 5}, "gave up 5 acknowledged steps"),
        ({"account": SOUND, "stranded": 3}, "gave up 3 acknowledged steps"),
        ({"account": SOUND, "late": ["actor-0 did no work within 20 s"]}, "did no work"),
        ({"account": SOUND, "counted_lost": 5, "may_reset": True}, "-5 acknowledged steps are lost"),
        ({}, "not accounted for"),
    ],
)
def test_each_fault_fails_it(values: Any, words: str) -> None:
    failed = outcome(**values)
    assert failed.verdict == "FAILED"
    assert any(words in fault for fault in failed.faults)


LATE = Measure("x at work", 31.0, 30.0)


@pytest.mark.parametrize("values", [{"account": SOUND, "measures": [LATE]}, {"late": ["training did not go on"]}])
def test_what_is_late_on_a_machine_that_is_much_too_busy_shows_nothing(values: Any) -> None:
    assert outcome(strain=MAX_STRAIN, **values).verdict == "FAILED"
    busy = outcome(strain=MAX_STRAIN + 0.1, **values)
    assert busy.verdict == "NOT TESTED"
    assert "too slow" in busy.not_tested


def test_a_busy_machine_excuses_no_step() -> None:
    lost = Account(acknowledged=1200, present=1190, lost=10, doubled=0, unanswered=0)
    failed = outcome(strain=9.0, account=lost, measures=[LATE])
    assert failed.verdict == "FAILED"
    assert failed.faults == ["10 acknowledged steps are lost"]
    assert outcome(strain=9.0, account=SOUND).verdict == "passed"


def test_the_last_line_counts_what_was_not_tested_too() -> None:
    outcomes = [outcome(account=SOUND), outcome(account=SOUND), outcome()]
    assert last_line(outcomes) == "2 passed, 1 failed"
    assert last_line([*outcomes, outcome(not_tested="no cgroup")]) == "2 passed, 1 failed, 1 NOT TESTED"


def test_the_table_has_a_row_for_each_and_tells_what_failed() -> None:
    lost = Account(acknowledged=1200, present=1190, lost=10, doubled=0, unanswered=0)
    outcomes = [
        outcome(account=SOUND, measures=[Measure("replay at work", 1.25, 3.0)], lost_updates=17, notes=["twice"]),
        outcome(account=lost, counted_lost=10, may_reset=True),
        outcome(not_tested="no cgroup"),
        outcome(account=lost),
    ]
    section = to_markdown(outcomes, FACTS, seed=7, minutes=3.2)
    lines = [line for line in section.splitlines() if line.startswith("| `kill_x`")]
    assert lines[0] == ("| `kill_x` | kill -9 of x (twice) | replay at work 1.2 s | 17 | 1,200 | 0 | 0 | passed |")
    assert "| 0 (and 10 counted) | 0 | passed |" in lines[1]
    assert lines[2].endswith("| NOT TESTED |")
    assert lines[3].endswith("| 10 | 0 | FAILED |")
    assert "seed 7" in section
    assert "`kill_x`: 10 acknowledged steps are lost" in section
    assert "NOT TESTED, `kill_x`: no cgroup" in section


def test_only_the_generated_section_of_the_page_changes() -> None:
    page = f"above\n{BEGIN}\nold\n{END}\nbelow\n"
    assert replace_section(page, "new\n") == f"above\n{BEGIN}\nnew\n{END}\nbelow\n"
    with pytest.raises(ValueError, match="lacks"):
        replace_section("above", "new")


def test_names_are_unique_and_each_kind_has_a_quick_one() -> None:
    scenarios = all_scenarios()
    names = [scenario.name for scenario in scenarios]
    assert len(set(names)) == len(names)
    assert {s.kind for s in choose(scenarios, None, quick=True)} == {s.kind for s in scenarios}
    assert [s.name for s in choose(scenarios, ["kill_all"], quick=True)] == ["kill_all"]


@pytest.mark.parametrize(
    "name",
    ["kill_replay", "freeze_replay", "replace_frozen_actor", "half_open", "slow_link", "wrong_token", "combination_1"],
)
def test_the_quick_choice_holds_what_hurt_others_most(name: str) -> None:
    assert name in {scenario.name for scenario in choose(all_scenarios(quick=True), None, quick=True)}


def test_only_a_crash_of_the_machine_may_cost_steps_and_only_combinations_need_nine_in_ten() -> None:
    scenarios = all_scenarios()
    assert [scenario.name for scenario in scenarios if scenario.may_reset] == ["damaged_after_a_crash"]
    assert {scenario.kind for scenario in scenarios if scenario.bar >= 0.9} == {"combinations"}
    assert all(scenario.bar > 0 for scenario in scenarios)


def test_a_scenario_has_its_own_seed_whichever_others_run() -> None:
    seeds = {seed_of(seed, name) for seed in (1, 2) for name in ("kill_all", "kill_actor")}
    assert len(seeds) == 4
    assert seed_of(1, "kill_all") == seed_of(1, "kill_all")
