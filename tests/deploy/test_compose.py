"""The compose files on a real engine: built, started, hurt in every way, stopped, and resumed.

Every test leaves the box running for the next one. What stands in for official images is in stand_ins.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List
from urllib.parse import quote

import pytest

from tests.deploy import stand_ins
from tests.deploy.engine import Engine, Project, missing_tools, run
from tests.deploy.machines import CommandFailed
from tests.deploy.wheels import CHECKOUT

pytestmark = pytest.mark.timeout(900)

DEPLOY = CHECKOUT / "deploy"
COMPOSE = DEPLOY / "compose.yaml"
RUN = "box"
SERVICES = ("replay", "learner", "evaluator", "actor", "prometheus", "grafana")
JOBS = ("replay", "learner", "evaluator", "actor", "prometheus")
OWN_IMAGES = ("replay", "actor", "learner")
STOP_S = 10.0
CHOSEN = "chosen-in-the-settings-0a1b2c"  # of Grafana
PATIENCE_S = 300.0  # seconds suffice where nothing else runs; a busy machine may take them


class Box:
    """One box with the shipped compose file, and questions to it."""

    def __init__(self, engine: Engine, project: Project, run_files: Path) -> None:
        self.engine = engine
        self.project = project
        self.run_files = run_files

    def evaluations(self) -> List[Dict[str, Any]]:
        """The learning curve of the run."""
        curve = []
        with contextlib.suppress(OSError):
            for line in (self.engine.volume("shoal_runs") / RUN / "evaluations.jsonl").read_text().splitlines():
                with contextlib.suppress(ValueError):
                    curve.append(json.loads(line))
        return curve

    def updates(self) -> int:
        """Behind the last version that was judged."""
        curve = self.evaluations()
        return int(curve[-1]["updates"]) if curve else 0

    def until(self, holds: Callable[[], Any], what: str, deadline_s: float = PATIENCE_S) -> float:
        """Wait until something holds; returns the seconds that it took."""
        began = time.monotonic()
        while not holds():
            if time.monotonic() - began > deadline_s:
                pytest.fail(f"{what}: not within {deadline_s} s\n{self.why_not()}")
            time.sleep(0.3)
        return time.monotonic() - began

    def trains_on(self) -> float:
        """Wait until the learner is 100 updates further than now, and a version of it was judged."""
        before = self.updates()
        return self.until(lambda: self.updates() >= before + 100, "training goes on")

    def why_not(self) -> str:
        """What the services say, for a failed test."""
        said = [
            f"--- {service}: {self.project.state(service)}\n{self.project.logs(service, 12)}" for service in SERVICES
        ]
        return "\n".join(said)

    def _prometheus(self, path: str) -> Any:
        """What Prometheus answers, or nothing while it does not."""
        with contextlib.suppress(CommandFailed, ValueError):
            return json.loads(self.engine.fetch(f"http://127.0.0.1:9090/api/v1/{path}"))["data"]
        return {}

    def targets(self) -> Dict[str, List[str]]:
        """Job -> health of each of its targets, as Prometheus sees them."""
        found: Dict[str, List[str]] = {job: [] for job in JOBS}
        for target in self._prometheus("targets?state=active").get("activeTargets", []):
            found[target["labels"]["job"]].append(target["health"])
        return found

    def query(self, expression: str) -> float:
        """The sum of what Prometheus answers."""
        return sum(
            float(series["value"][1])
            for series in self._prometheus(f"query?query={quote(expression)}").get("result", [])
        )

    def acting(self) -> int:
        """Actors that have made steps in the last seconds."""
        return int(self.query("sum(rate(shoal_actor_produced_steps_total[20s]) > bool 0)"))

    def operator(self, *words: str) -> str:
        """`shoal WORDS` as the compose file's operator."""
        return self.project("run", "--rm", "operator", *words, check=False)

    def audit_holds(self) -> bool:
        """Whether every acknowledged step is accounted for."""
        said = self.operator("audit")
        return "BROKEN" not in said and "holds" in said


def setting(name: str) -> str:
    """The default of a setting of the compose file."""
    (value,) = set(re.findall(rf"\$\{{{name}:-([^}}]*)\}}", COMPOSE.read_text()))
    assert isinstance(value, str)
    return value


