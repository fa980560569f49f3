"""A real replay that keeps what it was sent, and what the sender's tests have in common."""

from __future__ import annotations

import time
from typing import Any, List, Optional

import grpc
import pytest

from services.actor.chunk_sender import ChunkSender
from services.common.lifecycle import Lifecycle
from services.replay.servicer import ReplayServicer
from services.replay.table import Table, TableSettings
from shoal.v1 import replay_pb2_grpc
from tests.conftest import Eventually
from tests.fakes import RUN_ID, FakeLog, make_chunk

ADD = replay_pb2_grpc.add_ReplayServiceServicer_to_server


STEPS = 8  # of a chunk: 4 of 2 lanes


class Replay(ReplayServicer):
    """The real one; keeps the inserts that it got, and loses as many of its first answers as it is told."""

    def __init__(self, incarnation: int = 1, **settings: Any) -> None:
        whole = TableSettings(**{"capacity": 1024, "n_step": 1, "max_batch_size": 64, **settings})
        super().__init__(
            run_id=RUN_ID,
            incarnation=incarnation,
            make_table=lambda schema: Table(whole, schema, clock=time.monotonic),
            log=FakeLog(),
            fail=lambda error: pytest.fail(str(error)),
        )
        self.requests: List[Any] = []
        self.statuses: List[int] = []
        self.answers_to_lose = 0
        self.refusal: Optional[grpc.StatusCode] = None  # of every Insert
        self.refused = 0

    def Insert(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        if self.refusal:
            self.refused += 1
            context.abort(self.refusal, "said so")
        response = super().Insert(request, context)
        self.requests.append(request)
        self.statuses.append(response.status)
        if self.answers_to_lose:
            self.answers_to_lose -= 1
            context.abort(grpc.StatusCode.UNAVAILABLE, "the answer is lost")
        return response

    def steps(self) -> Any:
        assert self.table is not None
        assert self.table.check_valid() is None
        return self.table.info().steps


class SenderTime:
    """Stands in for a sender's `time`: it passes where the sender sleeps, and where a test says so."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.looks = self.sleeps = 0

    def monotonic(self) -> float:
        self.looks += 1
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.sleeps += 1


def numbered_chunk(number: int) -> Any:
    return make_chunk(4, 2, first_step=4 * number, seed=number)


def finish(sender: ChunkSender, lifecycle: Lifecycle) -> None:
    sender.close()
    for thread in lifecycle._threads:
        thread.join(10)
        assert not thread.is_alive()
    lifecycle.check()


def eventually_acknowledged(sender: ChunkSender, eventually: Eventually) -> None:
    eventually(lambda: sender.acknowledged_steps == STEPS)
