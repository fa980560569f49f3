"""A run's folder and its replay, for lives of a chief, of its helpers and of an actor in one process."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Callable, Dict

import pytest

from services.common.config.load import load
from services.common.config.run import RunConfig
from services.common.lifecycle import Lifecycle
from services.replay.__main__ import table_settings
from services.replay.servicer import ReplayServicer
from services.replay.table import Table, TableSettings
from shoal.v1 import replay_pb2_grpc
from tests.conftest import Serve
from tests.fakes import RUN_ID, SCHEMA, FakeLog, make_chunk

ADD = replay_pb2_grpc.add_ReplayServiceServicer_to_server


def replay_servicer(settings: TableSettings, incarnation: int = 1) -> ReplayServicer:
    """A replay on the real clock."""

    def make_table(schema: Any) -> Table:
        return Table(settings, schema, clock=time.monotonic)

    return ReplayServicer(
        run_id=RUN_ID, incarnation=incarnation, make_table=make_table, log=FakeLog(), fail=pytest.fail
    )


def table_of(servicer: ReplayServicer) -> Table:
    """The table of a replay that has one."""
    assert servicer.table is not None
    return servicer.table


class Run:
    """A run's folder, its replay behind a server, and lives of its chief and of an actor."""

    def __init__(self, tmp_path: Path, serve: Serve, log: FakeLog, free_address: Callable[[], str]) -> None:
        self.tmp_path = tmp_path
        self.log = log
        self._free_address = free_address
        self.config = self._load()
        self.servicer = replay_servicer(table_settings(self.config, self.config.replay.capacity_rows or 0))
        self.replay_address = serve(ADD, self.servicer)

    def _load(self, **changes: Any) -> RunConfig:
        values: Dict[str, Any] = {
            "run.name": RUN_ID,
            "run.folder": str(self.tmp_path),
            "env.factory": "tests.fakes:make_env",
            "env.lanes": 2,
            "td3.hidden_sizes": "[8]",
            "replay.capacity": 2000,
            "replay.min_size_to_sample": 16,
            "replay.addresses": getattr(self, "replay_address", "127.0.0.1:1"),
            "learner.address": self._free_address(),
            "learner.metrics_port": 0,
            "learner.batch_size": 8,
            "learner.max_updates": 50,
            "learner.publish_period": 10,
            "learner.checkpoint_period_s": 0.05,
            "actor.count": 1,
            "actor.index": 0,
            "actor.chunk_steps": 4,
            "actor.poll_period_s": 0.1,
            **changes,
        }
        return load(None, [f"--{key}={value}" for key, value in values.items()]).config

    def fill(self) -> None:
        """Experience without an actor."""
        self.servicer._table = self.servicer._make_table(SCHEMA)
        table_of(self.servicer).insert("actor-0", 1, make_chunk(64, 2), max_wait_s=0)

    def train(self, life: Any = None, **changes: Any) -> Any:
        """One life of the chief, to its end; returns its newest checkpoint."""
        from services.learner.checkpoint import CheckpointFolder
        from services.learner.chief import Chief

        self.config = self._load(**changes)
        with Chief(self.config, life or Lifecycle(), self.log) as chief:
            chief.train()
            chief.say_farewell()
        return CheckpointFolder(self.tmp_path / RUN_ID / "checkpoints", self.log).load_newest()