def endless_run(folder: Path) -> None:
    """The default arm, without an end, judged briefly."""
    text = (CHECKOUT / "configs" / "arm_reach.toml").read_text()
    for had, has in (("max_updates = 5_000", "max_updates = 10_000_000"), ("episodes = 100", "episodes = 20")):
        assert had in text
        text = text.replace(had, has)
    (folder / "box.toml").write_text(text)


@pytest.fixture(scope="module")
def box(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Box]:
    lacks = missing_tools()
    if lacks:
        pytest.fail(f"NOT TESTED: docker compose; this machine lacks {', '.join(lacks)}")
    folder = tmp_path_factory.mktemp("engine")
    run_files = tmp_path_factory.mktemp("run-files")
    run_files.chmod(0o755)
    endless_run(run_files)
    with Engine(folder) as engine:
        stand_ins.make(
            engine,
            stand_ins.debian_root(),
            folder / "contexts",
            prometheus=setting("PROMETHEUS_VERSION"),
            grafana=setting("GRAFANA_VERSION"),
        )
        settings = {"SHOAL_RUN_FILES": str(run_files), "SHOAL_RUN_FILE": "box.toml", "SHOAL_RUN_NAME": RUN}
        settings["GRAFANA_PASSWORD"] = CHOSEN
        project = Project(engine, [COMPOSE], settings)
        project("build", timeout_s=600)
        project("up", "--detach", "--wait", "--wait-timeout", "300", timeout_s=330)
        yield Box(engine, project, run_files)
    assert engine.leftovers() == []


def test_the_box_is_healthy_and_trains_over_tls(box: Box) -> None:
    assert {service: set(box.project.state(service)) for service in SERVICES} == {
        name: {"healthy"} for name in SERVICES
    }
    assert box.project.state("keys") == ["exited 0"]
    box.trains_on()
    assert box.audit_holds()


def test_prometheus_reaches_every_service(box: Box) -> None:
    all_up = {job: ["up", "up"] if job == "actor" else ["up"] for job in JOBS}
    box.until(lambda: box.targets() == all_up, f"{all_up} rather than {box.targets()}")
    box.until(lambda: box.query("shoal_learner_updates_total") > 0, "the learner's progress is in Prometheus")


def test_grafana_finds_its_password_and_what_it_provisions(box: Box) -> None:
    facts = json.loads(box.engine.fetch("http://127.0.0.1:3000/"))
    assert facts["password_length"] == len(CHOSEN)
    assert facts["folders"] == ["/etc/grafana/provisioning", "/var/lib/grafana/dashboards"]
    shipped = sum(1 for part in ("provisioning", "dashboards") for file in (DEPLOY / "grafana" / part).rglob("*.*"))
    assert len(facts["files"]) == shipped


def test_the_learner_reads_its_rows_from_the_mapped_ring(box: Box) -> None:
    said = box.project.logs("learner")
    assert "rows come from the mapped ring" in said
    assert "rows come over gRPC" not in said
    init = box.project.main_process("learner")
    (learner,) = Path(f"/proc/{init}/task/{init}/children").read_text().split()
    assert f"/var/lib/shoal/ring/{RUN}/columns/" in Path(f"/proc/{learner}/maps").read_text()


@pytest.mark.parametrize("service", SERVICES)
def test_the_sandbox_is_in_force(box: Box, service: str) -> None:
    status = Path(f"/proc/{box.project.main_process(service)}/status").read_text()
    facts = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert facts["NoNewPrivs"] == "1"
    assert int(facts["CapEff"], 16) == int(facts["CapBnd"], 16) == 0
    assert facts["Uid"].split()[0] == {"prometheus": "65534", "grafana": "472"}.get(service, "10001")
    container = box.project.containers(service)[0]
    assert "Read-only" in box.engine.docker("exec", "--user", "0", container, "touch", "/usr/x", check=False)


