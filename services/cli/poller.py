"""Asks replay and learner how they are, and keeps the answers for whoever draws them."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import replace
from typing import Any, Callable, Deque, Dict, Mapping, Optional, Tuple

import grpc

from services.cli.rates import RateMeter
from services.cli.snapshot import ActorState, LearnerState, ReplayState, TrainingState
from services.common.peer import Peer
from services.common.rpc import Refused, Unavailable, call_once, connect
from services.common.security.transport import CALL_IN_THE_CLEAR, ClientSecurity
from shoal.v1 import experience_pb2, parameters_pb2, parameters_pb2_grpc, replay_pb2, replay_pb2_grpc

KEPT_SCORES = 4096
RUN_STATES = {
    parameters_pb2.RUN_STATE_WAITING: "waiting",
    parameters_pb2.RUN_STATE_TRAINING: "training",
    parameters_pb2.RUN_STATE_FINISHED: "finished",
}


class AnswerReader:
    """Turns answers into `TrainingState`s; rates and the history of scores come from comparing them. No gRPC calls."""

    def __init__(self) -> None:
        self._meters: Dict[str, Tuple[object, RateMeter]] = {}  # by counter: whose life it counts in, and its meter
        self._scores: Deque[float] = deque(maxlen=KEPT_SCORES)
        self._scored: Tuple[int, int] = (0, 0)

    def replay(self, info: replay_pb2.GetReplayInfoResponse, now_s: float) -> ReplayState:
        """The replay's answer at `now_s` of a monotonic clock."""
        return ReplayState(
            rows=info.rows,
            capacity_rows=info.capacity_rows,
            items=info.num_items,
            acknowledged_steps=info.steps.acknowledged,
            steps_per_s=self._rate("replay steps", info.replay_incarnation, now_s, info.steps.acknowledged),
            samples_per_s=self._rate("replay samples", info.replay_incarnation, now_s, info.limiter.sampled_items),
            insert_blocked=info.limiter.insert_blocked,
            sample_blocked=info.limiter.sample_blocked,
            limiter=info.limiter.explanation,
            overwritten_steps=info.steps.overwritten,
            quarantined_steps=info.steps.quarantined,
            lost_tail_steps=info.steps.lost_tail,
        )

    def actors(self, info: replay_pb2.GetReplayInfoResponse, now_s: float) -> Dict[str, ActorState]:
        """Each actor that the replay knows, by name."""
        return {
            actor.name: ActorState(
                steps=actor.acknowledged_steps,
                steps_per_s=self._rate(f"actor {actor.name}", actor.incarnation, now_s, actor.acknowledged_steps),
                version=actor.last_policy_version,
                dropped_steps=sum(actor.counters.dropped_steps.values()),
            )
            for actor in info.actors
        }

    def learner(self, info: parameters_pb2.GetLearnerInfoResponse, now_s: float) -> LearnerState:
        """The learner's answer at `now_s` of a monotonic clock."""
        judged = (info.chief_incarnation, info.evaluated_version)
        if info.evaluated_version and judged != self._scored:
            self._scored = judged
            self._scores.append(info.success_rate if info.success_rate >= 0 else info.mean_return)
        return LearnerState(
            run_state=RUN_STATES.get(info.run_state, "starting"),
            version=info.version,
            updates=info.updates,
            max_updates=info.max_updates,
            updates_per_s=self._rate("learner updates", (info.chief_incarnation, info.run_state), now_s, info.updates),
            training_s=info.training_seconds,
            lag_p50_updates=info.lag_p50_updates,
            lag_p95_updates=info.lag_p95_updates,
            evaluated_version=info.evaluated_version,
            success_rate=info.success_rate,
            mean_return=info.mean_return,
            best_version=info.best_version,
            best_success_rate=info.best_success_rate,
            best_mean_return=info.best_mean_return,
            non_finite_updates=info.non_finite_updates,
            scores=tuple(self._scores),
        )

    def _rate(self, name: str, life: object, now_s: float, count: float) -> float:
        """The rate of a counter within one life of what counts; what a resumed one takes over is no progress."""
        if name not in self._meters or self._meters[name][0] != life:
            self._meters[name] = (life, RateMeter())
        return self._meters[name][1].read(now_s, count)


