"""The committed dashboards as Grafana would read them: panels, targets, variables put in, legends."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Set

from tests.e2e.prometheus import Prometheus

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "grafana" / "dashboards"
RATE_INTERVAL_S = 15
RANGE_S = 300
_LABEL_VALUES = re.compile(r"^label_values\((?P<selector>.*), (?P<label>\w+)\)$")
_LEGEND_LABEL = re.compile(r"{{\s*(\w+)\s*}}")


@dataclass(frozen=True)
class Target:
    """One query of one panel."""

    dashboard: str  # uid
    panel: str  # its title
    kind: str  # of the panel
    ref_id: str
    expr: str
    legend: str
    is_instant: bool

    @property
    def legend_labels(self) -> Set[str]:
        return set(_LEGEND_LABEL.findall(self.legend))

    def named(self, labels: Mapping[str, str]) -> str:
        """The name of a series by its legend; a label that it lacks is left empty, as Grafana does."""
        return _LEGEND_LABEL.sub(lambda label: labels.get(label.group(1), ""), self.legend)

    def __str__(self) -> str:
        return f"{self.dashboard}: {self.panel}: {self.ref_id}"


def dashboards() -> List[Dict[str, Any]]:
    """All of them, by file name."""
    return [json.loads(file.read_text(encoding="utf-8")) for file in sorted(FOLDER.glob("*.json"))]


def panels(dashboard: Mapping[str, Any]) -> Iterator[Dict[str, Any]]:
    """The panels of a dashboard, rows taken apart."""
    for panel in dashboard["panels"]:
        yield from panel.get("panels") or []
        if panel["type"] != "row":
            yield panel


def targets(dashboard: Mapping[str, Any]) -> Iterator[Target]:
    for panel in panels(dashboard):
        for target in panel.get("targets") or []:
            yield Target(
                dashboard["uid"],
                panel["title"],
                panel["type"],
                target["refId"],
                target["expr"],
                target.get("legendFormat", ""),
                bool(target.get("instant")),
            )


def choices(dashboard: Mapping[str, Any], prometheus: Prometheus) -> Dict[str, List[str]]:
    """What each variable offers, in order; a variable may ask with those before it."""
    found: Dict[str, List[str]] = {}
    for variable in dashboard["templating"]["list"]:
        if variable["type"] != "query":
            continue
        query = _LABEL_VALUES.match(variable["query"])
        assert query, variable["query"]
        first = {name: values[0] for name, values in found.items()}
        series = prometheus.labels(substituted(query["selector"], first))
        values = sorted({labels[query["label"]] for labels in series if query["label"] in labels})
        assert values, f"nothing to choose for ${variable['name']} of {dashboard['uid']}"
        found[variable["name"]] = [variable["allValue"], *values] if variable.get("includeAll") else values
    return found


def substituted(expr: str, values: Mapping[str, str]) -> str:
    """The expression with Grafana's own variables and these put in."""
    known = {"__rate_interval": f"{RATE_INTERVAL_S}s", "__range": f"{RANGE_S}s", **values}
    for name in sorted(known, key=len, reverse=True):
        expr = expr.replace(f"${name}", known[name])
    assert not re.search(r"\$[a-z_]", expr), f"a variable is left in {expr}"
    return expr
