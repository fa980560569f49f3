"""The modules that run as processes, by the name of their command."""

from __future__ import annotations

SERVICES = {
    "replay": "services.replay",
    "learner": "services.learner",
    "actor": "services.actor",
    "evaluator": "services.actor.evaluator",
}
REPORT = "services.actor.evaluator.report"
