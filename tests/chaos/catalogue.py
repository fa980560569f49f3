"""All scenarios, and the choice of some."""

from __future__ import annotations

from typing import List, Optional, Sequence

from services.common.errors import UserError
from tests.chaos import combinations, faults_disk, faults_limits, faults_network, faults_process, faults_security
from tests.chaos.scenario import Scenario


def all_scenarios(*, quick: bool = False) -> List[Scenario]:
    """Every scenario, kind by kind; `quick`: as small as they can be."""
    return [
        *faults_process.scenarios(quick=quick),
        *faults_network.scenarios(quick=quick),
        *faults_disk.scenarios(),
        *faults_limits.scenarios(),
        *faults_security.scenarios(),
        *combinations.scenarios(quick=quick),
    ]


def choose(scenarios: Sequence[Scenario], only: Optional[Sequence[str]], *, quick: bool) -> List[Scenario]:
    """Those that are named, or those of the quick choice, or all.

    Raises:
        UserError: a name is unknown.
    """
    if only:
        names = {scenario.name: scenario for scenario in scenarios}
        unknown = [name for name in only if name not in names]
        if unknown:
            raise UserError(f"there is no scenario {unknown[0]!r}; --list names them")
        return [names[name] for name in only]
    return [scenario for scenario in scenarios if scenario.quick or not quick]
