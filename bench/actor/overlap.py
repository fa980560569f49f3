"""One lane group beside two: actors of one environment take turns on one replay."""

from __future__ import annotations

from typing import Any, Dict, List

from bench.actor.run import Run

SETTLE_S = 0.5


def measure(
    factory: str, lanes: int, groups: List[int], rounds: int, round_s: float, wait_s: float = 0.0, **flags: Any
) -> Dict[str, Any]:
    """Steps a second, of all lanes, by round and number of lane groups.

    Args:
        factory: of the environment.
        lanes: of the actor.
        groups: numbers of lane groups that take turns.
        rounds: of each.
        round_s: measured in each round.
        wait_s: of `bench.actor.simulators:make`: what a step waits, for all lanes at once.
        flags: further keys of the run file.
    """
    rates: Dict[str, List[float]] = {str(number): [] for number in groups}
    is_arm = "arm" in factory
    with Run(capacity=500_000, action_size=3 if is_arm else 9) as run:
        for number in range(rounds):
            for count in groups if number % 2 else groups[::-1]:
                name = f"actor-{number}-{count}"
                kwargs = {} if is_arm else {"env__kwargs": f"{{wait_s = {wait_s}}}"}
                actor = run.actor(
                    name, env__factory=factory, env__lanes=lanes, actor__lane_groups=count, **kwargs, **flags
                )
                try:
                    run.wait_for_steps(0, name)
                    run.rate(SETTLE_S, name)
                    rates[str(count)].append(run.rate(round_s, name))
                finally:
                    actor.stop()
    return {"rates": rates}
