from __future__ import annotations

import time
from concurrent import futures

import grpc
import pytest

from services.cli.operator import Operator
from services.cli.poller import AnswerReader, Poller
from services.cli.target import Addresses
from services.common.config.security import SecuritySection
from shoal.v1 import experience_pb2, parameters_pb2, parameters_pb2_grpc, replay_pb2, replay_pb2_grpc


def replay_info(steps=1000, actor_steps=600):
    return replay_pb2.GetReplayInfoResponse(
        schema=experience_pb2.Schema(),
        capacity_rows=5000,
        rows=1200,
        num_items=990,
        steps=replay_pb2.StepCounters(acknowledged=steps, lost_tail=3),
        limiter=replay_pb2.RateLimiterState(sampled_items=50 * steps, insert_blocked=True, explanation="why"),
        actors=[
            replay_pb2.ActorInfo(
                name="actor-0",
                acknowledged_steps=actor_steps,
                counters=experience_pb2.ActorCounters(dropped_steps={"full": 2, "stale": 1}, buffered_steps=40),
                seconds_since_insert=0.5,
                last_policy_version=7,
            )
        ],
        waiters=[
            replay_pb2.Waiter(peer_name="actor-0", call="Insert", seconds=0.2, reason="short"),
            replay_pb2.Waiter(peer_name="actor-0", call="Insert", seconds=1.5, reason="long"),
        ],
    )


def learner_info(updates=100, version=5, success=0.5, evaluated=4, chief=1):
    return parameters_pb2.GetLearnerInfoResponse(
        run_state=parameters_pb2.RUN_STATE_TRAINING,
        chief_incarnation=chief,
        version=version,
        updates=updates,
        max_updates=800,
        non_finite_updates=3,
        evaluated_version=evaluated,
        success_rate=success,
        mean_return=-2.5,
        waiting_for="waiting for the replay",
        waiting_seconds=3.5,
        prefetched_batches=6,
        drain=parameters_pb2.DrainState(
            phase=parameters_pb2.DRAIN_PHASE_ACTORS, waiting_for="waiting for actors", seconds=4.0
        ),
        lag_parts=[parameters_pb2.LagPart(name="ring", p50_updates=10, p95_updates=30, mean_seconds=1.5)],
        helpers=[parameters_pb2.HelperInfo(name="helper-0", pushes=9, lease_left_seconds=4)],
        readers=[
            parameters_pb2.ParameterReader(name="evaluator", lag_updates=40),
            parameters_pb2.ParameterReader(
                name="actor-1",
                role=experience_pb2.ROLE_ACTOR,
                waiting_for="the environment hangs: step has not returned",
                waiting_seconds=7.0,
            ),
        ],
    )


def test_rates_come_from_two_answers():
    reader = AnswerReader()
    reader.replay(replay_info(1000), 10.0)
    reader.actors(replay_info(1000, 600), 10.0)
    reader.learner(learner_info(100), 10.0)
    replay = reader.replay(replay_info(1500), 12.0)
    assert replay.steps_per_s == pytest.approx(250)
    assert replay.samples_per_s == pytest.approx(12_500)
    assert replay.insert_blocked
    assert not replay.sample_blocked
    actor = reader.actors(replay_info(1500, 800), 12.0)["actor-0"]
    assert (actor.steps, actor.steps_per_s, actor.version, actor.dropped_steps) == (800, pytest.approx(100), 7, 3)
    learner = reader.learner(learner_info(300), 12.0)
    assert learner.updates_per_s == pytest.approx(100)
    assert learner.eta_s == pytest.approx(5)
    assert learner.non_finite_updates == 3


def test_what_a_resumed_learner_takes_over_is_no_progress():
    reader = AnswerReader()
    waiting = learner_info(0)
    waiting.run_state = parameters_pb2.RUN_STATE_WAITING
    reader.learner(waiting, 10.0)
    assert reader.learner(learner_info(3000), 11.0).updates_per_s == 0.0
    assert reader.learner(learner_info(3100), 12.0).updates_per_s == pytest.approx(100)
    assert reader.learner(learner_info(5000, chief=2), 13.0).updates_per_s == 0.0


