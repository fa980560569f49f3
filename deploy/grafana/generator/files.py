"""The files that Grafana reads, by name."""

from __future__ import annotations

from pathlib import Path
from typing import Dict

from deploy.grafana.generator import actors, learner, overview, replay, staleness
from deploy.grafana.generator.render import rendered

FOLDER = Path(__file__).resolve().parents[1] / "dashboards"
DASHBOARDS = {
    "overview.json": overview.DASHBOARD,
    "staleness.json": staleness.DASHBOARD,
    "replay.json": replay.DASHBOARD,
    "learner.json": learner.DASHBOARD,
    "actors.json": actors.DASHBOARD,
}


def made() -> Dict[str, str]:
    """File name -> text."""
    return {name: rendered(dashboard) for name, dashboard in DASHBOARDS.items()}