class Poller:
    """Polls on a thread of its own: a service that does not answer delays nobody but this."""

    def __init__(
        self,
        replay_address: str,
        learner_address: str,
        security: ClientSecurity = CALL_IN_THE_CLEAR,
        *,
        period_s: float = 0.5,
        timeout_s: float = 0.45,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Open the channels; nothing is asked before `start`.

        Args:
            replay_address: HOST:PORT.
            learner_address: HOST:PORT.
            security: certificates and token.
            period_s: between two rounds.
            timeout_s: deadline of a call.
            clock: monotonic.
        """
        self._channels = (connect(replay_address, security), connect(learner_address, security))
        self._replay = replay_pb2_grpc.ReplayServiceStub(self._channels[0])
        self._learner = parameters_pb2_grpc.ParameterServiceStub(self._channels[1])
        self._peer = Peer("", experience_pb2.ROLE_OPERATOR, "shoal up").to_proto()
        self._period_s = period_s
        self._timeout_s = timeout_s
        self._clock = clock
        self._reader = AnswerReader()
        self._stopping = threading.Event()
        self._state = TrainingState()
        self._answered: Dict[str, float] = {}
        self._thread = threading.Thread(target=self._run, name="poller", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def state(self) -> TrainingState:
        """What is known now; never waits."""
        return self._state

    def stop(self) -> None:
        """End the thread and close the channels."""
        self._stopping.set()
        for channel in self._channels:
            channel.close()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(self._period_s):
            try:
                self._state = self._round(self._state)
            except (grpc.RpcError, ValueError) as error:
                if self._stopping.is_set():  # a channel was closed under the call
                    return
                self._state = replace(self._state, problem=str(error))

    def _round(self, last: TrainingState) -> TrainingState:
        replay_info, replay_problem = self._ask(
            self._replay.GetInfo, replay_pb2.GetReplayInfoRequest(peer=self._peer), "replay"
        )
        learner_info, learner_problem = self._ask(
            self._learner.GetInfo, parameters_pb2.GetLearnerInfoRequest(peer=self._peer), "learner"
        )
        now_s = self._clock()
        state = replace(last, problem=replay_problem or learner_problem)
        waits: Dict[str, str] = {}
        if replay_info is not None:
            state = replace(
                state,
                replay=self._reader.replay(replay_info, now_s),
                actors=self._reader.actors(replay_info, now_s),
            )
            waits.update(_waiters(replay_info))
        elif state.replay is not None:
            state = replace(state, replay=replace(state.replay, silent_s=self._silent_s("replay", now_s)))
        if learner_info is not None:
            state = replace(
                state,
                learner=self._reader.learner(learner_info, now_s),
                lags={reader.name: reader.lag_updates for reader in learner_info.readers},
            )
            # What a process says about itself is the nearest to the cause: an actor whose environment hangs.
            waits.update({reader.name: reader.waiting_for for reader in learner_info.readers if reader.waiting_for})
            if learner_info.waiting_for:
                waits["learner"] = learner_info.waiting_for
        elif state.learner is not None:
            state = replace(state, learner=replace(state.learner, silent_s=self._silent_s("learner", now_s)))
        return replace(state, waits=waits)

    def _ask(self, method: Callable[..., Any], request: Any, name: str) -> Tuple[Optional[Any], str]:
        try:
            answer = call_once(method, request, timeout_s=self._timeout_s)
        except Unavailable:
            return None, ""
        except Refused as error:
            return None, f"the {name} refuses to tell how it is: {error}"
        self._answered[name] = self._clock()
        return answer, ""

    def _silent_s(self, name: str, now_s: float) -> float:
        return now_s - self._answered.get(name, now_s)


def _waiters(info: replay_pb2.GetReplayInfoResponse) -> Mapping[str, str]:
    longest: Dict[str, Tuple[float, str]] = {}
    for waiter in info.waiters:
        if waiter.seconds >= longest.get(waiter.peer_name, (0.0, ""))[0]:
            longest[waiter.peer_name] = (waiter.seconds, f"{waiter.seconds:.1f} s: {waiter.reason}")
    return {name: reason for name, (_seconds, reason) in longest.items()}