def test_each_evaluation_is_one_point_of_the_curve():
    reader = AnswerReader()
    for updates, evaluated, success in ((1, 0, 0.0), (2, 4, 0.25), (3, 4, 0.25), (4, 9, 0.75)):
        state = reader.learner(learner_info(updates, success=success, evaluated=evaluated), float(updates))
    assert state.scores == (0.25, 0.75)


def test_where_there_is_no_success_the_curve_is_of_returns():
    state = AnswerReader().learner(learner_info(success=-1.0), 1.0)
    assert state.scores == (-2.5,)
    assert not state.has_success


class Replay(replay_pb2_grpc.ReplayServiceServicer):
    peers = None

    def GetInfo(self, request, context):  # noqa: N802
        self.peers = [*(self.peers or []), request.peer]
        return replay_info()


class Learner(parameters_pb2_grpc.ParameterServiceServicer):
    refuses = False

    def GetInfo(self, request, context):  # noqa: N802
        if self.refuses:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, "another protocol")
        return learner_info()


@pytest.fixture
def services():
    server = grpc.server(futures.ThreadPoolExecutor(2))
    replay, learner = Replay(), Learner()
    replay_pb2_grpc.add_ReplayServiceServicer_to_server(replay, server)
    parameters_pb2_grpc.add_ParameterServiceServicer_to_server(learner, server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    yield server, address, replay, learner
    server.stop(0).wait()


def poller_of(address, timeout_s=1.0):
    system = Operator(Addresses(address, address), SecuritySection())
    return Poller(system, period_s=0.05, timeout_s=timeout_s)


def eventually(poller, condition):
    deadline = time.monotonic() + 10
    while not condition(poller.state()):
        assert time.monotonic() < deadline, poller.state()
        time.sleep(0.02)
    return poller.state()


def test_both_are_asked_as_an_operator_and_silence_is_noticed(services):
    server, address, replay, _learner = services
    poller = poller_of(address)
    poller.start()
    try:
        state = eventually(poller, lambda s: s.replay is not None and s.learner is not None)
        assert {wait.who: wait.short() for wait in state.waits} == {
            "actor-0": "0:01 its Insert: long",
            "actor-1": "0:07 the environment hangs: step has not returned",
            "learner": "0:03 waiting for the replay",
            "the drain": "0:04 waiting for actors",
        }
        assert {name: reader.lag_updates for name, reader in state.readers.items()} == {"evaluator": 40, "actor-1": 0}
        assert state.learner.prefetched_batches == 6
        assert state.learner.drain == "draining: actors"
        assert [(part.name, part.p95_updates) for part in state.learner.lag_parts] == [("ring", 30.0)]
        assert state.helpers["helper-0"].pushes == 9
        actor = state.actors["actor-0"]
        assert (actor.buffered_steps, actor.silent_s) == (40, 0.5)
        assert {(peer.role, peer.run_id) for peer in replay.peers} == {(experience_pb2.ROLE_OPERATOR, "")}
        server.stop(0).wait()
        state = eventually(poller, lambda s: s.learner.silent_s > 0.3)
        assert state.learner.updates == 100
        assert state.waits == ()
    finally:
        poller.stop()


def test_a_refusal_is_shown(services):
    _server, address, _replay, learner = services
    learner.refuses = True
    poller = poller_of(address)
    poller.start()
    try:
        state = eventually(poller, lambda s: s.problem != "")
        assert state.problem == f"the learner at {address} refuses: another protocol"
        assert state.waits == ()
        assert state.learner is None
    finally:
        poller.stop()


def test_services_that_are_not_there_yet_are_no_problem():
    poller = poller_of("127.0.0.1:1", timeout_s=0.2)
    poller.start()
    time.sleep(0.6)
    assert poller.state().replay is None
    assert poller.state().problem == ""
    poller.stop()
