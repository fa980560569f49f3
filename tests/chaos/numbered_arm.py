"""The arm with its steps numbered, and with a journal of what its actor was told: `env.factory` of the harness.

Each observation ends with the life of the environment, the number of the step and the lane, scaled so far down that no
network sees them and no rounding harms them. So each row of a ring says which step it is. The journal hangs on the
generated stub: what the replay answered is written down where the actor gets it, and chunks may be sent more often.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Deque, List, Optional

import grpc
import numpy as np
import numpy.typing as npt

from services.actor.envs.arm import ArmReach
from services.actor.envs.contract import EnvStep, Observation
from services.actor.envs.wrapped_env import WrappedEnv
from services.common.schema import TensorSpec
from shoal.v1 import replay_pb2, replay_pb2_grpc
from tests.chaos.accounting import MAX_LIFE
from tests.chaos.journal import Answer, JournalWriter

NUM_MARKS = 3  # life, step, lane
SCALE = 2.0**-100  # exact in float32 for whole numbers up to 2^24, and nothing to a network
ACKNOWLEDGED = (replay_pb2.INSERT_STATUS_APPLIED, replay_pb2.INSERT_STATUS_DUPLICATE)
REMEMBERED = 8  # chunks that may come again later


class NumberedArm(WrappedEnv):
    """The arm; `policy` has three values more."""

    def __init__(self, env: ArmReach, life: int, pause_s: float = 0.0) -> None:
        super().__init__(env)
        self.life = life
        self._pause_s = pause_s
        self._step = 0
        self._lanes = np.arange(env.num_lanes, dtype=np.float32)

    @property
    def observation_spec(self) -> Any:
        (policy,) = self._env.observation_spec
        return (TensorSpec("policy", "float32", (policy.shape[0] + NUM_MARKS,)),)

    def reset(self, seed: Optional[int] = None) -> Observation:
        self._step = 0
        return self._marked(self._env.reset(seed))

    def step(self, action: npt.NDArray[Any]) -> EnvStep:
        if self._pause_s:
            time.sleep(self._pause_s)
        step = self._env.step(action)
        self._step += 1
        step.observation = self._marked(step.observation)
        if step.true_next_observation is not None:
            step.true_next_observation = self._marked(step.true_next_observation)
        return step

    def _marked(self, observation: Observation) -> Observation:
        policy = observation["policy"]
        marks = np.empty((len(policy), NUM_MARKS), np.float32)
        marks[:, 0], marks[:, 1], marks[:, 2] = self.life, self._step, self._lanes
        return {"policy": np.concatenate((policy, marks * np.float32(SCALE)), axis=1)}


def make(num_lanes: int, seed: int, *, journal: str = "", resends: float = 0.0, pause_s: float = 0.0) -> NumberedArm:
    """As a run file names it.

    Args:
        num_lanes: of the arm.
        seed: of the arm.
        journal: folder of the journals; empty: none is kept.
        resends: chance that a chunk is sent again in each of the ways that there are.
        pause_s: taken by each step: a simulator that is slower than the arm.
    """
    life = random.SystemRandom().randrange(1, MAX_LIFE)
    if journal:
        _keep_journal(Path(journal), life, resends)
    return NumberedArm(ArmReach(num_lanes, seed=seed), life, pause_s)


def read_marks(policy: npt.NDArray[np.float32]) -> List[npt.NDArray[np.int64]]:
    """Life, step and lane of observations <float32>[N, 26]; each <int64>[N]."""
    marks = policy[:, -NUM_MARKS:].astype(np.float64) / SCALE
    return [marks[:, column].astype(np.int64) for column in range(NUM_MARKS)]


def _keep_journal(folder: Path, life: int, resends: float) -> None:
    """Let the stub that this process makes next write down what it is answered."""
    plain = replay_pb2_grpc.ReplayServiceStub

    def stub(channel: grpc.Channel) -> Any:
        return _JournaledStub(plain(channel), folder, life, resends)

    replay_pb2_grpc.ReplayServiceStub = stub  # type: ignore[assignment,misc]


class _JournaledStub:
    """A stub whose Insert keeps the journal. One thread calls it."""

    def __init__(self, stub: Any, folder: Path, life: int, resends: float) -> None:
        self._stub, self._folder, self._life, self._resends = stub, folder, life, resends
        self._journal: Optional[JournalWriter] = None
        self._earlier: Deque[bytes] = deque(maxlen=REMEMBERED)
        self._rng = random.Random(life)
        self._pool = ThreadPoolExecutor(2)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stub, name)

    def Insert(self, request: Any, timeout: float) -> Any:  # noqa: N802 (gRPC's name)
        packed = request.SerializeToString() if self._resends else b""
        crowd = self._chance()
        if crowd:
            twins = [self._pool.submit(self._stub.Insert, request, timeout=timeout) for _ in range(2)]
        try:
            response = self._stub.Insert(request, timeout=timeout)
        finally:
            if crowd:
                for twin in twins:
                    self._settle(twin, request)
        self._write(request, response.status in ACKNOWLEDGED)
        if response.status in ACKNOWLEDGED:
            self._send_again(request, packed, timeout)
        return response

    def _send_again(self, request: Any, packed: bytes, timeout: float) -> None:
        """What a bad network does: the chunk once more, an old one, and one ahead of its turn."""
        if not self._resends:
            return
        self._earlier.append(packed)
        if self._chance():
            self._settle(self._pool.submit(self._stub.Insert, request, timeout=timeout), request)
        if self._chance():
            old = replay_pb2.InsertRequest.FromString(self._rng.choice(self._earlier))
            self._settle(self._pool.submit(self._stub.Insert, old, timeout=timeout), old)
        if self._chance():
            ahead = replay_pb2.InsertRequest.FromString(packed)
            ahead.chunk.sequence += self._rng.randrange(2, 9)
            response = self._stub.Insert(ahead, timeout=timeout)
            assert response.status not in ACKNOWLEDGED, "a chunk ahead of its turn was taken"

    def _settle(self, future: Any, request: Any) -> None:
        with contextlib.suppress(grpc.RpcError):
            future.result()
            self._write(request, False, resent=True)

    def _chance(self) -> bool:
        return self._rng.random() < self._resends

    def _write(self, request: Any, acknowledged: bool, *, resent: bool = False) -> None:
        if self._journal is None:
            self._journal = JournalWriter(self._folder, request.peer.name, self._life)
        chunk = request.chunk
        self._journal.add(
            Answer(
                actor=request.peer.name,
                life=self._life,
                lane_group=chunk.lane_group,
                sequence=chunk.sequence,
                first_step=chunk.first_step,
                num_steps=chunk.num_steps,
                num_lanes=chunk.num_lanes,
                acknowledged=acknowledged,
                at_s=time.monotonic(),
                resent=resent,
            )
        )
