"""shoal's replay with its ring in mapped files: keys come by gRPC, the learner's client gathers the rows itself."""

from __future__ import annotations

import sys
import tempfile
from typing import Any, Dict, Tuple

from bench.replay.protocol import serve
from bench.replay.shoal_case import ShoalCase
from bench.replay.workload import Workload


class ShoalMappedCase(ShoalCase):
    """A ring on disk; inserts go as over gRPC, since actors never write to it themselves."""

    transport = "mapped"

    def open(self, load: Workload) -> Dict[str, Any]:
        self._data = tempfile.TemporaryDirectory(prefix="shoal-bench-ring-")
        return super().open(load)

    @property
    def server_flags(self) -> Tuple[str, ...]:
        return ("--replay.data_dir", self._data.name)

    def close(self) -> None:
        super().close()
        self._data.cleanup()


if __name__ == "__main__":
    sys.exit(serve(ShoalMappedCase()))