def test_each_service_sees_its_own_secrets_alone_and_nobody_tells_them(box: Box) -> None:
    volumes = {name: box.engine.volume(f"shoal_keys-{name}") for name in ("learner", "evaluator", "actor", "operator")}
    tokens = {name: (volume / "token").read_text().strip() for name, volume in volumes.items()}
    assert len(set(tokens.values())) == 4
    for service in ("learner", "evaluator", "actor"):
        seen = box.project(
            "exec", "-T", service, "sh", "-c", "cat /pki/* /var/lib/shoal/keys/*/* 2>/dev/null", check=False
        )
        assert [name for name, token in tokens.items() if token in seen] == [service]
    assert (box.engine.volume("shoal_keys-grafana") / "password").read_text() == CHOSEN
    monitor = (box.engine.volume("shoal_keys-prometheus") / "token").read_text().strip()
    told = box.engine.docker("inspect", *box.engine.docker("ps", "-aq").split()) + box.project("logs", "--no-color")
    told += "".join(box.engine.docker("history", "--no-trunc", image(name)) for name in OWN_IMAGES)
    for secret in (*tokens.values(), CHOSEN, monitor, "PRIVATE KEY"):
        assert secret not in told


def image(name: str) -> str:
    """The tag of an image of ours."""
    return f"shoal/{name}:{setting('SHOAL_VERSION')}"


def test_images_are_labelled_small_and_hold_no_more_than_they_need(
    box: Box, capsys: pytest.CaptureFixture[str]
) -> None:
    base = int(box.engine.inspect("python:3.11-slim")["Size"])
    sizes = {name: int(box.engine.inspect(image(name))["Size"]) - base for name in OWN_IMAGES}
    with capsys.disabled():
        print(
            "\nimages beyond their base: " + ", ".join(f"{name} {size / 1e6:,.0f} MB" for name, size in sizes.items())
        )
    for name in OWN_IMAGES:
        facts = box.engine.inspect(image(name))["Config"]
        assert facts["User"] == "shoal"
        labels = {key.rpartition(".")[2]: value for key, value in facts["Labels"].items() if "opencontainers" in key}
        assert labels["title"] == f"shoal-{name}"
        assert labels["version"] == setting("SHOAL_VERSION")
        find = "import importlib.util as u; print([m for m in ('torch', 'mujoco', 'services') if u.find_spec(m)])"
        has = box.engine.docker("run", "--rm", "--network", "none", "--entrypoint", "python", image(name), "-c", find)
        assert has.strip() == str(
            {"replay": ["services"], "actor": ["mujoco", "services"]}.get(name, ["torch", "services"])
        )
    assert sizes["replay"] < 300e6
    assert sizes["actor"] < 600e6


@pytest.mark.parametrize("service", SERVICES)
def test_a_killed_process_is_started_again(box: Box, service: str) -> None:
    killed = box.project.main_process(service)
    os.kill(killed, signal.SIGKILL)
    box.until(lambda: box.project.main_process(service) not in {0, killed}, f"{service} is back")
    box.trains_on()


def test_an_actor_that_was_started_again_is_the_same_actor(box: Box) -> None:
    names = re.findall(r" of (actor-\w+)", box.operator("audit"))
    assert set(names) == {f"actor-{container[:12]}" for container in box.project.containers("actor")}


def test_killed_containers_stay_down_until_up_brings_them_back(box: Box) -> None:
    for service in SERVICES:  # an operator's `docker kill` is no crash
        box.project("kill", service)
    assert {name: set(box.project.state(name)) for name in SERVICES} == {name: {"exited 137"} for name in SERVICES}
    box.project("up", "--detach", "--no-build")
    box.trains_on()


def test_nothing_was_lost_when_services_were_killed(box: Box) -> None:
    assert box.audit_holds()
    assert "rows come over gRPC" not in box.project.logs("learner")


def test_a_partition_of_an_actor_heals(box: Box) -> None:
    container = box.project.containers("actor")[0]
    box.engine.docker("network", "disconnect", "shoal_shoal", container)
    box.until(lambda: sorted(box.targets()["actor"]) != ["up", "up"], "Prometheus misses it")
    began = box.project.main_process("actor")
    box.engine.docker("network", "connect", "--alias", "actor", "shoal_shoal", container)
    box.until(lambda: box.targets()["actor"] == ["up", "up"], "Prometheus reaches it again")
    box.until(lambda: box.acting() == 2, "both actors act")
    assert box.project.main_process("actor") == began  # the same life
    box.trains_on()
    assert box.audit_holds()


