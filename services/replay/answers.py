"""The replay's answers: what the table returned, as messages."""

from __future__ import annotations

import time
from typing import Any, Optional

import numpy as np

from services.common.codec import encode_tensor
from services.common.sample_codec import pack_batch, pack_drawn, pack_response
from services.common.wire import Packed
from services.replay.priorities import PriorityOutcome
from services.replay.table import Table
from services.replay.table_info import InspectedItem, SampleResult
from shoal.v1 import replay_pb2


def sample_response(
    result: SampleResult,
    outcome: PriorityOutcome,
    table_id: int,
    request: replay_pb2.SampleRequest,
    *,
    began_s: float,
) -> bytes:
    """An encoded `SampleResponse` to `request`, which arrived at `began_s` of the monotonic clock."""
    stamps = result.stamps.pack() if result.stamps is not None else None
    items: Optional[Packed] = None
    if result.batch is not None:
        items = pack_batch(result.batch, stamps)
    elif result.drawn is not None:
        items = pack_drawn(result.drawn, stamps)
    response = replay_pb2.SampleResponse(
        status=replay_pb2.SampleStatus.ValueType(int(result.status)),
        reason=result.reason,
        num_items=result.num_items,
        priority_mass_log2=result.priority_mass_log2,
        priority_result=priority_result(outcome),
        table_id=table_id,
    )
    if stamps is not None:
        source = stamps.source
        response.sampling_version = source.sampling_version
        if (request.known_table_id, request.known_actors) != (table_id, len(source.actor_names)):
            response.actor_names.extend(source.actor_names)
    response.held_seconds = time.monotonic() - began_s
    return pack_response(response, items)


def unproven_response(outcome: PriorityOutcome, table_id: int, *, is_mapped: bool) -> replay_pb2.SampleResponse:
    reason = "this replay keeps its ring in memory: ask for rows over gRPC"
    if is_mapped:
        reason = "the nonce is not that of this replay's ring: read it again, or ask for rows over gRPC"
    return replay_pb2.SampleResponse(
        status=replay_pb2.SAMPLE_STATUS_UNPROVEN,
        reason=reason,
        priority_result=priority_result(outcome),
        table_id=table_id,
    )


def priority_result(outcome: PriorityOutcome) -> replay_pb2.PriorityResult:
    return replay_pb2.PriorityResult(
        outcome=outcome.outcome.tobytes(),
        applied=outcome.applied,
        stale=outcome.stale,
        rejected=outcome.rejected,
        superseded=outcome.superseded,
    )


def fill_info(response: replay_pb2.GetReplayInfoResponse, table: Table) -> None:
    info = table.info()
    response.capacity_rows, response.rows, response.num_items = info.capacity_rows, info.rows, info.num_items
    response.n_step, response.discount, response.newest_version = info.n_step, info.discount, info.newest_version
    response.expired_items, response.expirations = info.sampling.num_expired, info.sampling.expired_items
    _copy_fields(info.steps, response.steps)
    _copy_fields(info.limiter, response.limiter)
    for waiter in info.waiters:
        _copy_fields(waiter, response.waiters.add())
    for actor in info.actors:
        message = response.actors.add(
            name=actor.name,
            incarnation=actor.incarnation,
            acknowledged_steps=actor.acknowledged_steps,
            seconds_since_insert=actor.seconds_since_insert,
            last_policy_version=actor.last_policy_version,
        )
        message.counters.produced_steps = actor.counters.produced_steps
        message.counters.buffered_steps = actor.counters.buffered_steps
        message.counters.dropped_steps.update(actor.counters.dropped_steps)


def _copy_fields(source: Any, message: Any) -> None:
    """Copy scalars of the same name: the table's values are named as the contract's."""
    for field in message.DESCRIPTOR.fields:
        setattr(message, field.name, getattr(source, field.name))


def inspected_item(item: InspectedItem) -> replay_pb2.InspectedItem:
    return replay_pb2.InspectedItem(
        key=item.key,
        actor=item.actor,
        chunk=item.chunk,
        priority=item.priority,
        times_sampled=item.times_sampled,
        age_seconds=item.age_s,
        policy_version=item.policy_version,
        n_step_return=item.n_step_return,
        discount=item.discount,
        bootstrap_key=item.bootstrap_key,
        columns=[encode_tensor(name, np.asarray(column)) for name, column in item.columns.items()],
    )
