"""An actor that claims TD errors it did not see, among honest ones, with real services: it is named, and it alone."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Optional

import numpy as np
import pytest

from services.actor.actor import Actor
from services.common.chunk import Chunk
from services.common.config.load import load
from services.common.config.run import RunConfig
from services.common.lifecycle import Lifecycle
from services.replay.__main__ import table_settings
from services.replay.registration import add_to_server
from services.replay.servicer import ReplayServicer
from services.replay.table import Table
from tests.conftest import Serve
from tests.fakes import RUN_ID, FakeLog


class LyingActor(Actor):
    """Acts as others do, and says of each step that its value was a thousand more than it was."""

    def send(self, chunk: Chunk) -> None:
        chunk.q_taken = chunk.q_taken + np.float32(1000.0)
        super().send(chunk)


def _config(folder: Path, replay: str, learner: str, name: str = "") -> RunConfig:
    values: Dict[str, Any] = {
        "run.name": RUN_ID,
        "run.folder": str(folder),
        "env.factory": "tests.fakes:make_env",
        "env.lanes": 4,
        "td3.hidden_sizes": "[8]",
        "replay.capacity": 20_000,
        "replay.min_size_to_sample": 64,
        "replay.samples_per_insert": 4.0,
        "replay.addresses": replay,
        "learner.address": learner,
        "learner.metrics_port": 0,
        "learner.batch_size": 32,
        "learner.max_updates": 1500,
        "learner.publish_period": 10,
        "learner.claim_check_share": 1.0,
        "actor.count": 3,
        "actor.name": name,
        "actor.chunk_steps": 4,
        "actor.poll_period_s": 0.1,
    }
    return load(None, [f"--{key}={value}" for key, value in values.items() if value != ""]).config


@pytest.mark.timeout(300)
@pytest.mark.parametrize("liar", ["actor-1", None], ids=["one lies", "all are honest"])
def test_who_lies_is_named_and_who_does_not_is_not(
    liar: Optional[str], tmp_path: Path, serve: Serve, free_address: Callable[[], str], log: FakeLog
) -> None:
    pytest.importorskip("torch")
    from services.learner.chief import Chief

    address = free_address()
    settings = table_settings(_config(tmp_path, "127.0.0.1:1", address), 20_000)
    servicer = ReplayServicer(
        run_id=RUN_ID,
        incarnation=1,
        make_table=lambda schema: Table(settings, schema, clock=time.monotonic),
        log=FakeLog(),
        fail=pytest.fail,
    )
    replay = serve(add_to_server, servicer)
    lives: List[Lifecycle] = []
    threads: List[threading.Thread] = []
    for name in ("actor-0", "actor-1", "actor-2"):
        lives.append(Lifecycle())
        make = LyingActor if name == liar else Actor
        actor = make(_config(tmp_path, replay, address, name), lives[-1], FakeLog())
        threads.append(threading.Thread(target=_live, args=(actor,), name=name))
        threads[-1].start()
    try:
        with Chief(_config(tmp_path, replay, address), Lifecycle(), log) as chief:
            chief.train()
            registry = chief._metrics.registry
            factor = {
                name: registry.get_sample_value("shoal_learner_actor_claim_divergence", {"run": RUN_ID, "actor": name})
                for name in ("actor-0", "actor-1", "actor-2")
            }
    finally:
        for life in lives:
            life.stop("the test is over")
        for thread in threads:
            thread.join(20)
    assert not any(thread.is_alive() for thread in threads)
    named = [values["actor"] for _, event, values in log.lines if "first TD errors are not those" in event]
    assert named == ([liar] if liar else []), factor
    assert all(value is not None for value in factor.values())
    for name, value in factor.items():
        assert value is not None
        assert (value > 16) == (name == liar), factor


def _live(actor: Actor) -> None:
    try:
        actor.run()
    finally:
        actor.stop()
