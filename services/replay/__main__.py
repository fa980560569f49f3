"""`shoal replay`: parse the config, build the parts, start, run, stop in reverse."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from typing import Optional, Tuple

from services.common.config.run import RunConfig
from services.common.errors import UserError
from services.common.heartbeat import Heartbeat, Pulse
from services.common.lifecycle import Lifecycle
from services.common.log import Log
from services.common.metrics import Metrics
from services.common.peer import Peer
from services.common.ring_layout import RingFormat
from services.common.rpc import Server
from services.common.schema import Schema
from services.common.security.transport import server_security
from services.common.service import end_process, main
from services.common.waits import Waits
from services.replay.footprint import in_words, refuse_more_than_memory, rows_for, total_bytes
from services.replay.metrics import TableCollector
from services.replay.quarantine_dump import QuarantineDump
from services.replay.rate_limiter import make_limiter
from services.replay.registration import add_to_server
from services.replay.ring_folder import RingFolder
from services.replay.sampler_settings import SamplerSettings
from services.replay.servicer import ReplayServicer
from services.replay.table import Table, TableSettings
from services.replay.waiting import REASONS
from shoal.v1 import experience_pb2

MAX_WORKERS = 64  # calls at once; half of them may be inserts that wait
EXPIRY_PERIOD_S = 1.0
MAX_DUMP_BYTES = 64 << 20  # of all quarantine dumps together
POPULATE_BYTES, POPULATE_PERIOD_S = 1 << 20, 0.002  # a piece holds inserts up for less than a millisecond


def run(config: RunConfig, lifecycle: Lifecycle, log: Log) -> None:
    """The replay's life."""
    replay = config.replay
    if replay.capacity_rows is not None:
        checked_settings(config, replay.capacity_rows)
    dump = make_dump(config, log)
    metrics = Metrics("replay", config.run.name)
    waits = metrics.waits(REASONS)
    damaged = metrics.counters(
        "checksum_failures",
        "Damage found by CRC32C: in chunks on their way, in the ring and in its log when it came back.",
        "where",
        ("chunk", "ring", "log"),
    )
    peer = Peer(config.run.name, experience_pb2.ROLE_UNSPECIFIED, "replay", lifecycle.incarnation)
    tables = Tables(config, nonce=f"{peer.incarnation:016x}", log=log, waits=waits)
    table = tables.reopen()
    for where, count in (table.damage if table is not None else {}).items():
        damaged[where].inc(count)
    servicer = ReplayServicer(
        run_id=config.run.name,
        incarnation=peer.incarnation,
        make_table=tables.make,
        log=log,
        table=table,
        fail=lifecycle.fail,
        dump=dump,
        waits=waits,
        on_damaged=damaged["chunk"].inc,
    )
    server, metrics_port = _bind(config, servicer, metrics, dump, log)
    lifecycle.on_stop(lambda: servicer.interrupt("the replay is stopping"))
    server.start()
    log.info("replay listens", address=server.address, metrics_port=metrics_port, run=config.run.name)
    lifecycle.spawn("populate", lambda: tables.populate(lifecycle.stopping))
    try:
        _look_after(servicer, lifecycle, log)
    finally:
        server.stop()
        metrics.stop()
        lifecycle.check()
        if servicer.table is not None:
            servicer.table.note_state()


def _bind(
    config: RunConfig, servicer: ReplayServicer, metrics: Metrics, dump: Optional[QuarantineDump], log: Log
) -> Tuple[Server, int]:
    """The server, which does not answer yet, and the port of the metrics."""
    replay = config.replay
    security = server_security(
        config.security, replay.listens_at, f"{config.metrics.host}:{replay.metrics_port}", log=log
    )
    server = Server(
        replay.listens_at,
        max_workers=MAX_WORKERS,
        option_name="replay.listen" if replay.listen else "replay.addresses",
        security=security,
        on_rejected=metrics.rejected_calls(),
        observe=metrics.calls(),
    )
    server.add(add_to_server, servicer)
    metrics.registry.register(TableCollector(config.run.name, lambda: servicer.table, dump))
    if replay.data_dir:
        metrics.disk(Path(replay.data_dir), "the ring")
    metrics.certificate(security.certificate)
    metrics_port = metrics.serve(
        replay.metrics_port, "replay.metrics_port", host=config.metrics.host, security=security
    )
    return server, metrics_port


def _look_after(servicer: ReplayServicer, lifecycle: Lifecycle, log: Log) -> None:
    """Write down counts and give silent actors up, until the stop."""
    rounds = 0

    def pulse() -> Pulse:
        table = servicer.table
        status = f"{table.store.num_items} items" if table else "waiting for the first actor to introduce itself"
        return Pulse(rounds, "", status)

    Heartbeat(pulse, lifecycle, os.environ).start()
    while not lifecycle.stopping.wait(EXPIRY_PERIOD_S):
        rounds += 1  # each goes through the table's lock: a table that is stuck starves the watchdog
        if servicer.table is not None:
            servicer.table.note_state()
            for actor in servicer.table.expire_actors():
                log.warning("an actor is silent: its open windows are closed", actor=actor)


