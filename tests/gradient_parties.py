"""Who takes part in a step over real connections: a chief that serves gradients, and a helper's calls one by one."""

from __future__ import annotations

import contextlib
import threading
from typing import Any, Dict, Iterator, List

import numpy as np

from services.agent.algorithm import Contribution, Update
from services.common.batch import Batch
from services.common.config.gradients import GradientsSection
from services.common.metrics import Metrics
from services.common.peer import Peer
from services.common.rpc import Server, call_once, connect
from services.learner.collaboration import Collaboration
from services.learner.gradients import GradientEncoder
from shoal.v1 import experience_pb2, gradients_pb2, gradients_pb2_grpc
from tests.fakes import RUN_ID, FakeLog

DIGEST = "0123456789abcdef"


SHAPES = {"q.0.weight": (40, 30), "q.0.bias": (30,)}


BATCH: Any = [None] * 8  # eight items; what they are matters to nobody here


class Learner:
    """Its parameters are the sum of what was applied; its own gradient is zero."""

    def __init__(self) -> None:
        self.updates = 0
        self.applied: List[Dict[str, Any]] = []

    def state(self) -> Dict[str, Any]:
        return {"updates": np.zeros(()), **{f"online.{name}": np.zeros(shape) for name, shape in SHAPES.items()}}

    def update(self, batch: Batch, weights: Any) -> Update:
        self.updates += 1
        return Update(np.zeros(len(batch), np.float32))

    def compute(self, batch: Batch, weights: Any) -> Contribution:
        return Contribution(
            {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}, np.zeros(len(batch), np.float32)
        )

    def apply(self, gradients: Any, rate_scale: float = 1.0) -> Dict[str, float]:
        self.updates += 1
        self.applied.append({name: gradient.copy() for name, gradient in gradients.items()})
        return {}


class Chief:
    """One life of a chief that serves gradients; `steps` of it are taken on a thread of the test's."""

    def __init__(
        self, *, address: str = "127.0.0.1:0", incarnation: int = 11, first: int = 100, **changes: Any
    ) -> None:
        self.learner: Any = Learner()
        self.incarnation = incarnation
        self.log = FakeLog()
        self.metrics = Metrics("learner", RUN_ID)
        self._version = first
        settings = GradientsSection(**{"lease_s": 30.0, "max_helpers": 3, **changes})
        self.collaboration = Collaboration(
            settings, num_planned=2, run_id=RUN_ID, incarnation=incarnation, metrics=self.metrics, log=self.log
        )
        self.exchange = self.collaboration._exchange
        self.server = Server(address, max_workers=2 + self.collaboration.num_threads, option_name="test")
        self.server.add(gradients_pb2_grpc.add_GradientServiceServicer_to_server, self.collaboration.servicer)
        self.server.start()
        self.stopping = threading.Event()
        self.updater: Any = None

    def begin(self) -> None:
        self.updater = self.collaboration.begin(self.learner, DIGEST, self._publish, self.stopping)

    def step(self) -> None:
        self.updater.update(BATCH, np.ones(8, np.float32))

    def _publish(self) -> int:
        self._version += 1
        return self._version

    def count(self, name: str) -> float:
        value = self.metrics.registry.get_sample_value(f"shoal_learner_gradient_{name}", {"run": RUN_ID})
        assert value is not None, name
        return value

    def stop(self) -> None:
        self.stopping.set()
        self.collaboration.end("the test is over")
        self.server.stop(0)


class Pusher:
    """A helper's calls, one by one."""

    def __init__(self, chief: Chief, name: str = "helper-0", incarnation: int = 1, digest: str = DIGEST) -> None:
        self.peer = Peer(RUN_ID, experience_pb2.ROLE_HELPER, name, incarnation).to_proto(digest)
        self.channel = connect(chief.server.address)
        self.stub = gradients_pb2_grpc.GradientServiceStub(self.channel)
        self._chief = chief

    def join(self) -> Any:
        return call_once(self.stub.Join, gradients_pb2.JoinRequest(peer=self.peer), timeout_s=10)

    def request(self, sequence: int = 1, value: float = 1.0, **changes: Any) -> Any:
        encoder = GradientEncoder("int8", 1024, False, "zlib")
        encoded = encoder.encode({name: np.full(shape, value, np.float32) for name, shape in SHAPES.items()})
        fields: Dict[str, Any] = {
            "peer": self.peer,
            "sequence": sequence,
            "base_version": self._chief.exchange.newest_version,
            "chief_incarnation": self._chief.incarnation,
            "num_samples": 8,
            "segments": encoded.segments,
            "crc32c": encoded.crc32c,
            **changes,
        }
        return gradients_pb2.PushRequest(**fields)

    def push(self, request: Any, timeout_s: float = 20.0) -> Any:
        return call_once(self.stub.Push, request, timeout_s=timeout_s)

    def pending(self) -> bool:
        helper = self._chief.exchange._helpers.find(self.peer.name)
        return helper is not None and helper.is_pending and helper.num_waiting > 0

    def close(self) -> None:
        self.channel.close()


def open_base(chief: Chief, *pushers: Pusher) -> None:
    """Let helpers take part, and open a base that they count in, with a step that they abstain from."""
    for pusher in pushers:
        pusher.join()
    chief.exchange.open(chief._publish(), chief.learner.updates)


@contextlib.contextmanager
def serving_chief(**changes: Any) -> Iterator[Chief]:
    """A chief whose learner has begun."""
    made = Chief(**changes)
    made.begin()
    try:
        yield made
    finally:
        made.stop()
