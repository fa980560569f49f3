"""TorchRL's TensorDictPrioritizedReplayBuffer, in process."""

from __future__ import annotations

import importlib
import sys
from typing import Any, Dict

from bench.replay.protocol import Timing, serve, time_inserts, time_round
from bench.replay.workload import IMPORTANCE_EXPONENT, PRIORITY_EXPONENT, Workload, take

FILL_BATCH = 4096


class TorchrlCase:
    def open(self, load: Workload) -> Dict[str, Any]:
        self._torch: Any = importlib.import_module("torch")
        tensordict: Any = importlib.import_module("tensordict")
        data: Any = importlib.import_module("torchrl.data")
        self._torch.set_num_threads(1)
        self._buffer = data.TensorDictPrioritizedReplayBuffer(
            alpha=PRIORITY_EXPONENT,
            beta=IMPORTANCE_EXPONENT,
            storage=data.LazyTensorStorage(load.capacity),
            priority_key="td_error",
        )
        self._make = tensordict.TensorDict
        self._columns = load.transitions()
        self._td_error = self._torch.rand(4096)
        self._added = 0
        while self._added < load.capacity:
            self._add(min(FILL_BATCH, load.distinct))
        return {"filled": len(self._buffer)}

    def insert(self, batch: int, count: int, variant: str) -> Timing:  # noqa: ARG002 (there is one way)
        return time_inserts(lambda: self._add(batch), batch, count)

    def sample(self, batch: int, count: int, variant: str) -> Timing:  # noqa: ARG002
        return time_round(lambda: self._draw(batch), count)

    def close(self) -> None:
        del self._buffer

    def _add(self, batch: int) -> None:
        rows = take(self._columns, self._added, batch)
        self._buffer.extend(self._make({name: self._torch.from_numpy(rows[name]) for name in rows}, [batch]))
        self._added += batch

    def _draw(self, batch: int) -> None:
        drawn = self._buffer.sample(batch)
        self._buffer.update_priority(drawn["index"], self._td_error[:batch])


if __name__ == "__main__":
    sys.exit(serve(TorchrlCase()))
