"""Networks that are cut, slow, or half open; messages that come twice and in another order."""

from __future__ import annotations

import socket
import time
from functools import partial
from typing import List, Tuple

from tests.chaos.isolation import NAMESPACE
from tests.chaos.scenario import Scenario
from tests.chaos.system import CABLES
from tests.chaos.trial import ACTOR_LIMIT_S, Trial

KIND = "network"
CUT_S = 12.0  # longer than the deadline of any call
SLOW_KBIT, SLOW_S = 2000, 15.0
CRAWL_KBIT, CRAWL_LIMIT_S = 200, 60.0  # a set of parameters alone takes seconds
RECONNECT_LIMIT_S = 20.0
NUM_RESENDS = 40
NUM_HALF_OPEN = 60  # as many as the replay has threads
PAIRS = (
    ("replay", "learner"), ("replay", "actor-0"), ("learner", "actor-0"), ("learner", "evaluator"),
    ("replay", "helper-0"), ("learner", "helper-0"),
)  # fmt: skip


def cut(trial: Trial, pair: Tuple[str, str], seconds: float = CUT_S) -> None:
    """What one sends to the other arrives nowhere, and no error tells either."""
    trial.system.cables.cut(*pair)
    trial.hold(seconds)
    updates, inserted_s = trial.observer.watch.updates, time.monotonic()
    trial.system.cables.mend(*pair)
    _talks_again(trial, updates, inserted_s)


def isolate(trial: Trial, name: str, seconds: float = CUT_S) -> None:
    """All cables of a service but the harness's own."""
    peers = trial.system.cables.pairs_of(name)
    for peer in peers:
        trial.system.cables.cut(name, peer)
    trial.hold(seconds)
    updates, inserted_s = trial.observer.watch.updates, time.monotonic()
    for peer in peers:
        trial.system.cables.mend(name, peer)
    _talks_again(trial, updates, inserted_s)


def slow(trial: Trial, kbit: int = SLOW_KBIT, seconds: float = SLOW_S, limit_s: float = ACTOR_LIMIT_S) -> None:
    """Cables of an actor and of the learner carry little; a new actor has to come up over them."""
    pairs = [("replay", "actor-0"), ("learner", "actor-0"), ("replay", "learner")]
    for pair in pairs:
        trial.system.cables.slow(*pair, kbit)
    trial.kill("actor-0")
    since_s = trial.system.start("actor-0")
    trial.measure("actor-0 at work", since_s, partial(trial.is_at_work, "actor-0"), limit_s)
    trial.hold(seconds)
    updates, inserted_s = trial.observer.watch.updates, time.monotonic()
    for pair in pairs:
        trial.system.cables.mend(*pair)
    _talks_again(trial, updates, inserted_s)


def _talks_again(trial: Trial, updates: int, since_s: float) -> None:
    """Measured from the end of the fault."""
    trial.measure("training again", since_s, lambda: trial.observer.watch.updates > updates + 20, RECONNECT_LIMIT_S)
    trial.measure(
        "actor-0 acknowledged", since_s, lambda: trial.was_acknowledged("actor-0", since_s), RECONNECT_LIMIT_S
    )


def half_open(trial: Trial) -> None:
    """A machine vanishes with its actor: its connections stay open at the other ends, and nobody ever closes them."""
    for server in ("replay", "learner"):
        trial.system.cables.cut(server, "actor-0")
    trial.kill("actor-0")
    trial.system.move_to_another_machine("actor-0")
    trial.start_and_measure("actor-0")
    trial.hold(5.0)


def idle_connections(trial: Trial) -> None:
    """Many connect to replay and learner, and say nothing; a new actor must get through all the same."""
    sockets = []
    try:
        for address in (trial.system.target().addresses.replay, trial.system.target().addresses.learner):
            host, _, port = address.rpartition(":")
            for number in range(NUM_HALF_OPEN):
                sockets.append(socket.create_connection((host, int(port)), 5))
                if number % 2:
                    sockets[-1].sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        trial.kill_and_start("actor-0")
        trial.hold(3.0)
    finally:
        for each in sockets:
            each.close()


def resends(trial: Trial) -> None:
    """Each chunk may come again at once, later, beside itself, or ahead of its turn."""
    trial.until(lambda: trial.count_resends() >= NUM_RESENDS, f"{NUM_RESENDS} chunks that are sent once more")
    trial.kill_and_start("replay")
    trial.until(lambda: trial.count_resends() >= 2 * NUM_RESENDS, "as many after the kill")
    trial.note(f"{trial.count_resends()} chunks sent once more")


def scenarios() -> List[Scenario]:
    """All of this kind."""
    made = [
        Scenario(
            f"cut_{one}_{other}", KIND, f"no packet between {one} and {other} for {CUT_S:g} s",
            partial(cut, pair=(one, other)), layout=CABLES, with_helper="helper-0" in (one, other),
            needs=(NAMESPACE,), quick=(one, other) == ("replay", "actor-0"),
        )
        for one, other in PAIRS
    ]  # fmt: skip
    made += [
        Scenario(
            f"isolate_{name}", KIND, f"the {name} reaches nobody for {CUT_S:g} s", partial(isolate, name=name),
            layout=CABLES, needs=(NAMESPACE,),
        )
        for name in ("replay", "learner")
    ]  # fmt: skip
    return [
        *made,
        Scenario(
            "slow_link", KIND, f"links of {SLOW_KBIT / 1000:g} Mbit/s, over which an actor is replaced", slow,
            layout=CABLES, needs=(NAMESPACE,),
        ),
        Scenario(
            "crawling_link", KIND, f"links of {CRAWL_KBIT} kbit/s, over which an actor is replaced",
            partial(slow, kbit=CRAWL_KBIT, limit_s=CRAWL_LIMIT_S), layout=CABLES, needs=(NAMESPACE,),
        ),
        Scenario(
            "half_open", KIND, "an actor's machine vanishes, and its connections stay open", half_open,
            layout=CABLES, needs=(NAMESPACE,),
        ),
        Scenario(
            "idle_connections", KIND, f"{NUM_HALF_OPEN} connections each that say nothing", idle_connections,
            quick=True,
        ),
        Scenario(
            "resends", KIND, "chunks come twice, late, together and ahead of their turn; the replay is killed too",
            resends, env_kwargs="resends = 0.15", quick=True,
        ),
    ]  # fmt: skip
