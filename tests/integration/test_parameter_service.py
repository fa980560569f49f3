"""The chief's parameter service behind a real server, asked by hand, by an actor's client and by an evaluator's."""

from __future__ import annotations

from pathlib import Path
from typing import Any, List

import google_crc32c
import numpy as np
import pytest
import safetensors.numpy

from services.actor.parameter_client import ParameterClient
from services.common.lifecycle import Lifecycle
from services.common.peer import Peer
from services.common.rpc import Refused, call_once, connect
from services.common.run_folder import Progress, RunFolder
from services.learner.parameter_service import ParameterServicer, Readers, Status
from services.learner.parameter_store import ParameterStore, PublishedSet, VersionReservation, digest_of
from shoal.v1 import experience_pb2, parameters_pb2, parameters_pb2_grpc
from tests.conftest import Serve
from tests.fakes import RUN_ID, FakeClock, FakeLog

ACTOR, EVALUATOR, OPERATOR = experience_pb2.ROLE_ACTOR, experience_pb2.ROLE_EVALUATOR, experience_pb2.ROLE_OPERATOR


class Chief:
    """The parts of the chief behind `ParameterService`, and a stub that asks them over a real connection."""

    def __init__(self, tmp_path: Path, clock: FakeClock) -> None:
        self.folder = RunFolder(tmp_path)
        self.store = ParameterStore(VersionReservation(tmp_path / "versions.json"))
        self.status = Status(run_state=parameters_pb2.RUN_STATE_TRAINING, progress=Progress(50, 12.5, 4000))
        self.readers = Readers(clock, num_actors=2)
        self.stub: Any = None

    def servicer(self) -> ParameterServicer:
        return ParameterServicer(
            fail=pytest.fail,
            run_id=RUN_ID,
            incarnation=77,
            store=self.store,
            readers=self.readers,
            folder=self.folder,
            status=self.status,
            num_actors=2,
            max_updates=100,
            waiting_for=lambda: "waiting for the replay",
            log=FakeLog(),
        )

    def publish(self, bias: float, updates: int = 0) -> PublishedSet:
        return self.store.publish({"policy.bias": np.full(1000, bias, np.float32)}, updates)

    def manifest(self, role: Any = ACTOR, name: str = "actor-0", newer_than: int = 0, **running: Any) -> Any:
        peer = Peer(RUN_ID, role, name).to_proto()
        request = parameters_pb2.GetManifestRequest(peer=peer, newer_than=newer_than, **running)
        return call_once(self.stub.GetManifest, request, timeout_s=5)

    def get(self, version: int, offset: int = 0, size: int = 0) -> Any:
        request = parameters_pb2.GetParametersRequest(
            peer=Peer(RUN_ID, ACTOR, "actor-0").to_proto(), version=version, offset_bytes=offset, max_bytes=size
        )
        return call_once(self.stub.Get, request, timeout_s=5)

    def report(self, published: PublishedSet, success: float, **changes: Any) -> Any:
        values = {
            "peer": Peer(RUN_ID, EVALUATOR, "evaluator").to_proto(),
            "version": published.version,
            "digest": published.digest,
            "episodes": 50,
            "success_rate": success,
            "mean_return": -1.0,
            "mean_episode_steps": 20.0,
            **changes,
        }
        request = parameters_pb2.ReportEvaluationRequest(**values)
        return call_once(self.stub.ReportEvaluation, request, timeout_s=5)

    def info(self) -> Any:
        peer = Peer("", OPERATOR, "shoal top").to_proto()
        return call_once(self.stub.GetInfo, parameters_pb2.GetLearnerInfoRequest(peer=peer), timeout_s=5)

    def best_bias(self) -> float:
        best: Any = self.folder.load_best()
        return float(best[0]["policy.bias"][0])


ADD = parameters_pb2_grpc.add_ParameterServiceServicer_to_server


