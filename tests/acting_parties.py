"""An actor on a thread, and a replay and a chief that can go away and come back."""

from __future__ import annotations

import threading
import time
from typing import Any, Callable, Dict, List, Optional

import grpc
import numpy as np
import pytest
import safetensors.numpy

from services.actor.actor import Actor
from services.agent.networks import initial_parameters
from services.common.chunk import Chunk
from services.common.codec import decode_chunk
from services.common.config.load import load
from services.common.lifecycle import Lifecycle
from services.common.rpc import Server
from services.replay.servicer import ReplayServicer
from services.replay.table import Table, TableSettings
from shoal.v1 import parameters_pb2_grpc, replay_pb2_grpc
from tests.fakes import RUN_ID, FakeChief, FakeLog

ADD_REPLAY = replay_pb2_grpc.add_ReplayServiceServicer_to_server
ADD_CHIEF = parameters_pb2_grpc.add_ParameterServiceServicer_to_server  # a fake, whose answers are messages
LANES, CHUNK_STEPS = 4, 5


def seeded_parameters() -> Dict[str, Any]:
    rng = np.random.default_rng(0)
    return {
        **initial_parameters("policy", (6, 8, 1), rng),
        **initial_parameters("critics", (7, 8, 1), rng, stack=2),
    }


class Replay(ReplayServicer):
    """The real one; keeps the chunks that it applied."""

    def __init__(self) -> None:
        settings = TableSettings(capacity=20_000, n_step=3, max_batch_size=64)
        super().__init__(
            run_id=RUN_ID,
            incarnation=1,
            make_table=lambda schema: Table(settings, schema, clock=time.monotonic),
            log=FakeLog(),
            fail=pytest.fail,
        )
        self.chunks: List[Chunk] = []
        self.knows_tokens = True
        self.num_refused = 0

    def Insert(self, request: Any, context: Any) -> Any:  # noqa: N802
        if not self.knows_tokens:
            self.num_refused += 1
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "this service does not know the caller's token")
        response = super().Insert(request, context)
        if response.status == 1 and request.HasField("chunk"):
            self.chunks.append(decode_chunk(request.chunk))
        return response

    def info(self) -> Any:
        assert self.table is not None
        assert self.table.check_valid() is None
        return self.table.info()


class Peers:
    """A replay and a chief, which can go away and come back at their addresses."""

    def __init__(self, free_address: Callable[[], str]) -> None:
        self.replay, self.chief, self.add_chief = Replay(), FakeChief(), ADD_CHIEF
        self.chief.version, self.chief.data = 1, safetensors.numpy.save(seeded_parameters())
        self.addresses = {"replay": free_address(), "chief": free_address()}
        self._servers: Dict[str, Server] = {}

    def come(self, *names: str) -> None:
        for name in names:
            server = Server(self.addresses[name], max_workers=8, option_name="test.address")
            server.add(*((ADD_REPLAY, self.replay) if name == "replay" else (self.add_chief, self.chief)))
            server.start()
            self._servers[name] = server

    def go(self, *names: str) -> None:
        for name in names:
            self._servers.pop(name).stop(0)


def flags_of(peers: Peers, **changes: Any) -> List[str]:
    values: Dict[str, Any] = {
        "run.name": RUN_ID,
        "env.factory": "tests.failing_envs:make_paced",
        "env.lanes": LANES,
        "td3.hidden_sizes": "[8]",
        "replay.addresses": peers.addresses["replay"],
        "learner.address": peers.addresses["chief"],
        "actor.index": 0,
        "actor.count": 1,
        "actor.chunk_steps": CHUNK_STEPS,
        "actor.buffer_chunks": 2,
        "actor.poll_period_s": 0.05,
        "actor.max_policy_age_s": 30,
        **changes,
    }
    return [f"--{key}={value}" for key, value in values.items() if value is not None]


class Acting:
    """An actor on a thread, as its `__main__` runs it."""

    def __init__(self, peers: Peers, **changes: Any) -> None:
        self.life, self.log = Lifecycle(), FakeLog()
        self.actor = Actor(load(None, flags_of(peers, **changes)).config, self.life, self.log)
        self.failure: Optional[BaseException] = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            try:
                self.actor.run()
            finally:
                self.actor.stop()
        except BaseException as error:  # noqa: BLE001 (the test's thread must not swallow it)
            self.failure = error

    def metric(self, name: str) -> Any:
        return self.actor._metrics.registry.get_sample_value(f"shoal_actor_{name}", {"run": RUN_ID})

    def produced(self) -> int:
        return int(self.metric("produced_steps_total"))

    def finish(self) -> None:
        self.life.stop("the test is over")
        self._thread.join(15)
        assert not self._thread.is_alive()
        if self.failure is not None:
            raise self.failure
