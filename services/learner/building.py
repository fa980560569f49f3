"""What chief and helpers build alike from a run file: the learner, its way to the replay, and the guard around it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Callable, Optional, Tuple

import numpy as np

from services.common.config.run import RunConfig
from services.common.errors import UserError
from services.common.lifecycle import Lifecycle
from services.common.log import Log
from services.common.metrics import Metrics
from services.common.peer import Peer
from services.common.schema import Schema
from services.common.security.transport import client_security
from services.common.staleness_log import LedgerRow
from services.common.waits import Waits
from services.learner.batch_dump import BatchDump
from services.learner.claims import ClaimCheck, ClaimCollector
from services.learner.data_staleness import DataStaleness
from services.learner.joint_update import Updater
from services.learner.nan_guard import NanGuard
from services.learner.observation_statistics import ObservationStatistics
from services.learner.replay_client import ReplayClient
from services.learner.staleness import KnownUpdates, StalenessRules

if TYPE_CHECKING:
    from services.agent.algorithm import Learner


def check_device(device: str) -> None:
    """Refuse a device that this machine, or its build of torch, does not have.

    Raises:
        UserError: says which build to install.
    """
    if device == "cpu":
        return  # without torch, whose import takes seconds
    import torch

    there = torch.cuda.device_count()
    if there == 0:
        raise UserError(
            f"learner.device = {device!r}, but torch {torch.__version__} sees no GPU here: install a build with CUDA "
            "(`make run TORCH_SPEC=torch TORCH_INDEX=` in a fresh .venv) and the GPU's driver, or set learner.device "
            "to cpu"
        )
    index = int(device.partition(":")[2] or 0)
    if index >= there:
        raise UserError(f"learner.device = {device!r}, but the GPUs here are cuda:0 to cuda:{there - 1}")


def build_learner(config: RunConfig, schema: Schema, seed: int) -> Learner:
    """The learner that a run file asks for; a helper's is the chief's with another seed."""
    from services.agent.registry import learner_class  # torch takes seconds to import: not before it is needed

    learner: Learner = learner_class(config.algorithm.name)(
        schema,
        config.algorithm_settings,
        seed=seed,
        device=config.learner.device,
        num_threads=config.learner.torch_threads,
        normalize_observations=config.normalization.observations,
        reward_scale=config.normalization.reward_scale,
    )
    return learner


def build_replay_client(
    config: RunConfig,
    *,
    peer: Peer,
    rng: np.random.Generator,
    newest: Callable[[], Tuple[int, int]],
    lifecycle: Lifecycle,
    log: Log,
    waits: Waits,
    is_draining: Callable[[], bool] = lambda: False,
    is_paused: Callable[[], bool] = lambda: False,
) -> ReplayClient:
    """The way to the replay; see `ReplayClient`.

    Raises:
        UserError: the replay is beyond this machine, and what it takes to call it is missing.
    """
    settings = config.learner
    return ReplayClient(
        config.replay.addresses[0],
        peer=peer,
        batch_size=settings.batch_size,
        batches_per_sample=settings.batches_per_sample,
        samples_in_flight=settings.samples_in_flight,
        transport=settings.transport,
        rng=rng,
        newest=newest,
        lifecycle=lifecycle,
        log=log,
        security=client_security(config.security, *config.replay.addresses, log=log),
        waits=waits,
        is_draining=is_draining,
        is_paused=is_paused,
    )


def build_guard(
    config: RunConfig,
    updater: Updater,
    replay: ReplayClient,
    *,
    dumps: Path,
    metrics: Metrics,
    log: Log,
    on_stopped: Callable[[int], None] = lambda _stopped: None,
) -> NanGuard:
    """The guard around the updates of `updater`, or around gradients that are computed for somebody else's.

    Args:
        config: the run file.
        updater: a learner, or one with its helpers.
        replay: told of sick items.
        dumps: folder of stopped batches.
        metrics: get a counter of stopped updates.
        log: hears of each stopped update.
        on_stopped: told how many were stopped in this life, after each.
    """
    settings = config.learner
    # Until the replay hears of a sick item, all that is drawn ahead may be of it.
    drawn_ahead = settings.batches_per_sample * (1 + settings.samples_in_flight)
    return NanGuard(
        updater,
        BatchDump(
            dumps,
            log,
            max_files=settings.max_dumps,
            on_written=metrics.counter("nan_dumps", "Stopped batches that were kept in a file.").inc,
        ),
        metrics,
        log,
        max_in_row=settings.max_non_finite_updates + drawn_ahead,
        report=replay.report,
        on_stopped=on_stopped,
        chunks_of=replay.chunks_of,
    )


def build_claim_check(config: RunConfig, history: KnownUpdates, metrics: Metrics, log: Log) -> Optional[ClaimCheck]:
    """The check of actors' first TD errors; None where it is off, or where priorities are no TD errors alone."""
    settings = config.learner
    if not settings.claim_check_share or config.replay.priority_rule != "td_error":
        return None
    claims = ClaimCheck(history, log, share=settings.claim_check_share, max_divergence=settings.max_claim_divergence)
    metrics.registry.register(ClaimCollector(config.run.name, claims))
    return claims


def build_statistics(config: RunConfig, learner: Learner, log: Log) -> ObservationStatistics:
    """What brings the replay's moments of observations into the learner's normalizer."""
    settings = config.normalization
    return ObservationStatistics(
        learner.normalizer, enabled=settings.observations, warmup_steps=settings.warmup_steps, log=log
    )


def build_staleness(
    config: RunConfig, history: KnownUpdates, file: Path, metrics: Metrics, *, on_row: Callable[[LedgerRow], None]
) -> DataStaleness:
    """The rules for data that are too old, with their ledger in `file`; `on_row` hears each row of it."""
    settings = config.staleness
    return DataStaleness(
        StalenessRules(settings.max_lag_updates, settings.loss_half_life_updates),
        history,
        file,
        metrics,
        run=config.run.name,
        max_rows=settings.max_rows,
        on_row=on_row,
    )
