"""The alerts against what they rest on: metrics that exist, a runbook entry each, and a test of promtool each."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Dict, List, Set, Tuple

import pytest

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).resolve().parents[2]
PROMETHEUS = ROOT / "deploy" / "prometheus"
OPERATIONS = ROOT / "docs" / "operations.md"
METRICS = ROOT / "docs" / "metrics.md"
OF_PROMETHEUS = {"up"}
_NAME = re.compile(r"(?<![\w:{\"])((?:shoal|process)[a-z0-9_:]+|up)\b(?!\s*\()")
_MINUTES = {"s": 1 / 60, "m": 1, "h": 60, "d": 1440}


def read(name: str) -> Any:
    return yaml.safe_load((PROMETHEUS / name).read_text(encoding="utf-8"))


def rules() -> List[Dict[str, Any]]:
    return [rule for group in read("alerts.yml")["groups"] for rule in group["rules"]]


def alerts() -> List[Dict[str, Any]]:
    return [rule for rule in rules() if "alert" in rule]


def names_in(expression: str) -> Set[str]:
    """The metrics that an expression reads; labels and their values are none."""
    bare = re.sub(r"\{[^}]*\}", "", re.sub(r'"[^"]*"', "", expression))
    return set(_NAME.findall(bare))


def minutes(duration: str) -> float:
    return sum(int(count) * _MINUTES[unit] for count, unit in re.findall(r"(\d+)([smhd])", duration))


def runbook_headings() -> List[str]:
    return re.findall(r"^### (Shoal\w+)$", OPERATIONS.read_text(encoding="utf-8"), re.MULTILINE)


each_alert = pytest.mark.parametrize("alert", alerts(), ids=lambda alert: alert["alert"])


def test_names_are_told_from_labels_functions_and_values() -> None:
    found = names_in(
        'sum by (run) (rate(shoal_a_total{run="shoal_b", where=~"up"}[5m])) > on (run) shoal:c:d unless up'
    )
    assert found == {"shoal_a_total", "shoal:c:d", "up"}


def test_rules_read_documented_metrics_alone() -> None:
    page = METRICS.read_text(encoding="utf-8")
    documented = set(re.findall(r"`((?:shoal|process)_[a-z0-9_]+)", page))
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    unknown = {}
    for rule in rules():
        names = names_in(rule["expr"])
        assert names, rule
        bases = {name: {name, re.sub(r"_(bucket|sum|count)$", "", name)} for name in names}
        lacking = sorted(name for name in names if not bases[name] & (documented | recorded | OF_PROMETHEUS))
        if lacking:
            unknown[rule.get("alert") or rule["record"]] = lacking
    assert not unknown


def test_each_alert_has_a_name_of_its_own() -> None:
    names = [alert["alert"] for alert in alerts()]
    assert len(names) == len(set(names))


@each_alert
def test_an_alert_says_what_it_is_and_where_to_read_on(alert: Dict[str, Any]) -> None:
    assert alert["labels"]["severity"] in {"critical", "warning", "info"}
    assert set(alert["annotations"]) == {"summary", "runbook_url"}
    assert alert["annotations"]["runbook_url"] == f"docs/operations.md#{alert['alert'].lower()}"
    assert "{{ $labels." in alert["annotations"]["summary"]


def test_alerts_and_runbook_entries_are_the_same() -> None:
    assert sorted(runbook_headings()) == sorted(alert["alert"] for alert in alerts())


@each_alert
def test_a_runbook_entry_says_what_it_means_how_to_look_and_what_to_do(alert: Dict[str, Any]) -> None:
    text = OPERATIONS.read_text(encoding="utf-8")
    entry = text.partition(f"\n### {alert['alert']}\n")[2].partition("\n###")[0].partition("\n## ")[0]
    for part in ("**Means**", "**Users see**", "**Look**", "**Do**"):
        assert part in entry, part


@each_alert
def test_promtool_sees_an_alert_healthy_then_firing_then_resolved(alert: Dict[str, Any]) -> None:
    found = False
    for test in read("alerts_test.yml")["tests"]:
        checks: List[Tuple[float, bool]] = sorted(
            (minutes(check["eval_time"]), bool(check.get("exp_alerts")))
            for check in test["alert_rule_test"]
            if check["alertname"] == alert["alert"]
        )
        found = found or [fires for _time, fires in checks] == [False, True, False]
    assert found


def test_prometheus_reads_the_alerts_and_alertmanager_knows_them() -> None:
    assert read("prometheus.yml")["rule_files"] == ["alerts.yml"]
    named = set(re.findall(r"Shoal[A-Z]\w+", (PROMETHEUS / "alertmanager.example.yml").read_text(encoding="utf-8")))
    assert len(named) > 5
    assert named <= {alert["alert"] for alert in alerts()}


def test_the_runbook_names_documented_metrics_alone() -> None:
    documented = set(re.findall(r"`((?:shoal|process)_[a-z0-9_]+)", METRICS.read_text(encoding="utf-8")))
    named = set(re.findall(r"`((?:shoal|process)_[a-z0-9_]+)`", OPERATIONS.read_text(encoding="utf-8")))
    assert len(named) > 20
    assert named <= documented
