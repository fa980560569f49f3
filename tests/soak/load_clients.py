"""`python -m tests.soak.load_clients ADDRESS FIRST COUNT SECONDS PERIOD`: light actors in one process, as JSON."""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any, Dict, List

from bench.replay.shoal_server import RUN_ID
from services.common.codec import encode_chunk, encode_schema
from services.common.peer import Peer
from services.common.rpc import Backoff, Refused, Unavailable, call_once, connect
from shoal.v1 import experience_pb2, replay_pb2, replay_pb2_grpc
from tests.fakes import make_chunk
from tests.soak.traffic import SCHEMA

STEPS, LANES = 4, 2
START_S = 20.0


class LightActor(threading.Thread):
    """Sends a small chunk every so often, with a connection of its own, until the time is over."""

    def __init__(self, address: str, name: str, seconds: float, period_s: float) -> None:
        super().__init__(name=name, daemon=True)
        self._address, self._seconds, self._period_s = address, seconds, period_s
        self.result: Dict[str, Any] = {"name": name, "inserted": 0, "latency_s": [], "refused": "", "held": 0}

    def run(self) -> None:
        channel = connect(self._address)
        call = replay_pb2_grpc.ReplayServiceStub(channel).Insert
        peer = Peer(RUN_ID, experience_pb2.ROLE_ACTOR, self.name).to_proto(SCHEMA.digest)
        chunk = make_chunk(STEPS, LANES, schema=SCHEMA)
        import random

        backoff = Backoff(random.Random(self.name))
        sequence, end_s = 0, 0.0
        while not end_s or time.monotonic() < end_s:
            chunk.sequence, chunk.first_step = sequence, STEPS * sequence
            request = replay_pb2.InsertRequest(peer=peer, chunk=encode_chunk(chunk), max_wait_seconds=2.0)
            if sequence == 0:
                request.schema.CopyFrom(encode_schema(SCHEMA))
            began_s = time.monotonic()
            try:
                response = call_once(call, request, timeout_s=5.0 if end_s else START_S)
            except Unavailable:
                time.sleep(backoff.next_s())
                continue
            except Refused as error:
                self.result["refused"] = str(error)
                break
            end_s = end_s or time.monotonic() + self._seconds
            if response.status == replay_pb2.INSERT_STATUS_APPLIED:
                self.result["inserted"] += 1
                self.result["latency_s"].append(time.monotonic() - began_s)
                sequence += 1
            elif response.status == replay_pb2.INSERT_STATUS_DUPLICATE:
                sequence = response.next_sequence
            else:
                self.result["held"] += 1
                time.sleep(response.retry_after_seconds)
                continue  # as an actor does: who came once a period would find a place by when in it, not by its turn
            time.sleep(max(0.0, self._period_s - (time.monotonic() - began_s)))
        channel.close()


def main(arguments: List[str]) -> int:
    address, first, count, seconds, period_s = arguments
    actors = [
        LightActor(address, f"light-{number}", float(seconds), float(period_s))
        for number in range(int(first), int(first) + int(count))
    ]
    for actor in actors:
        actor.start()
    for actor in actors:
        actor.join()
    print(json.dumps([actor.result for actor in actors]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