def test_actors_are_added_and_taken_away(box: Box) -> None:
    box.project("up", "--detach", "--scale", "actor=3", "--no-recreate")
    box.until(lambda: box.targets()["actor"] == ["up"] * 3, "Prometheus reaches three actors")
    box.until(lambda: box.acting() == 3, "three actors act")
    box.project("up", "--detach", "--scale", "actor=2", "--no-recreate")
    box.until(lambda: box.targets()["actor"] == ["up"] * 2, "Prometheus reaches two actors")


def test_training_reaches_the_bar(box: Box) -> None:
    reached = lambda: any(judged["success_rate"] >= 0.9 for judged in box.evaluations())  # noqa: E731
    box.until(reached, "90 % of the episodes succeed")


def test_the_box_comes_back_by_itself_when_it_loses_its_power(box: Box) -> None:
    box.engine.lose_power()
    box.engine.start()
    box.trains_on()
    assert box.audit_holds()


def test_a_stop_is_graceful_and_within_ten_seconds(box: Box) -> None:
    began = time.monotonic()
    box.project("stop")
    took = time.monotonic() - began
    states = {service: box.project.state(service) for service in SERVICES}
    assert all(set(state) == {"exited 0"} for state in states.values()), f"{states}\n{box.why_not()}"
    assert took < STOP_S + 2, f"{took:.1f} s"


def test_a_run_goes_on_with_its_data_after_down_and_up(box: Box) -> None:
    before = box.updates()
    went_down_s = time.time()
    box.project("down")
    assert box.engine.docker("ps", "-aq").strip() == ""
    box.project("up", "--detach", "--wait", "--wait-timeout", "300", timeout_s=330)
    (back,) = [line for line in box.project.logs("replay").splitlines() if "the ring is back" in line]
    assert json.loads(back.partition("| ")[2])["rows"] > 1000
    (resumed,) = [line for line in box.project.logs("learner").splitlines() if '"resumed"' in line]
    resumed_at = json.loads(resumed.partition("| ")[2])["updates"]
    assert resumed_at >= before
    box.trains_on()
    # What Prometheus saw before is still there.
    box.until(lambda: 0 < box.query("min(min_over_time(timestamp(up)[1h:5s]))") < went_down_s, "history is kept")


def test_a_finished_run_stays_finished_and_is_reported(box: Box) -> None:
    file = box.run_files / "box.toml"
    file.write_text(file.read_text().replace("max_updates = 10_000_000", f"max_updates = {box.updates() + 500}"))
    box.project("restart", "learner")
    for service in ("learner", "actor", "evaluator"):
        box.until(lambda s=service: set(box.project.state(s)) == {"exited 0"}, f"{service} has ended")
    assert box.project.state("replay") != ["exited 0"]
    said = box.operator("eval", f"/var/lib/shoal/runs/{RUN}", "--episodes", "100", "--no-video")
    found = re.search(r"success on held-out goals +([0-9.]+)%", said)
    assert found, said
    assert float(found.group(1)) >= 90


@pytest.mark.parametrize("overlay", ["compose.gpu.yaml", "compose.isaac-gym.yaml"])
def test_overlays_fit(box: Box, overlay: str) -> None:
    settings = {**box.project.settings, "ISAAC_GYM_IMAGE": "my/isaac-gym:4"}
    config = json.loads(Project(box.engine, [COMPOSE, DEPLOY / overlay], settings)("config", "--format", "json"))
    services = ("learner",) if "gpu" in overlay else ("actor", "evaluator")
    for name in services:
        service = config["services"][name]
        assert service["deploy"]["resources"]["reservations"]["devices"][0]["capabilities"] == ["gpu"]
        assert service["read_only"] is True
    if "gpu" in overlay:
        assert config["services"]["learner"]["build"]["args"]["TORCH_INDEX"] == ""
        assert config["services"]["learner"]["environment"]["SHOAL_LEARNER__DEVICE"] == "cuda"
    else:
        assert config["services"]["actor"]["build"]["args"]["ISAAC_GYM_IMAGE"] == "my/isaac-gym:4"
        assert not config["services"]["actor"]["build"].get("target")
        refused = Project(box.engine, [COMPOSE, DEPLOY / overlay], {})("config", check=False)
        assert "an image of yours with Isaac Gym" in refused


def test_rules_and_scrapes_are_valid() -> None:
    run("promtool", "check", "config", "--syntax-only", str(DEPLOY / "prometheus" / "prometheus.yml"))