@pytest.fixture
def chief(tmp_path: Path, serve: Serve) -> Any:
    made = Chief(tmp_path, FakeClock())
    with connect(serve(ADD, made.servicer())) as channel:
        made.stub = parameters_pb2_grpc.ParameterServiceStub(channel)
        yield made


def test_a_manifest_names_the_newest_if_it_is_newer(chief: Chief) -> None:
    first = chief.manifest()
    assert not first.available
    assert (first.chief_incarnation, first.num_actors) == (77, 2)
    chief.publish(1.0, updates=0)
    published = chief.publish(2.0, updates=20)
    manifest = chief.manifest(newer_than=1)
    assert manifest.available
    assert (manifest.version, manifest.updates) == (2, 20)
    assert (manifest.size_bytes, manifest.digest) == (len(published.data), published.digest)
    assert not chief.manifest(newer_than=2).available


def test_actors_lease_rungs_and_evaluators_do_not(chief: Chief) -> None:
    assert chief.manifest(name="a").actor_index == 0
    assert chief.manifest(EVALUATOR, name="evaluator").actor_index == 0
    assert chief.manifest(name="b").actor_index == 1
    assert chief.manifest(name="a").actor_index == 0


def test_parts_make_the_whole_and_each_has_its_checksum(chief: Chief) -> None:
    published = chief.publish(0.5)
    data = b""
    while len(data) < len(published.data):
        part = chief.get(published.version, len(data), 999)
        assert google_crc32c.value(part.data) == part.crc32c
        assert 0 < len(part.data) <= 999
        data += part.data
    assert digest_of(data) == published.digest
    assert chief.get(published.version).data == published.data
    assert chief.get(published.version, len(data)).data == b""


def test_an_older_version_is_superseded(chief: Chief) -> None:
    published = chief.publish(1.0)
    chief.publish(2.0)
    assert chief.get(published.version).data == published.data, "a download of several parts must come to its end"
    chief.publish(3.0)
    answer = chief.get(published.version)
    assert answer.superseded
    assert answer.data == b""


def test_what_an_evaluator_looks_at_is_held_until_it_looks_at_a_newer_one(chief: Chief) -> None:
    first = chief.publish(1.0)
    chief.manifest(EVALUATOR, "evaluator")
    chief.publish(2.0)
    third = chief.publish(3.0)
    assert chief.get(first.version).data == first.data
    assert chief.report(first, 0.5).best
    chief.manifest(EVALUATOR, "evaluator")
    assert chief.get(first.version).superseded
    assert chief.get(third.version).data == third.data


def test_the_best_is_kept_and_every_evaluation_is_noted(chief: Chief) -> None:
    answers: List[bool] = []
    for bias, success in ((1.0, 0.5), (2.0, 0.75), (3.0, 0.25)):
        published = chief.publish(bias, updates=int(bias))
        answers.append(chief.report(published, success).best)
    assert answers == [True, True, False]
    assert chief.best_bias() == 2.0
    curve = chief.folder.evaluations()
    assert [(e.version, e.updates, e.success_rate, e.env_steps) for e in curve] == [
        (1, 1, 0.5, 4000),
        (2, 2, 0.75, 4000),
        (3, 3, 0.25, 4000),
    ]
    info = chief.info()
    assert (info.best_version, info.best_success_rate) == (2, 0.75)
    assert (info.evaluated_version, info.success_rate) == (3, 0.25)


def test_the_best_of_an_earlier_life_counts(chief: Chief, serve: Serve) -> None:
    chief.report(chief.publish(1.0), 0.75)
    with connect(serve(ADD, chief.servicer())) as channel:
        chief.stub = parameters_pb2_grpc.ParameterServiceStub(channel)
        assert chief.info().best_success_rate == 0.75
        assert not chief.report(chief.publish(2.0), 0.5).best
        assert chief.report(chief.publish(3.0), 0.8).best
    assert chief.best_bias() == 3.0


