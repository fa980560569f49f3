"""Three machines with a real systemd, installed from the wheel: replay, learner with evaluator, actors.

They talk over a network with TLS and tokens. Every test leaves the system running for the next one.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from pathlib import Path
from typing import Any, Callable, Dict, Iterator

import pytest

from tests.deploy.machines import Machine, Network, missing_tools, root_file_system
from tests.deploy.wheels import CHECKOUT, build_wheel, wheelhouse

UNITS = {
    "box1": ("shoal-replay@0",),
    "box2": ("shoal-learner", "shoal-evaluator"),
    "box3": ("shoal-actor@0", "shoal-actor@1"),
}
PIP = "-- --no-index --find-links /wheels --quiet"
RUN_FILE = """\
[run]
name = "machines"

[env]
lanes = 16

[actor]
count = 2
chunk_steps = 16

[replay]
addresses = ["replay.lab:7401"]
samples_per_insert = 32
min_size_to_sample = 1000

[learner]
address = "learner.lab:7402"
max_updates = 10_000_000
batch_size = 128

[metrics]
host = "0.0.0.0"

[security]
ca = "/etc/shoal/ca.pem"
certificate = "/etc/shoal/machine.pem"
key = "/etc/shoal/machine-key.pem"
"""


class Cluster:
    """The machines, and questions to them."""

    def __init__(self, machines: Dict[str, Machine]) -> None:
        self.machines = machines

    def __getitem__(self, name: str) -> Machine:
        return self.machines[name]

    def state(self, machine: str, unit: str) -> str:
        return self[machine].run(f"systemctl is-active {unit}", check=False).strip()

    def why_not(self) -> str:
        """What the journals say, for a failed test."""
        parts = []
        for name, units in UNITS.items():
            for unit in units:
                parts.append(f"--- {name} {unit}: {self.state(name, unit)}")
                parts.append(self[name].run(f"journalctl -u {unit} --no-pager -n 12 -o cat", check=False))
        return "\n".join(parts)

    def operator(self, command: str) -> str:
        """`shoal COMMAND` on the first machine, with the operator's token."""
        return self["box1"].run(
            f"SHOAL_SECURITY__TOKEN=/root/pki/operator.token /opt/shoal/bin/shoal {command} /etc/shoal/shoal.toml",
            check=False,
        )

    def updates(self) -> int:
        """Behind the last version that was judged."""
        text = self["box2"].run("tail -n 1 /var/lib/shoal/runs/machines/evaluations.jsonl", check=False)
        with contextlib.suppress(ValueError):
            return int(json.loads(text)["updates"])
        return 0

    def until(self, holds: Callable[[], Any], what: str, deadline_s: float = 60.0) -> float:
        """Wait until something holds; returns the seconds that it took."""
        began = time.monotonic()
        while not holds():
            if time.monotonic() - began > deadline_s:
                pytest.fail(f"{what}: not within {deadline_s} s\n{self.why_not()}")
            time.sleep(0.3)
        return time.monotonic() - began

    def trains_on(self, deadline_s: float = 60.0) -> float:
        """Wait until the learner is 300 updates further than now."""
        before = self.updates()
        return self.until(lambda: self.updates() >= before + 300, "training goes on", deadline_s)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    lacks = missing_tools()
    if lacks:
        pytest.fail(f"NOT TESTED: systemd; this machine lacks {', '.join(lacks)}")
    folder = tmp_path_factory.mktemp("systemd")
    wheel = build_wheel(folder)
    binds = {"/wheels": wheelhouse(wheel, "learner,sim,report"), "/deploy": CHECKOUT / "deploy" / "systemd"}
    base = root_file_system()
    with contextlib.ExitStack() as stack:
        network = stack.enter_context(Network(f"net-{folder.name[-8:]}"))
        first = stack.enter_context(Machine("box1", network, folder, [base], binds))
        _install(first, wheel)
        # The others begin where the installer has left the first one: that it works is seen once.
        first.power_off()
        subprocess.run(["sync"], check=True)
        installed = [first.upper, base]
        machines = {"box1": first}
        for name in ("box2", "box3"):
            machines[name] = stack.enter_context(Machine(name, network, folder, installed, binds))
        first.boot()
        _configure(machines)
        yield Cluster(machines)


