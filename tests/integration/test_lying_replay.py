"""A replay that lies to its learner: the learner ends with a sentence."""

from __future__ import annotations

from typing import Any

import grpc
import numpy as np
import pytest

from services.common.codec import encode_schema, encode_tensor
from services.common.errors import Crash
from services.common.lifecycle import Lifecycle
from services.common.peer import Peer
from services.common.rpc import Server
from services.common.sample_codec import decode_batch, read_response
from services.common.schema import Schema, TensorSpec
from services.common.stamps_codec import StampSource
from services.learner.replay_client import ReplayClient
from shoal.v1 import experience_pb2, replay_pb2, replay_pb2_grpc
from tests.conftest import Eventually
from tests.fakes import RUN_ID, SCHEMA, FakeLog


class LyingReplay(replay_pb2_grpc.ReplayServiceServicer):
    def GetInfo(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        return replay_pb2.GetReplayInfoResponse(schema=encode_schema(SCHEMA))


NUM_ITEMS = 4
COLUMNS = {"keys": "int64", "probability": "float64", "priority": "float64", "times_sampled": "int64"}


def _items(schema: Schema = SCHEMA, num_items: int = NUM_ITEMS, **changes: Any) -> bytes:
    items = replay_pb2.SampledItems(
        n_step_return=bytes(4 * num_items), discount=bytes(4 * num_items), policy_version=bytes(8 * num_items)
    )
    for name in COLUMNS:
        setattr(items, name, bytes(8 * num_items))
    for name in ("actor_index", "known_version", "arrival_version", "acting_seconds", "transit_seconds", "age_seconds"):
        setattr(items, name, bytes(4 * num_items))
    for spec in schema.observation:
        column = encode_tensor(spec.name, np.zeros((num_items, *spec.shape), spec.dtype))
        items.observation.append(column)
        items.next_observation.append(column)
    items.action.CopyFrom(encode_tensor("action", np.zeros((num_items, *schema.action.shape), schema.action.dtype)))
    for name, value in changes.items():
        setattr(items, name, value)
    response = replay_pb2.SampleResponse(status=1, items=items, actor_names=["a"])
    return response.SerializeToString()


STRANGE = Schema((TensorSpec("policy", "float32", (3,)), SCHEMA.observation[0]), SCHEMA.action)
ANSWERS = {
    "noise": b"\xff" * 100,
    "more items than were asked for": _items(num_items=100 * NUM_ITEMS),
    "fewer items": _items(num_items=1),
    "no items": _items(num_items=0),
    "columns of two lengths": _items(discount=bytes(4)),
    "another schema": _items(STRANGE),
    "packed by gRPC": _items(),  # though it would be right, unpacked
    "an actor that nobody named": _items(actor_index=b"\xff" * 4 * NUM_ITEMS),
}


@pytest.mark.parametrize("name", sorted(ANSWERS))
def test_a_learner_ends_with_a_sentence_over_answers_that_are_none(
    name: str, lifecycle: Lifecycle, log: FakeLog, eventually: Eventually
) -> None:
    def sample(_request: bytes, context: grpc.ServicerContext) -> bytes:
        if name == "packed by gRPC":
            context.set_compression(grpc.Compression.Gzip)
        return ANSWERS[name]

    def register(servicer: LyingReplay, server: grpc.Server) -> None:
        handlers = {
            "GetInfo": grpc.unary_unary_rpc_method_handler(
                servicer.GetInfo,
                replay_pb2.GetReplayInfoRequest.FromString,
                replay_pb2.GetReplayInfoResponse.SerializeToString,
            ),
            "Sample": grpc.unary_unary_rpc_method_handler(sample),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("shoal.v1.ReplayService", handlers),))

    server = Server("127.0.0.1:0", max_workers=4, option_name="test")
    server.add(register, LyingReplay())
    server.start()
    client = ReplayClient(
        server.address,
        peer=Peer(RUN_ID, experience_pb2.ROLE_LEARNER, "learner"),
        batch_size=NUM_ITEMS,
        batches_per_sample=1,
        samples_in_flight=1,
        transport="grpc",
        newest=lambda: (1, 1),
        rng=np.random.default_rng(0),
        lifecycle=lifecycle,
        log=log,
    )
    try:
        client.start(client.wait_for_schema())
        eventually(lifecycle.stopping.is_set)
        with pytest.raises(Crash, match="the replay's answer to a Sample is none"):
            lifecycle.check()
    finally:
        client.close()
        server.stop(0)


def test_an_honest_answer_of_the_same_make_is_taken() -> None:
    """The answers above are refused for their lies alone."""
    answer = read_response(_items())
    batch = decode_batch(answer.items or b"", 4, StampSource(1, ("a",)))
    batch.check(SCHEMA)
    assert len(batch) == NUM_ITEMS