def test_reports_that_do_not_fit_are_refused_and_leave_nothing(chief: Chief) -> None:
    published = chief.publish(1.0)
    chief.publish(2.0)
    newer = chief.publish(3.0)
    assert "version 1 is not held any more" in chief.report(published, 0.5).reason
    assert "version 9 is not held any more" in chief.report(newer, 0.5, version=9).reason
    assert "not held any more" in chief.report(newer, 0.5, digest="0" * 32).reason
    assert "must be finite" in chief.report(newer, float("nan")).reason
    assert "must be finite" in chief.report(newer, 0.5, mean_return=float("inf")).reason
    assert chief.folder.evaluations() == []
    assert chief.folder.load_best() is None


def test_peers_of_another_run_are_refused_by_every_call(chief: Chief) -> None:
    peer = Peer("other", ACTOR, "actor-0").to_proto()
    calls = {
        "GetManifest": parameters_pb2.GetManifestRequest(peer=peer),
        "Get": parameters_pb2.GetParametersRequest(peer=peer),
        "ReportEvaluation": parameters_pb2.ReportEvaluationRequest(peer=peer),
        "GetInfo": parameters_pb2.GetLearnerInfoRequest(peer=peer),
    }
    for name, request in calls.items():
        with pytest.raises(Refused, match="belongs to run 'other', this service to run 'test-run'"):
            call_once(getattr(chief.stub, name), request, timeout_s=5)


def test_info_tells_progress_and_who_runs_what(chief: Chief) -> None:
    chief.publish(1.0, updates=10)
    chief.publish(2.0, updates=30)
    chief.manifest(name="a", newer_than=1, running_version=1, running_digest="d1")
    info = chief.info()
    assert (info.run_id, info.version, info.updates, info.max_updates) == (RUN_ID, 2, 50, 100)
    assert info.waiting_for == "waiting for the replay"
    assert (info.training_seconds, info.env_steps) == (12.5, 4000)
    assert info.non_finite_updates == 0
    chief.status.non_finite_updates = 3
    assert chief.info().non_finite_updates == 3
    assert (info.success_rate, info.best_success_rate) == (-1.0, -1.0)
    (reader,) = info.readers
    assert (reader.name, reader.version, reader.digest) == ("a", 1, "d1")
    assert reader.lag_updates == 40  # 50 updates, and its version had 10


def test_the_end_is_told_and_noted(chief: Chief) -> None:
    chief.manifest(name="a")
    assert [reader.told_finished for reader in chief.readers.living(10)] == [False]
    chief.status.run_state = parameters_pb2.RUN_STATE_FINISHED
    assert chief.manifest(name="a").run_state == parameters_pb2.RUN_STATE_FINISHED
    assert [reader.told_finished for reader in chief.readers.living(10)] == [True]


def test_an_actors_client_gets_what_was_published(
    chief: Chief, serve: Serve, lifecycle: Lifecycle, log: FakeLog
) -> None:
    peer = Peer(RUN_ID, ACTOR, "actor-0")
    client = ParameterClient(serve(ADD, chief.servicer()), peer=peer, poll_period_s=1.0, lifecycle=lifecycle, log=log)
    try:
        for bias in (0.25, 0.5):
            published = chief.publish(bias)
            client.fetch()
            newest: Any = client.newest
            assert (newest.version, newest.digest) == (published.version, published.digest)
            for name, tensor in safetensors.numpy.load(published.data).items():
                np.testing.assert_array_equal(newest.parameters[name], tensor)
        client.fetch()
        (reader,) = chief.readers.living(10)
        assert (reader.version, reader.digest) == (2, published.digest)
    finally:
        client.close()


def test_a_damaged_best_is_replaced_by_the_next_evaluation(tmp_path: Path, serve: Serve) -> None:
    (tmp_path / "best.safetensors").write_bytes(b"rubbish")
    chief = Chief(tmp_path, FakeClock())
    with connect(serve(ADD, chief.servicer())) as channel:
        chief.stub = parameters_pb2_grpc.ParameterServiceStub(channel)
        chief.report(chief.publish(2.0), 0.1)
    assert chief.best_bias() == 2.0