def _install(machine: Machine, wheel: Path) -> None:
    target = machine.root / "root" / wheel.name
    target.write_bytes(wheel.read_bytes())
    command = f"bash /deploy/install.sh --wheel /root/{wheel.name} --extras learner,sim,report {PIP}"
    said = machine.run(command, timeout_s=600)
    assert "is installed in /opt/shoal" in said
    again = machine.run(command, timeout_s=600)  # idempotent: settings stay
    assert "is installed in /opt/shoal" in again


def _configure(machines: Dict[str, Machine]) -> None:
    shoal = "/opt/shoal/bin/shoal"
    first = machines["box1"]
    first.run(f"{shoal} certs init /root/pki")
    hosts = {"box1": "replay.lab", "box2": "learner.lab", "box3": "actors.lab"}
    names = "\n".join(f"{machines[name].address} {host}" for name, host in hosts.items())
    for name, host in hosts.items():
        first.run(f"{shoal} certs issue /root/pki {name} {machines[name].address} {host}")
    pki = first.root / "root" / "pki"
    roles = {"box1": (), "box2": ("learner", "evaluator"), "box3": ("actor",)}
    for name, machine in machines.items():
        machine.write("/etc/hosts", f"127.0.0.1 localhost\n{names}\n", 0o644, "root:root")
        text = RUN_FILE
        if name == "box1":
            text = text.replace("[replay]", '[replay]\nlisten = "0.0.0.0:7401"')
        if name == "box2":
            text = text.replace("[learner]", '[learner]\nlisten = "0.0.0.0:7402"')
        machine.write("/etc/shoal/shoal.toml", text)
        machine.write("/etc/shoal/ca.pem", (pki / "ca.pem").read_text())
        machine.write("/etc/shoal/machine.pem", (pki / f"{name}.pem").read_text())
        machine.write("/etc/shoal/machine-key.pem", (pki / f"{name}-key.pem").read_text())
        machine.write("/etc/shoal/tokens.toml", (pki / "tokens.toml").read_text())
        for role in roles[name]:
            machine.write(f"/etc/shoal/{role}.token", (pki / f"{role}.token").read_text())


def test_services_started_in_any_order_train_over_tls(cluster: Cluster) -> None:
    for name in ("box3", "box2", "box1"):
        cluster[name].run(f"systemctl enable --now --no-block {' '.join(UNITS[name])}")
    for name, units in UNITS.items():
        for unit in units:
            cluster.until(lambda n=name, u=unit: cluster.state(n, u) == "active", f"{unit} is up", 120)
    cluster.trains_on(120)
    assert "BROKEN" not in cluster.operator("audit")
    assert "holds" in cluster.operator("audit")


def test_a_caller_without_the_token_of_its_role_is_refused(cluster: Cluster) -> None:
    box = cluster["box3"]
    for token, says in (("", "set security.ca and security.token"), ("actor", "may not call")):
        setting = f"--security.token /etc/shoal/{token}.token" if token else "--security.token ''"
        said = box.run(
            f"/opt/shoal/bin/shoal replay items replay.lab:7401 --security.ca /etc/shoal/ca.pem {setting} 2>&1",
            check=False,
        )
        assert says in said
    script = (
        "import ssl, urllib.request; context = ssl.create_default_context(cafile='/etc/shoal/ca.pem'); "
        "urllib.request.urlopen('https://replay.lab:9401/metrics', context=context)"
    )
    metrics = box.run(f'/opt/shoal/bin/python -c "{script}" 2>&1', check=False)
    assert "401" in metrics


