"""The helper with a journal of what the chief answered, and with gradients that are sent more often: as a process."""

from __future__ import annotations

import os
import random
import sys
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Deque, Dict, List, Optional

import grpc

from services.common.service import end_process, main
from services.learner.__main__ import name_of, run
from shoal.v1 import gradients_pb2, gradients_pb2_grpc
from tests.chaos.pushes import FOLDER, RESENDS, PushAnswer, PushWriter

ACCEPTED = (gradients_pb2.PUSH_STATUS_ACCEPTED, gradients_pb2.PUSH_STATUS_SCALED)
REMEMBERED = 4  # gradients that may come again later


class JournaledStub:
    """A stub whose Push keeps the journal. One thread calls it."""

    def __init__(self, stub: Any, folder: Path, resends: float, rng: random.Random) -> None:
        self._stub, self._folder, self._resends, self._rng = stub, folder, resends, rng
        self._journal: Optional[PushWriter] = None
        self._earlier: Deque[Any] = deque(maxlen=REMEMBERED)
        self._pool = ThreadPoolExecutor(2)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stub, name)

    def Push(self, request: Any, timeout: float) -> Any:  # noqa: N802 (gRPC's name)
        twins: List[Any] = []
        if self._chance():  # beside itself
            twins = [self._pool.submit(self._stub.Push, request, timeout=timeout) for _ in range(2)]
        try:
            response = self._stub.Push(request, timeout=timeout)
        finally:
            for twin in twins:
                self._settle(twin, request)
        self._write(request, response.status)
        if response.status in ACCEPTED:
            if self._earlier and self._chance():  # behind a later one
                old = self._rng.choice(self._earlier)
                self._settle(self._pool.submit(self._stub.Push, old, timeout=timeout), old, behind=True)
            if self._chance():  # late
                self._settle(self._pool.submit(self._stub.Push, request, timeout=timeout), request)
            self._earlier.append(request)
        return response

    def _settle(self, future: Any, request: Any, *, behind: bool = False) -> None:
        try:
            status = future.result().status
        except grpc.RpcError:
            return
        self._write(request, status, resent=True, behind=behind)

    def _chance(self) -> bool:
        return self._rng.random() < self._resends

    def _write(self, request: Any, status: int, *, resent: bool = False, behind: bool = False) -> None:
        if self._journal is None:
            self._journal = PushWriter(self._folder, request.peer.incarnation)
        accepted = status in ACCEPTED
        said: Dict[str, int] = {"life": request.peer.incarnation, "chief": request.chief_incarnation}
        self._journal.add(
            PushAnswer(
                **said,
                sequence=request.sequence,
                accepted=accepted,
                at_s=time.monotonic(),
                resent=resent,
                behind=behind,
            )
        )


def keep_journal(folder: Path, resends: float) -> None:
    """Let the stubs that this process makes write down what they are answered."""
    plain = gradients_pb2_grpc.GradientServiceStub

    def stub(channel: grpc.Channel) -> Any:
        return JournaledStub(plain(channel), folder, resends, random.Random())

    gradients_pb2_grpc.GradientServiceStub = stub  # type: ignore[assignment,misc]


if __name__ == "__main__":
    keep_journal(Path(os.environ[FOLDER]), float(os.environ[RESENDS]))
    end_process(main("learner", run, sys.argv[1:], short_flags={"--chief": "--helper.chief"}, name_of=name_of))
