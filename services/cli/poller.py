"""Asks replay and learner how they are, and keeps the answers for whoever draws them."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import replace
from typing import Any, Callable, Deque, Dict, Optional, Tuple

import grpc

from services.cli.operator import LEARNER, REPLAY, Operator
from services.cli.rates import RateMeter
from services.cli.snapshot import (
    ActorState,
    HelperState,
    LagPart,
    LearnerState,
    ReaderState,
    ReplayState,
    TrainingState,
)
from services.cli.waits import EVERY_ACTOR, EVERYBODY, waits_of
from services.common.errors import UserError
from shoal.v1 import experience_pb2, parameters_pb2, replay_pb2

KEPT_SCORES = 4096
ROLES = {
    experience_pb2.ROLE_ACTOR: "actor",
    experience_pb2.ROLE_HELPER: "helper",
    experience_pb2.ROLE_EVALUATOR: "evaluator",
}
DRAIN_PHASES = {
    parameters_pb2.DRAIN_PHASE_ACTORS: "draining: actors",
    parameters_pb2.DRAIN_PHASE_LEARNER: "draining: learner",
    parameters_pb2.DRAIN_PHASE_DRAINED: "drained",
}
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
            draining=info.draining,
        )

    def actors(self, info: replay_pb2.GetReplayInfoResponse, now_s: float) -> Dict[str, ActorState]:
        """Each actor that the replay knows, by name."""
        return {
            actor.name: ActorState(
                steps=actor.acknowledged_steps,
                steps_per_s=self._rate(f"actor {actor.name}", actor.incarnation, now_s, actor.acknowledged_steps),
                version=actor.last_policy_version,
                dropped_steps=sum(actor.counters.dropped_steps.values()),
                buffered_steps=actor.counters.buffered_steps,
                silent_s=actor.seconds_since_insert,
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
            prefetched_batches=info.prefetched_batches,
            lag_parts=tuple(
                LagPart(part.name, part.p50_updates, part.p95_updates, part.mean_seconds) for part in info.lag_parts
            ),
            drain=DRAIN_PHASES.get(info.drain.phase, ""),
        )

    def readers(self, info: parameters_pb2.GetLearnerInfoResponse) -> Dict[str, ReaderState]:
        """Each process that fetches parameters, by name."""
        return {
            reader.name: ReaderState(
                role=ROLES.get(reader.role, "reader"),
                version=reader.version,
                lag_updates=reader.lag_updates,
                silent_s=reader.seconds_since_call,
                drained=reader.drained,
            )
            for reader in info.readers
        }

    def helpers(self, info: parameters_pb2.GetLearnerInfoResponse, now_s: float) -> Dict[str, HelperState]:
        """Each helper that the learner knows, by name."""
        return {
            helper.name: HelperState(
                pushes=helper.pushes,
                pushes_per_s=self._rate(f"helper {helper.name}", helper.incarnation, now_s, helper.pushes),
                lease_left_s=helper.lease_left_seconds,
                is_awaited=helper.is_awaited,
            )
            for helper in info.helpers
        }

    def _rate(self, name: str, life: object, now_s: float, count: float) -> float:
        """The rate of a counter within one life of what counts; what a resumed one takes over is no progress."""
        if name not in self._meters or self._meters[name][0] != life:
            self._meters[name] = (life, RateMeter())
        return self._meters[name][1].read(now_s, count)


class Poller:
    """Polls on a thread of its own: a service that does not answer delays nobody but this."""

    def __init__(
        self,
        system: Operator,
        *,
        period_s: float = 0.5,
        timeout_s: float = 0.45,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Ask nothing before `start`, or `look`.

        Args:
            system: replay and learner; closed by `stop`.
            period_s: between two rounds.
            timeout_s: deadline of a call.
            clock: monotonic.
        """
        self._system = system
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

    def look(self) -> TrainingState:
        """Ask once, here and now; not beside the thread."""
        self._state = self._round(self._state)
        return self._state

    def stop(self) -> None:
        """End the thread and close the connections."""
        self._stopping.set()
        self._system.close()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(self._period_s):
            try:
                self.look()
            except (grpc.RpcError, ValueError) as error:
                if self._stopping.is_set():  # a connection was closed under the call
                    return
                self._state = replace(self._state, problem=str(error))

    def _round(self, last: TrainingState) -> TrainingState:
        replay_info, replay_problem = self._ask(self._system.replay, REPLAY)
        learner_info, learner_problem = self._ask(self._system.learner, LEARNER)
        now_s = self._clock()
        problem = replay_problem or learner_problem
        state = replace(last, problem=problem, waits=())
        if replay_info is not None:
            state = replace(
                state,
                replay=self._reader.replay(replay_info, now_s),
                actors=self._reader.actors(replay_info, now_s),
            )
        elif state.replay is not None:
            state = replace(state, replay=replace(state.replay, silent_s=self._silent_s(REPLAY, now_s)))
        if learner_info is not None:
            state = replace(
                state,
                learner=self._reader.learner(learner_info, now_s),
                readers=self._reader.readers(learner_info),
                helpers=self._reader.helpers(learner_info, now_s),
            )
        elif state.learner is not None:
            state = replace(state, learner=replace(state.learner, silent_s=self._silent_s(LEARNER, now_s)))
        if problem:
            return state
        waits = waits_of(self._system.addresses, replay_info, learner_info)
        return replace(state, waits=tuple(wait for wait in waits if wait.who not in (EVERYBODY, EVERY_ACTOR)))

    def _ask(self, ask: Callable[..., Optional[Any]], name: str) -> Tuple[Optional[Any], str]:
        try:
            answer = ask(timeout_s=self._timeout_s, patience_s=0.0)
        except UserError as error:
            return None, str(error)
        if answer is not None:
            self._answered[name] = self._clock()
        return answer, ""

    def _silent_s(self, name: str, now_s: float) -> float:
        return now_s - self._answered.get(name, now_s)
