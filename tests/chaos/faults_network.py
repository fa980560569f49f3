"""Networks that are cut, slow, or half open; messages that come twice and in another order."""

from __future__ import annotations

import socket
from functools import partial
from typing import List, Sequence, Tuple

from tests.chaos.isolation import NAMESPACE
from tests.chaos.scenario import Scenario
from tests.chaos.system import CABLES
from tests.chaos.trial import ACTOR_LIMIT_S, OTHER_LIMIT_S, Trial

Pair = Tuple[str, str]

KIND = "network"
CUT_S = 12.0  # longer than the deadline of any call
SLOW_KBIT, SLOW_S, QUICK_SLOW_S = 2000, 15.0, 4.0
CRAWL_KBIT, CRAWL_LIMIT_S = 200, 60.0  # a set of parameters alone takes seconds
NUM_RESENDS, RESENT = 40, 0.15
NUM_HALF_OPEN = 60  # as many as the replay has threads
PAIRS: Sequence[Pair] = (
    ("replay", "learner"), ("replay", "actor-0"), ("learner", "actor-0"), ("learner", "evaluator"),
    ("replay", "helper-0"), ("learner", "helper-0"),
)  # fmt: skip
ACTORS_PAIRS: Sequence[Pair] = (("replay", "actor-0"), ("learner", "actor-0"), ("replay", "learner"))
OTHERS_PAIRS: Sequence[Pair] = (("learner", "evaluator"), ("replay", "helper-0"), ("learner", "helper-0"))


def cut(trial: Trial, pair: Pair, seconds: float = CUT_S) -> None:
    """What one sends to the other arrives nowhere, and no error tells either."""
    trial.system.cables.cut(*pair)
    trial.hold(seconds)
    _mend(trial, [pair])


def isolate(trial: Trial, name: str, seconds: float = CUT_S) -> None:
    """All cables of a service but the harness's own."""
    pairs = [(name, peer) for peer in trial.system.cables.pairs_of(name)]
    for pair in pairs:
        trial.system.cables.cut(*pair)
    trial.hold(seconds)
    _mend(trial, pairs)


def slow(
    trial: Trial,
    pairs: Sequence[Pair],
    replaced: Sequence[str],
    *,
    kbit: int = SLOW_KBIT,
    seconds: float = SLOW_S,
    limit_s: float = ACTOR_LIMIT_S,
) -> None:
    """Cables that carry little; new lives of the services that are named have to come up over them."""
    for pair in pairs:
        trial.system.cables.slow(*pair, kbit)
    for name in replaced:
        trial.kill(name)
        since_s = trial.system.start(name)
        trial.measure(f"{name} at work", since_s, partial(trial.is_at_work, name), limit_s)
    trial.hold(seconds)
    _mend(trial, pairs)


def _mend(trial: Trial, pairs: Sequence[Pair]) -> None:
    """All is as before; who talks over these cables does its work again, measured from now, and so does everybody."""
    mark = trial.mark()
    for pair in pairs:
        trial.system.cables.mend(*pair)
    trial.works_again(mark, sorted({name for pair in pairs for name in pair}))


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
    count = trial.work.count_resends
    trial.until(lambda: count() >= NUM_RESENDS, f"{NUM_RESENDS} chunks that are sent once more")
    trial.kill_and_start("replay")
    trial.until(lambda: count() >= 2 * NUM_RESENDS, "as many after the kill")
    trial.note(f"{count()} chunks sent once more")


def resent_gradients(trial: Trial) -> None:
    """Each gradient may come again beside itself, later, or behind a later one."""

    def count() -> int:
        return sum(push.resent for push in trial.work.pushes())

    trial.until(lambda: count() >= NUM_RESENDS, f"{NUM_RESENDS} gradients that are sent once more")
    for number, name in enumerate(("helper-0", "learner"), 2):
        trial.kill_and_start(name)
        trial.until(partial(lambda wanted: count() >= wanted, number * NUM_RESENDS), f"as many after {name} was killed")
    trial.note(f"{count()} gradients sent once more")


def scenarios(*, quick: bool) -> List[Scenario]:
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
            "slow_link", KIND, f"links of {SLOW_KBIT / 1000:g} Mbit/s, over which an actor is replaced",
            partial(slow, pairs=ACTORS_PAIRS, replaced=("actor-0",), seconds=QUICK_SLOW_S if quick else SLOW_S),
            layout=CABLES, needs=(NAMESPACE,), quick=True,
        ),
        Scenario(
            "slow_link_of_others", KIND,
            f"links of {SLOW_KBIT / 1000:g} Mbit/s, over which evaluator and helper are replaced",
            partial(slow, pairs=OTHERS_PAIRS, replaced=("evaluator", "helper-0"), limit_s=OTHER_LIMIT_S),
            layout=CABLES, with_helper=True, needs=(NAMESPACE,),
        ),
        Scenario(
            "crawling_link", KIND, f"links of {CRAWL_KBIT} kbit/s, over which an actor is replaced",
            partial(slow, pairs=ACTORS_PAIRS, replaced=("actor-0",), kbit=CRAWL_KBIT, limit_s=CRAWL_LIMIT_S),
            layout=CABLES, needs=(NAMESPACE,),
        ),
        Scenario(
            "half_open", KIND, "an actor's machine vanishes, and its connections stay open", half_open,
            layout=CABLES, needs=(NAMESPACE,), quick=True,
        ),
        Scenario(
            "idle_connections", KIND, f"{NUM_HALF_OPEN} connections each that say nothing", idle_connections,
            quick=True,
        ),
        Scenario(
            "resends", KIND, "chunks come twice, late, together and ahead of their turn; the replay is killed too",
            resends, resends=RESENT, quick=True,
        ),
        Scenario(
            "resent_gradients", KIND,
            "gradients come twice, late, and behind later ones; helper and learner are killed", resent_gradients,
            resends=RESENT, with_helper=True,
        ),
    ]  # fmt: skip
