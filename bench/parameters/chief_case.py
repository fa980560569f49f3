"""The chief's side: the product's store and service behind its server, and what they cost."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Dict, List

import numpy as np
import numpy.typing as npt

from bench.replay.memory import resident_bytes
from bench.replay.protocol import serve_calls
from services.common.config.values import WireDtype
from services.common.log import make_log
from services.common.rpc import Server
from services.common.run_folder import RunFolder
from services.learner.chief import MAX_CALLS
from services.learner.parameter_service import ParameterServicer, Status, add_to_server
from services.learner.parameter_store import ACT, ParameterStore
from services.learner.readers import Readers
from services.learner.version_reservation import VersionReservation
from shoal.v1 import parameters_pb2

RUN_ID = "bench-parameters"
MAX_WORKERS = 16  # as services/learner/chief.py has it, and MAX_CALLS
HIDDEN = 512  # 3 x 512^2 and what is around them: about a million


class CountingServicer(ParameterServicer):
    """The product's servicer; counts the questions for a newer set."""

    questions = 0

    def Get(self, request: Any, context: Any) -> Any:  # noqa: N802 (gRPC's name)
        if request.version == 0:
            self.questions += 1
        return super().Get(request, context)


class ChiefCase:
    """Publishes on demand. The arrays of a set are made before the clock starts, as a learner's copy is."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="shoal-bench-")
        self._server: Any = None
        self._rng = np.random.default_rng(1)

    def open(self, wire_dtype: WireDtype, num_actors: int) -> Dict[str, Any]:
        folder = Path(self._folder.name)
        self._store = ParameterStore(VersionReservation(folder / "versions.json"), wire_dtype=wire_dtype)
        self._servicer = CountingServicer(
            run_id=RUN_ID,
            incarnation=1,
            store=self._store,
            readers=Readers(time.monotonic, num_actors),
            folder=RunFolder(folder),
            status=Status(run_state=parameters_pb2.RUN_STATE_TRAINING),
            num_actors=num_actors,
            max_updates=1,
            waiting_for=lambda: "",
            fail=_fail,
            log=make_log(sys.stderr),
        )
        self._server = Server("127.0.0.1:0", max_workers=MAX_WORKERS, max_calls=MAX_CALLS, option_name="bench")
        self._server.add(add_to_server, self._servicer)
        self._server.start()
        self._parameters = self._make()
        return {
            "address": self._server.address,
            "parameters": int(sum(array.size for array in self._parameters.values())),
        }

    def publish(self) -> Dict[str, Any]:
        """Publish a set; `at_s` is CLOCK_MONOTONIC, which the machine's processes share, before it."""
        parameters = {name: array + np.float32(1e-3) for name, array in self._parameters.items()}
        self._parameters = {name: array.copy() for name, array in parameters.items()}
        at_s = time.monotonic()
        published = self._store.publish({ACT: parameters}, 0)
        return {"version": published.version, "at_s": at_s, "seconds": time.monotonic() - at_s}

    def stats(self) -> Dict[str, Any]:
        newest = self._store.newest
        return {
            "at_s": time.monotonic(),
            "cpu_s": time.process_time(),
            "threads": threading.active_count(),
            "system_threads": len(list(Path("/proc/self/task").iterdir())),
            "heap_bytes": resident_bytes(os.getpid())["heap"],
            "sets": self._store.num_sets,
            "set_bytes": newest.size_bytes if newest else 0,
            "questions": self._servicer.questions,
        }

    def close(self) -> None:
        if self._server is not None:
            self._server.stop(0)
        self._folder.cleanup()

    def _make(self) -> Dict[str, npt.NDArray[np.float32]]:
        sizes: List[int] = [60, HIDDEN, HIDDEN, HIDDEN, HIDDEN, HIDDEN, 8]
        made: Dict[str, npt.NDArray[np.float32]] = {}
        for layer, (fan_in, fan_out) in enumerate(zip(sizes[:-1], sizes[1:])):
            made[f"policy.{layer}.weight"] = self._rng.standard_normal((fan_in, fan_out)).astype(np.float32)
            made[f"policy.{layer}.bias"] = np.zeros(fan_out, np.float32)
        return made


def _fail(error: BaseException) -> None:
    raise error


if __name__ == "__main__":
    case = ChiefCase()
    try:
        sys.exit(serve_calls({"open": case.open, "publish": case.publish, "stats": case.stats}))
    finally:
        case.close()
