"""Stand-ins that check what they are given: an environment, a policy, a learner, a chief, a clock, a log."""

from __future__ import annotations

import hashlib
import threading
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import google_crc32c
import grpc
import numpy as np
import safetensors.numpy

from services.actor.envs.contract import AutoReset, EnvStep
from services.agent.algorithm import Decision, Update
from services.agent.normalizer import Normalizer
from services.common.batch import Batch
from services.common.chunk import TERMINATED, TRUNCATED, VALID, Chunk, FinalObservations
from services.common.codec import encode_chunk, encode_schema
from services.common.peer import PROTOCOL_VERSION, Peer
from services.common.rpc import call_once
from services.common.sample_codec import decode_batch
from services.common.schema import ActionSpec, Schema, TensorSpec
from shoal.v1 import experience_pb2, parameters_pb2, parameters_pb2_grpc, replay_pb2

RUN_ID = "test-run"
SCHEMA = Schema(
    (TensorSpec("policy", "float32", (2,)), TensorSpec("camera", "uint8", (2, 2))), ActionSpec((-2.0,), (3.0,))
)


class FakeClock:
    """Seconds that stand still until they are told to move."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class FakeLog:
    """Keeps what was logged as (level, event, values)."""

    def __init__(self) -> None:
        self.lines: List[Tuple[str, str, Dict[str, Any]]] = []

    def _keep(self, level: str, event: str, values: Dict[str, Any]) -> None:
        assert event, "an empty log line"
        self.lines.append((level, event, values))

    def debug(self, event: str, **values: Any) -> None:
        self._keep("debug", event, values)

    def info(self, event: str, **values: Any) -> None:
        self._keep("info", event, values)

    def warning(self, event: str, **values: Any) -> None:
        self._keep("warning", event, values)

    def error(self, event: str, **values: Any) -> None:
        self._keep("error", event, values)

    def events(self, level: str = "") -> List[str]:
        return [event for its, event, _ in self.lines if level in ("", its)]


class FakeEnv:
    """B lanes whose episodes end after `episode_steps` steps; `policy` holds [steps since the start, lane].

    Lane 0's episodes are truncated, the others' terminate. The arrays it hands out are reused by the next call, as a
    simulator's are. Out of bounds, of the wrong dtype or shape: it fails.
    """

    def __init__(
        self,
        num_lanes: int = 2,
        *,
        episode_steps: int = 3,
        autoreset: AutoReset = AutoReset.SAME_STEP,
        reports_success: bool = True,
        on_step: Callable[[int], None] = lambda _number: None,
    ) -> None:
        self.num_lanes = num_lanes
        self.autoreset = autoreset
        self.observation_spec = SCHEMA.observation
        self.action_spec = SCHEMA.action
        self.steps = 0
        self.seeds: List[Optional[int]] = []
        self.is_closed = False
        self._episode_steps = np.broadcast_to(episode_steps, num_lanes)
        self._reports_success = reports_success
        self._on_step = on_step
        self._age = np.zeros(num_lanes, np.int64)
        self._resets_next = np.zeros(num_lanes, np.bool_)
        self._buffer = {s.name: np.zeros((num_lanes, *s.shape), s.dtype) for s in SCHEMA.observation}
        self._true_next = {s.name: np.zeros((num_lanes, *s.shape), s.dtype) for s in SCHEMA.observation}

    def reset(self, seed: Optional[int] = None) -> Dict[str, Any]:
        assert not self.is_closed
        self.seeds.append(seed)
        self._age[:] = 0
        self._resets_next[:] = False
        return self._fill(self._buffer, self._age)

    def step(self, action: Any) -> EnvStep:
        assert not self.is_closed
        assert action.dtype == np.float32
        assert action.shape == (self.num_lanes, 1)
        assert (action >= -2.0).all()
        assert (action <= 3.0).all()
        self.steps += 1
        self._on_step(self.steps)
        valid = ~self._resets_next
        self._age = np.where(valid, self._age + 1, 0)
        ended = valid & (self._age >= self._episode_steps)
        truncated = ended & (np.arange(self.num_lanes) == 0)
        true_next = self._fill(self._true_next, self._age)
        reward = np.where(valid, self._age, 0).astype(np.float32)
        if self.autoreset is AutoReset.NEXT_STEP:
            self._resets_next = ended
        else:
            self._age = np.where(ended, 0, self._age)
        return EnvStep(
            observation=self._fill(self._buffer, self._age),
            true_next_observation=true_next if self.autoreset is AutoReset.SAME_STEP else None,
            reward=reward,
            terminated=ended & ~truncated,
            truncated=truncated,
            valid=valid,
            metrics={"success": ended & (np.arange(self.num_lanes) % 2 == 1)} if self._reports_success else {},
        )

    def close(self) -> None:
        self.is_closed = True

    def _fill(self, buffer: Dict[str, Any], age: Any) -> Dict[str, Any]:
        buffer["policy"][:, 0] = age
        buffer["policy"][:, 1] = np.arange(self.num_lanes)
        buffer["camera"][:] = np.asarray(age, np.uint8)[:, None, None]
        return dict(buffer)


def make_env(num_lanes: int, seed: int, *, episode_steps: int = 3, autoreset: str = "same_step") -> FakeEnv:
    """As a run file names it: `tests.fakes:make_env`."""
    return FakeEnv(num_lanes, episode_steps=episode_steps, autoreset=AutoReset(autoreset))


class FakePolicy:
    """Acts with the parameter `policy.bias`; q_taken is 10 + steps, value 20 + steps of the observation."""

    def __init__(self) -> None:
        self.seen: List[Any] = []
        self.annealed: List[int] = []

    def act(self, parameters: Mapping[str, Any], observation: Mapping[str, Any], rng: Any) -> Decision:
        assert isinstance(rng, np.random.Generator)
        self.seen.append(observation["policy"].copy())
        steps = self._steps(observation)
        return Decision(self.act_greedily(parameters, observation), 10 + steps, 20 + steps)

    def act_greedily(self, parameters: Mapping[str, Any], observation: Mapping[str, Any]) -> Any:
        return np.full((len(self._steps(observation)), 1), parameters["policy.bias"][0], np.float32)

    def value(self, parameters: Mapping[str, Any], observation: Mapping[str, Any]) -> Any:
        assert set(parameters) == {"policy.bias"}
        return 20 + self._steps(observation)

    def anneal(self, updates: int) -> None:
        self.annealed.append(updates)

    def exploration(self) -> Any:
        return np.zeros(2, np.float32)

    @staticmethod
    def _steps(observation: Mapping[str, Any]) -> Any:
        assert set(observation) == {"policy", "camera"}
        for spec in SCHEMA.observation:
            assert observation[spec.name].dtype == spec.dtype
            assert observation[spec.name].shape[1:] == spec.shape
        return observation["policy"][:, 0].astype(np.float32)


class FakeStaleness:
    """Leaves weights alone, and finds the batches `stale` too old."""

    def __init__(self, stale: Sequence[int] = ()) -> None:
        self.seen: List[Tuple[int, int]] = []
        self._stale = stale

    def weigh(self, drawn: Any, updates: int, weights: Any) -> Any:
        self.seen.append((drawn.table_id, updates))
        return np.zeros_like(weights) if drawn.table_id in self._stale else weights


class FakeLearner:
    """Counts updates; its parameter is their number, its TD errors are the keys."""

    def __init__(self, on_update: Callable[[int], None] = lambda _number: None) -> None:
        self.updates = 0
        self.weights: List[Any] = []
        self.normalizer = Normalizer(SCHEMA, observations=False, reward_scale=1.0)
        self._on_update = on_update

    def update(self, batch: Batch, importance_weights: Any) -> Update:
        assert importance_weights.dtype == np.float32
        assert importance_weights.shape == (len(batch),)
        assert importance_weights.max() == 1.0
        self.updates += 1
        self.weights.append(importance_weights)
        self._on_update(self.updates)
        return Update(batch.keys.astype(np.float32), {"critic_loss": 0.5} if self.updates % 2 else {})

    def acting_parameters(self) -> Dict[str, Any]:
        return {"policy.bias": np.full(1, self.updates, np.float32)}

    def state(self, into: Optional[Mapping[str, Any]] = None) -> Dict[str, Any]:
        return {"updates": np.array(self.updates)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.updates = int(state["updates"])


class FakeChief(parameters_pb2_grpc.ParameterServiceServicer):
    """Hands out what `publish` set; checks that its callers introduce themselves. `faults` are used up one a Get."""

    def __init__(self) -> None:
        self.run_state = parameters_pb2.RUN_STATE_TRAINING
        self.manifests = 0
        self.gets = 0
        self.faults: List[str] = []  # "damaged", "superseded"
        self.digest_faults = 0  # manifests that will name a wrong digest
        self.lock = threading.Lock()
        self.version = 0
        self.data = b""
        self.ask_again_s = 0.0

    def publish(self, version: int, bias: float, size: int = 1) -> None:
        with self.lock:
            self.version = version
            self.data = safetensors.numpy.save({"policy.bias": np.full(size, bias, np.float32)})

    def GetManifest(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        raise AssertionError("a reader asks for manifest and set at once")

    def Get(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        self._check(request.peer)
        assert request.role == parameters_pb2.PARAMETER_ROLE_ACT
        with self.lock:
            answer = parameters_pb2.GetParametersResponse()
            if request.version == 0:
                answer.manifest.CopyFrom(self._manifest(request))
                if not answer.manifest.available:
                    return answer
            self.gets += 1
            fault = self.faults.pop(0) if self.faults else ""
            if request.version not in (0, self.version) or fault == "superseded":
                return parameters_pb2.GetParametersResponse(superseded=True)
            answer.data = self.data[request.offset_bytes : request.offset_bytes + request.max_bytes]
        answer.crc32c = google_crc32c.value(answer.data)
        if fault == "damaged":
            answer.crc32c ^= 1
        return answer

    def _manifest(self, request: Any) -> Any:
        assert request.running_version == request.newer_than
        assert bool(request.running_digest) == bool(request.running_version)
        self.manifests += 1
        answer = parameters_pb2.GetManifestResponse(
            run_state=self.run_state,
            chief_incarnation=1,
            actor_index=3,
            num_actors=8,
            ask_again_seconds=self.ask_again_s,
        )
        if self.version > request.newer_than:
            answer.available = True
            answer.version, answer.updates, answer.size_bytes = self.version, 10 * self.version, len(self.data)
            answer.digest = hashlib.blake2b(self.data, digest_size=16).hexdigest()
            if self.digest_faults:
                self.digest_faults -= 1
                answer.digest = "0" * 32
        return answer

    def ReportEvaluation(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        raise AssertionError("an actor reports no evaluation")

    def GetInfo(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        raise AssertionError("an actor asks for no info")

    @staticmethod
    def _check(peer: Any) -> None:
        assert peer.protocol_version == PROTOCOL_VERSION
        assert peer.run_id == RUN_ID
        assert peer.name
        assert peer.incarnation


class ReplayPeers:
    """An actor, a learner and an operator of a run at its replay, in one."""

    def __init__(self, stub: Any) -> None:
        self.stub = stub
        self.table_id = 0  # of the last draw

    def insert(
        self, chunk: Chunk, actor: str = "actor-0", incarnation: int = 1, schema: Schema = SCHEMA, wait_s: float = 0.0
    ) -> Any:
        peer = Peer(RUN_ID, experience_pb2.ROLE_ACTOR, actor, incarnation).to_proto(schema.digest)
        request = replay_pb2.InsertRequest(
            peer=peer, schema=encode_schema(schema), chunk=encode_chunk(chunk), max_wait_seconds=wait_s
        )
        return call_once(self.stub.Insert, request, timeout_s=15.0)

    def sample(self, batches: int = 1, size: int = 16, wait_s: float = 0.0) -> Any:
        peer = Peer(RUN_ID, experience_pb2.ROLE_LEARNER, "learner").to_proto(SCHEMA.digest)
        request = replay_pb2.SampleRequest(peer=peer, num_batches=batches, batch_size=size, max_wait_seconds=wait_s)
        response = call_once(self.stub.Sample, request, timeout_s=15.0)
        self.table_id = response.table_id
        return response

    def draw(self, batches: int = 1, size: int = 16) -> List[Any]:
        response = self.sample(batches, size)
        assert response.status == replay_pb2.SAMPLE_STATUS_OK, response.reason
        whole = decode_batch(response.items.SerializeToString(), response.num_items)
        return whole.split(size)

    def update(self, keys: Any, td_error: Any) -> Any:
        """The result, with the outcome of each."""
        updates = replay_pb2.PriorityUpdates(
            table_id=self.table_id,
            keys=np.asarray(keys, np.int64).tobytes(),
            td_error=np.asarray(td_error, np.float64).tobytes(),
        )
        peer = Peer(RUN_ID, experience_pb2.ROLE_LEARNER, "learner").to_proto(SCHEMA.digest)
        request = replay_pb2.UpdatePrioritiesRequest(peer=peer, priorities=updates)
        return call_once(self.stub.UpdatePriorities, request, timeout_s=15.0).result

    def info(self) -> Any:
        peer = Peer("", experience_pb2.ROLE_OPERATOR, "test").to_proto()
        return call_once(self.stub.GetInfo, replay_pb2.GetReplayInfoRequest(peer=peer), timeout_s=15.0)

    def items(self) -> Dict[int, Any]:
        """All items by key."""
        peer = Peer("", experience_pb2.ROLE_OPERATOR, "test").to_proto()
        request = replay_pb2.InspectRequest(peer=peer, order=replay_pb2.INSPECT_ORDER_OLDEST, max_items=10**6)
        found = call_once(self.stub.Inspect, request, timeout_s=15.0).items
        assert len({item.key for item in found}) == len(found)
        return {item.key: item for item in found}


def make_chunk(
    T: int = 4,  # noqa: N803 (the field's letters)
    B: int = 2,  # noqa: N803
    *,
    schema: Schema = SCHEMA,
    sequence: int = 0,
    first_step: int = 0,
    flags: Any = None,
    version: int = 1,
    seed: int = 0,
    critics: bool = True,
) -> Chunk:
    """A chunk of random numbers whose ended steps have their final observations."""
    rng = np.random.default_rng(seed)
    flags = np.full((T, B), VALID, np.uint8) if flags is None else np.asarray(flags, np.uint8)
    step = np.flatnonzero((flags & VALID != 0) & (flags & (TERMINATED | TRUNCATED) != 0)).astype(np.int64)

    def observation(*rows: int) -> Dict[str, Any]:
        return {s.name: rng.integers(0, 100, (*rows, *s.shape)).astype(s.dtype) for s in schema.observation}

    def critic(*rows: int) -> Any:
        return rng.standard_normal(rows).astype(np.float32) if critics else np.full(rows, np.nan, np.float32)

    chunk = Chunk(
        lane_group=0,
        sequence=sequence,
        first_step=first_step,
        observation=observation(T, B),
        action=rng.uniform(0, 1, (T, B, *schema.action.shape)).astype(schema.action.dtype),
        reward=rng.standard_normal((T, B)).astype(np.float32),
        flags=flags,
        policy_version=np.full(T, version, np.int64),
        q_taken=critic(T, B),
        value=critic(T, B),
        final=FinalObservations(step, observation(len(step)), critic(len(step)), np.zeros(len(step), np.bool_)),
        newest_version=version,
    )
    chunk.check(schema)
    return chunk


def same(one: Chunk, other: Chunk) -> bool:
    """Whether all columns of two chunks are equal, NaN included."""
    mine, its = dict(one.columns()), dict(other.columns())
    assert list(mine) == list(its)
    return all(
        mine[name].dtype == its[name].dtype
        and mine[name].shape == its[name].shape
        and mine[name].tobytes() == its[name].tobytes()
        for name in mine
    )