class Tables:
    """Makes the run's one table: of the folder that is there, or for the first actor's schema."""

    def __init__(self, config: RunConfig, *, nonce: str, log: Log, waits: Waits) -> None:
        self._config = config
        self._nonce = nonce
        self._log = log
        self._waits = waits
        self._folder: Optional[RingFolder] = None
        data_dir = config.replay.data_dir
        self._path = Path(data_dir) / config.run.name if data_dir else None

    def reopen(self) -> Optional[Table]:
        """The table that the run's folder holds, or None if there is none yet.

        Raises:
            UserError: the folder is in use, damaged, or does not fit the run file.
        """
        if self._path is None or not self._path.exists():
            return None
        began_s = time.monotonic()
        folder = RingFolder.open(self._path, self._nonce)
        had = folder.format
        table = self._table(had.schema, folder)
        info = table.info()
        self._log.info(
            "the ring is back",
            folder=str(self._path),
            rows=info.rows,
            items=info.num_items,
            seconds=round(time.monotonic() - began_s, 2),
        )
        if any(table.damage.values()):
            self._log.warning(
                "something of the ring was damaged when the machine stopped: what it held is dropped and counted",
                chunks=table.damage["ring"],
                log_segments=table.damage["log"],
                reset_steps=info.steps.reset,
            )
        if (had.n_step, had.discount) != (info.n_step, info.discount):
            self._log.info("its items are rebuilt", n_step=info.n_step, discount=info.discount)
        return table

    def make(self, schema: Schema) -> Table:
        """An empty table.

        Raises:
            UserError: its folder cannot be made, or the settings do not fit together.
        """
        folder = None
        if self._path is not None:
            replay = self._config.replay
            ring_format = RingFormat(
                self._config.run.name,
                schema,
                self._capacity(schema),
                replay.n_step,
                replay.discount,
                boot_id="",
                made_wall_s=time.time(),
            )
            folder = RingFolder.create(self._path, ring_format, self._nonce)
        return self._table(schema, folder)

    def populate(self, stopping: threading.Event) -> None:
        """Take in the pages of a mapped ring ahead of its head, in pieces, until all are there."""
        if self._path is None:  # a ring in memory: looking for pages again and again would take time from the calls
            return
        while not stopping.wait(POPULATE_PERIOD_S):
            if self._folder is not None and not self._folder.populate(POPULATE_BYTES):
                return

    def _capacity(self, schema: Schema) -> int:
        replay = self._config.replay
        if replay.memory is None:
            return replay.capacity_rows or 0
        return rows_for(replay.memory, schema)

    def _table(self, schema: Schema, folder: Optional[RingFolder]) -> Table:
        capacity = self._capacity(schema)
        settings = checked_settings(self._config, capacity)
        takes = total_bytes(capacity, schema)
        if folder is None:
            refuse_more_than_memory(capacity, takes)
        table = Table(settings, schema, clock=time.monotonic, folder=folder, waits=self._waits)
        self._folder = folder
        self._log.info("the table", rows=capacity, takes=in_words(takes), schema=schema.digest)
        return table


def checked_settings(config: RunConfig, capacity: int) -> TableSettings:
    """The settings of a table of `capacity` rows.

    Raises:
        UserError: they do not fit together, or could deadlock.
    """
    try:
        settings = table_settings(config, capacity)
        make_limiter(settings)
    except ValueError as error:
        raise UserError(str(error)) from None
    return settings


def table_settings(config: RunConfig, capacity: int) -> TableSettings:
    """The table's settings out of the whole run file, for `capacity` rows."""
    replay, learner = config.replay, config.learner
    return TableSettings(
        capacity=capacity,
        n_step=replay.n_step,
        discount=replay.discount,
        sampling=SamplerSettings(
            selector=replay.selector,
            priority_exponent=replay.priority_exponent,
            priority_rule=replay.priority_rule,
            td_weight=replay.td_weight,
            freshness_half_life_updates=replay.freshness_half_life_updates,
            max_times_sampled=replay.max_times_sampled,
            max_lag_updates=config.staleness.max_lag_updates,
        ),
        samples_per_insert=replay.samples_per_insert,
        error_buffer=config.error_buffer,
        min_size_to_sample=replay.min_size_to_sample,
        max_open_steps=config.max_open_steps,
        max_chunk_steps=config.actor.chunk_steps * config.env.lanes,
        max_batch_size=learner.batch_size,
        max_num_batches=learner.batches_per_sample,
        max_waiting_inserts=MAX_WORKERS // 2,
        max_actor_silence_s=replay.max_actor_silence_s,
        max_peers=replay.max_peers,
        with_moments=config.normalization.observations,
        seed=config.run.seed,
    )


def make_dump(config: RunConfig, log: Log) -> Optional[QuarantineDump]:
    """Where sick lanes are written, if anywhere."""
    replay = config.replay
    if not replay.dump_dir or replay.max_dumps == 0:
        return None
    return QuarantineDump(Path(replay.dump_dir), max_files=replay.max_dumps, max_bytes=MAX_DUMP_BYTES, log=log)


if __name__ == "__main__":
    end_process(main("replay", run, sys.argv[1:]))