@pytest.mark.parametrize(
    ("machine", "unit"), [("box1", "shoal-replay@0"), ("box2", "shoal-learner"), ("box3", "shoal-actor@0")]
)
def test_a_killed_service_is_restarted_and_training_goes_on(cluster: Cluster, machine: str, unit: str) -> None:
    cluster[machine].run(f"systemctl kill -s KILL {unit}")
    cluster.until(lambda: cluster.state(machine, unit) == "active", f"{unit} is back", 90)
    cluster.trains_on(90)
    assert "BROKEN" not in cluster.operator("audit")


@pytest.mark.parametrize("machine", sorted(UNITS))
def test_a_machine_that_loses_its_power_comes_back_by_itself(cluster: Cluster, machine: str) -> None:
    cluster[machine].power_off()
    cluster[machine].boot()
    cluster.trains_on(150)


def test_a_partition_heals(cluster: Cluster) -> None:
    with cluster["box3"].unplugged():
        time.sleep(8)
    cluster.trains_on(90)
    assert "BROKEN" not in cluster.operator("audit")


def test_a_service_that_makes_no_progress_is_restarted_and_one_that_waits_is_not(cluster: Cluster) -> None:
    cluster["box1"].run(
        "mkdir -p /run/systemd/system/shoal-replay@0.service.d && "
        "printf '[Service]\\nWatchdogSec=4\\n' > /run/systemd/system/shoal-replay@0.service.d/quick.conf && "
        "systemctl daemon-reload && systemctl restart shoal-replay@0"
    )
    before = cluster["box1"].run("systemctl show -p MainPID --value shoal-replay@0").strip()
    cluster["box2"].run("systemctl stop shoal-learner")  # actors and replay wait now, and can say for what
    time.sleep(10)
    assert cluster["box1"].run("systemctl show -p MainPID --value shoal-replay@0").strip() == before
    cluster["box2"].run("systemctl start shoal-learner")
    cluster["box1"].run(f"kill -STOP {before}")
    cluster.until(
        lambda: cluster["box1"].run("systemctl show -p MainPID --value shoal-replay@0").strip() not in {before, "0"},
        "the watchdog restarts a replay that is stuck",
        60,
    )
    cluster.trains_on(90)


def test_the_sandbox_is_in_force(cluster: Cluster) -> None:
    pid = cluster["box2"].run("systemctl show -p MainPID --value shoal-learner").strip()
    status = cluster["box2"].run(f"cat /proc/{pid}/status")
    facts = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert facts["NoNewPrivs"] == "1"
    assert facts["Seccomp"] == "2"
    assert int(facts["CapEff"], 16) == 0
    assert cluster["box2"].run("id -u shoal").strip() == facts["Uid"].split()[0]
    inside = f"nsenter -t {pid} -m -- sh -c"
    assert "Read-only" in cluster["box2"].run(f"{inside} 'touch /usr/x' 2>&1", check=False)
    assert cluster["box2"].run(f"{inside} 'ls /home /root' 2>&1", check=False).count("shoal") == 0


def test_a_stop_is_graceful_and_within_ten_seconds(cluster: Cluster) -> None:
    for name, units in UNITS.items():
        for unit in units:
            began = time.monotonic()
            cluster[name].run(f"systemctl stop {unit}")
            took = time.monotonic() - began
            result = cluster[name].run(f"systemctl show -p Result --value {unit}").strip()
            assert (result, took < 12) == ("success", True), f"{unit}: {result} after {took:.1f} s\n{cluster.why_not()}"


def test_uninstalling_leaves_data_and_purging_nothing(cluster: Cluster) -> None:
    box = cluster["box3"]
    box.run("bash /deploy/install.sh --uninstall")
    assert box.run("ls -d /opt/shoal /etc/systemd/system/shoal* 2>/dev/null", check=False) == ""
    assert "shoal.toml" in box.run("ls /etc/shoal")
    box.run("bash /deploy/install.sh --uninstall --purge")
    assert box.run("ls -d /etc/shoal /var/lib/shoal 2>/dev/null", check=False) == ""
