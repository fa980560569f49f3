"""`shoal replay`: parse the config, build the parts, start, run, stop in reverse."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Optional

from services.common.config.run import RunConfig
from services.common.errors import UserError
from services.common.lifecycle import Lifecycle
from services.common.log import Log
from services.common.metrics import Metrics
from services.common.peer import Peer
from services.common.rpc import Server
from services.common.schema import Schema
from services.common.service import main
from services.replay.metrics import TableCollector
from services.replay.quarantine_dump import QuarantineDump
from services.replay.sampler import SamplerSettings
from services.replay.servicer import ReplayServicer
from services.replay.table import Table, TableSettings, make_limiter
from shoal.v1 import experience_pb2, replay_pb2_grpc

MAX_WORKERS = 64  # calls at once; half of them may be inserts that wait
EXPIRY_PERIOD_S = 1.0
MAX_DUMP_BYTES = 64 << 20  # of all quarantine dumps together


def run(config: RunConfig, lifecycle: Lifecycle, log: Log) -> None:
    """The replay's life."""
    replay = config.replay
    try:
        settings = table_settings(config)
        make_limiter(settings)
    except ValueError as error:
        raise UserError(str(error)) from None

    dump = make_dump(config, log)

    def make_table(schema: Schema) -> Table:
        return Table(settings, schema, clock=time.monotonic)

    peer = Peer(config.run.name, experience_pb2.ROLE_UNSPECIFIED, "replay")
    servicer = ReplayServicer(
        run_id=config.run.name, incarnation=peer.incarnation, make_table=make_table, log=log, dump=dump
    )
    server = Server(replay.addresses[0], max_workers=MAX_WORKERS, option_name="replay.addresses")
    server.add(replay_pb2_grpc.add_ReplayServiceServicer_to_server, servicer)
    metrics = Metrics("replay", config.run.name)
    metrics.registry.register(TableCollector(config.run.name, lambda: servicer.table, dump))
    metrics_port = metrics.serve(replay.metrics_port, "replay.metrics_port")
    lifecycle.on_stop(lambda: servicer.interrupt("the replay is stopping"))
    server.start()
    log.info("replay listens", address=server.address, metrics_port=metrics_port, run=config.run.name)
    try:
        while not lifecycle.stopping.wait(EXPIRY_PERIOD_S):
            if servicer.table is not None:
                for actor in servicer.table.expire_actors():
                    log.warning("an actor is silent: its open windows are closed", actor=actor)
    finally:
        server.stop()
        metrics.stop()


def table_settings(config: RunConfig) -> TableSettings:
    """The table's settings out of the whole run file."""
    replay, learner = config.replay, config.learner
    return TableSettings(
        capacity=replay.capacity,
        n_step=replay.n_step,
        discount=replay.discount,
        sampling=SamplerSettings(
            selector=replay.selector,
            priority_exponent=replay.priority_exponent,
            priority_rule=replay.priority_rule,
            td_weight=replay.td_weight,
            freshness_half_life_updates=replay.freshness_half_life_updates,
            max_times_sampled=replay.max_times_sampled,
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
        seed=config.run.seed,
    )


def make_dump(config: RunConfig, log: Log) -> Optional[QuarantineDump]:
    """Where sick lanes are written, if anywhere."""
    replay = config.replay
    if not replay.dump_dir or replay.max_dumps == 0:
        return None
    return QuarantineDump(Path(replay.dump_dir), max_files=replay.max_dumps, max_bytes=MAX_DUMP_BYTES, log=log)


if __name__ == "__main__":
    sys.exit(main("replay", run, sys.argv[1:]))
