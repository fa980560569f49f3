from __future__ import annotations

import contextlib
import socket

import pytest

from services.cli.ports import choose_endpoints
from services.common.config.load import load
from services.common.errors import UserError


@contextlib.contextmanager
def listener():
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen(1)
        yield holder.getsockname()[1]


def free_port():
    with listener() as port:
        return port


def test_ports_that_are_not_set_are_free_and_all_different():
    endpoints = choose_endpoints(load(None, ["--actor.count", "5"]))
    ports = [int(endpoints.replay.split(":")[1]), int(endpoints.learner.split(":")[1]), *endpoints.metrics.values()]
    assert len(set(ports)) == len(ports) == 2 + 3 + 5
    for port in ports:
        with socket.socket() as holder:
            holder.bind(("127.0.0.1", port))


def test_helpers_have_ports_like_actors():
    endpoints = choose_endpoints(load(None, ["--helper.count", "2"]))
    assert {"helper-0", "helper-1"} < set(endpoints.metrics)
    port = free_port()
    endpoints = choose_endpoints(load(None, ["--helper.count", "2", "--helper.metrics_port", str(port)]))
    assert [endpoints.metrics[f"helper-{index}"] for index in range(2)] == [port, port + 1]


def test_ports_that_are_set_are_kept():
    port, metrics = free_port(), free_port()
    flags = ["--learner.address", f"localhost:{port}", "--replay.metrics_port", str(metrics)]
    endpoints = choose_endpoints(load(None, flags))
    assert endpoints.learner == f"localhost:{port}"
    assert endpoints.metrics["replay"] == metrics


def test_a_disabled_evaluator_has_no_port():
    assert "evaluator" not in choose_endpoints(load(None, ["--evaluator.enabled", "false"])).metrics


def test_a_busy_port_is_a_sentence():
    with listener() as port, pytest.raises(UserError, match=rf"replay\.addresses: port {port} of 127\.0\.0\.1 is busy"):
        choose_endpoints(load(None, ["--replay.addresses", f"127.0.0.1:{port}"]))


def test_a_busy_metrics_port_is_a_sentence():
    with listener() as port, pytest.raises(UserError, match=rf"learner\.metrics_port: port {port} .* is busy"):
        choose_endpoints(load(None, ["--learner.metrics_port", str(port)]))


def test_a_port_given_twice_is_a_sentence():
    port = free_port()
    flags = ["--replay.addresses", f"127.0.0.1:{port}", "--learner.address", f"127.0.0.1:{port}"]
    with pytest.raises(UserError, match=r"learner\.address and replay\.addresses both ask for port"):
        choose_endpoints(load(None, flags))


def test_actors_count_up_from_a_metrics_port_that_is_set():
    with pytest.raises(UserError, match="beyond 65535"):
        choose_endpoints(load(None, ["--actor.metrics_port", "65535", "--actor.count", "2"]))
