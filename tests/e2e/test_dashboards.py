"""Each panel's queries, by a real Prometheus that scrapes a live run: nothing is empty, legends have their labels."""

from __future__ import annotations

import math
import os
import signal
from typing import Any, Dict, Iterator, List, Optional

import pytest

from tests.e2e import panels
from tests.e2e.launcher import wait_for
from tests.e2e.monitored import ACTORS, MonitoredRun
from tests.e2e.panels import Target
from tests.e2e.prometheus import Prometheus, prometheus_binary

DASHBOARDS = {dashboard["uid"]: dashboard for dashboard in panels.dashboards()}
TARGETS = [target for dashboard in DASHBOARDS.values() for target in panels.targets(dashboard)]
ARRIVES_S = 30  # until what has come about is drawn

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MonitoredRun]:
    """A run in which everything has happened once that happens in a healthy run."""
    prometheus_binary()
    watched = MonitoredRun(
        tmp_path_factory.mktemp("watched"),
        *("--staleness.max_lag_updates", "100000", "--learner.checkpoint_period_s", "2", "--replay.capacity", "20000"),
    )
    try:
        for condition in (
            "shoal_learner_evaluated_success_ratio",
            "shoal_helper_pushes_accepted_total > 20",
            "increase(shoal_learner_checkpoints_total[30s]) > 1",
            "shoal_learner_updates_total > 1000",
            f"count_over_time(shoal_learner_version[{panels.RATE_INTERVAL_S}s]) > 10",
            f"count(shoal_learner_actor_claim_divergence) == {ACTORS}",  # each has been compared often enough
        ):
            watched.wait_for(condition)
        yield watched
    finally:
        watched.stop()


@pytest.fixture(scope="module")
def prometheus(run: MonitoredRun) -> Prometheus:
    assert run.prometheus is not None
    return run.prometheus


def series_of(prometheus: Prometheus, target: Target, values: Dict[str, str]) -> List[Dict[str, Any]]:
    """What Grafana would draw: series with a number at some time of the last seconds."""
    expr = panels.substituted(target.expr, values)
    series = prometheus.now(expr) if target.is_instant else prometheus.over(expr, seconds=10, step_s=2)
    for each in series:
        each["numbers"] = [float(text) for _, text in each.get("values", [each.get("value")])]
    return [each for each in series if any(math.isfinite(number) for number in each["numbers"])]


@pytest.mark.parametrize("target", TARGETS, ids=str)
def test_the_query_finds_something_with_the_labels_of_its_legend(prometheus: Prometheus, target: Target) -> None:
    choices = panels.choices(DASHBOARDS[target.dashboard], prometheus)
    widest = {name: offered[0] for name, offered in choices.items()}
    narrowest = {name: offered[-1] for name, offered in choices.items()}
    for values in (widest, narrowest):
        empty = f"a number with {values}: {panels.substituted(target.expr, values)}"
        series = wait_for(lambda values=values: series_of(prometheus, target, values) or None, empty, ARRIVES_S)
        for each in series:
            assert target.legend_labels <= set(each["metric"]), f"{target.legend} of {each['metric']}"


@pytest.mark.parametrize("uid", sorted(DASHBOARDS))
def test_series_of_a_panel_can_be_told_apart(prometheus: Prometheus, uid: str) -> None:
    values = {name: offered[0] for name, offered in panels.choices(DASHBOARDS[uid], prometheus).items()}
    names: Dict[str, List[str]] = {}
    for target in panels.targets(DASHBOARDS[uid]):
        for each in series_of(prometheus, target, values):
            column = target.ref_id if target.kind == "table" else ""
            names.setdefault(f"{target.panel} {column}", []).append(target.named(each["metric"]))
    doubled = {panel: found for panel, found in names.items() if len(found) != len(set(found))}
    assert not doubled


def largest(prometheus: Prometheus, uid: str, panel: str, ref_id: str = "A") -> Dict[str, Any]:
    """The topmost bar or row of a panel, with its latest number."""
    values = {name: offered[0] for name, offered in panels.choices(DASHBOARDS[uid], prometheus).items()}
    (target,) = [each for each in TARGETS if (each.dashboard, each.panel, each.ref_id) == (uid, panel, ref_id)]
    return max(series_of(prometheus, target, values), key=lambda each: float(each["numbers"][-1]))


def comes_to_the_top(prometheus: Prometheus, labels: Dict[str, str], *panel: str) -> None:
    """A series with these labels becomes the topmost of a panel, (uid, title, ref_id)."""

    def look() -> Optional[bool]:
        return labels.items() <= largest(prometheus, *panel)["metric"].items() or None

    wait_for(look, f"{labels} at the top of {panel}", ARRIVES_S)


def test_no_share_of_the_items_is_said_to_be_older_than_the_oldest(prometheus: Prometheus) -> None:
    share = largest(prometheus, "shoal-staleness", "95 % are below")["numbers"][-1]
    oldest = largest(prometheus, "shoal-staleness", "Actors, the most stale first", "C")["numbers"][-1]
    assert 0 < share <= oldest


def test_a_newcomer_sees_which_actor_is_stale_and_why_the_learner_waits(
    run: MonitoredRun, prometheus: Prometheus
) -> None:
    stopped = [run.launcher.children()["actor-1"]]
    os.kill(stopped[0], signal.SIGSTOP)
    try:
        table = ("shoal-staleness", "Actors, the most stale first")
        for panel in (("shoal-overview", "The most stale actors"), table, (*table, "E")):  # E: silent
            comes_to_the_top(prometheus, {"actor": "actor-1"}, *panel)
        stopped.append(run.launcher.children()["actor-0"])
        os.kill(stopped[1], signal.SIGSTOP)
        comes_to_the_top(prometheus, {"reason": "batches"}, "shoal-overview", "What the learner waits for")
        comes_to_the_top(prometheus, {"reason": "sample_limiter"}, "shoal-overview", "Whom the replay holds back")
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
