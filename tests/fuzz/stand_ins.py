"""Services without a network: a context that notes how a call was ended, and servicers to call with it."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, NoReturn, Optional

import grpc
import numpy as np
import pytest

from services.common.config.gradients import GradientsSection
from services.common.message_bounds import check_bounds
from services.common.metrics import Metrics
from services.common.request_gate import Malformed, careful
from services.common.run_folder import RunFolder
from services.common.wire import WireError
from services.learner.collaboration import Collaboration
from services.learner.parameter_service import ParameterServicer, Status
from services.learner.parameter_store import ACT, ParameterStore
from services.learner.readers import Readers
from services.learner.version_reservation import VersionReservation
from services.replay.servicer import ReplayServicer
from services.replay.table import Table, TableSettings
from tests.fakes import RUN_ID, FakeClock, FakeLog

SHAPES = {"q.0.weight": (40, 30), "q.0.bias": (30,)}
DIGEST = "0123456789abcdef"
CHIEF_INCARNATION = 11
REFUSALS = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.UNAVAILABLE,
)


class Aborted(Exception):
    """How gRPC ends a handler that refuses."""


class Context:
    """What a handler is given; it has no time to wait."""

    def __init__(self) -> None:
        self.code: Optional[grpc.StatusCode] = None
        self.details = ""

    def abort(self, code: grpc.StatusCode, details: str) -> NoReturn:
        assert code in REFUSALS, code
        assert details, "a refusal without a sentence"
        assert len(details) < 4096, "a sentence that does not fit into the trailer of a call"
        self.code, self.details = code, details
        raise Aborted

    def time_remaining(self) -> float:
        return 0.0

    def is_active(self) -> bool:
        return True

    def add_callback(self, callback: Callable[[], None]) -> bool:
        return True


@dataclass
class Served:
    """A servicer whose methods are called by their requests' bytes, as a server would."""

    servicer: Any

    def call(self, method: str, request_type: Any, data: bytes) -> Any:
        """The response, or None where the call was refused."""
        with contextlib.suppress(WireError):  # inputs are too small for the gate to look at
            check_bounds(data, request_type.DESCRIPTOR, uncounted_bytes=0)
        request = careful(method, request_type.FromString)(data)
        if isinstance(request, Malformed):
            assert request.sentence
            return None
        try:
            return getattr(self.servicer, method)(request, Context())
        except Aborted:
            return None


class Failed(Exception):
    """A servicer would have ended its process."""


def replay(**settings: Any) -> Served:
    """A replay whose table may be made by any caller; nobody waits."""
    values = {"capacity": 256, "n_step": 2, "max_batch_size": 16, "max_num_batches": 4, "max_peers": 8, **settings}

    def fail(error: Exception) -> None:
        raise Failed(str(error))

    servicer = ReplayServicer(
        run_id=RUN_ID,
        incarnation=99,
        make_table=lambda schema: Table(TableSettings(**values), schema, clock=FakeClock()),
        log=FakeLog(),
        fail=fail,
    )
    servicer.interrupt("nobody waits here")
    return Served(servicer)


def chief(folder: Path) -> Served:
    """A chief with one published set."""
    store = ParameterStore(VersionReservation(folder / "versions.json"))
    store.publish({ACT: {"policy.bias": np.arange(1000, dtype=np.float32)}}, 5)
    servicer = ParameterServicer(
        fail=pytest.fail,
        run_id=RUN_ID,
        incarnation=CHIEF_INCARNATION,
        store=store,
        readers=Readers(FakeClock(), num_actors=2, max_peers=8),
        folder=RunFolder(folder),
        status=Status(),
        num_actors=2,
        max_updates=100,
        waiting_for=lambda: "",
        log=FakeLog(),
    )
    return Served(servicer)


class GradientChief:
    """The gradients' end of a chief, open for version 1."""

    def __init__(self) -> None:
        self._collaboration = Collaboration(
            GradientsSection(lease_s=30.0, max_helpers=3),
            num_planned=2,
            run_id=RUN_ID,
            incarnation=CHIEF_INCARNATION,
            metrics=Metrics("learner", RUN_ID),
            log=FakeLog(),
        )
        self._collaboration.servicer.expect(SHAPES, DIGEST)
        self.exchange = self._collaboration._exchange
        self.exchange.open(1, 1)
        self.served = Served(self._collaboration.servicer)
