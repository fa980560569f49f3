"""The machines of docs/four-machines.md, set up by its commands, and questions to them."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Sequence

import pytest

from tests.deploy.machines import Machine, Network, root_file_system
from tests.deploy.page import Step, steps_of
from tests.deploy.wheels import CHECKOUT, build_wheel, wheelhouse

PAGE = CHECKOUT / "docs" / "four-machines.md"
UNITS = {
    "replay": ("shoal-replay@0",),
    "learner": ("shoal-learner", "shoal-evaluator"),
    "actor1": ("shoal-actor@0",),
    "actor2": ("shoal-actor@0",),
}
SERVICES = [(machine, unit) for machine, units in UNITS.items() for unit in units]
RUN = "/var/lib/shoal/runs/four-machines"
# Packages and wheels come from folders here, since the machines have no internet: all else is as the page has it.
PIP_FROM_FOLDER = "[global]\nno-index = true\nfind-links = /wheels\ndisable-pip-version-check = true\n"


class Cluster:
    """The machines, and questions to them."""

    def __init__(self, machines: Dict[str, Machine], network: Network, wheels: Path) -> None:
        self.machines = machines
        self.network = network
        self.wheels = wheels
        self.steps = steps_of(PAGE)
        self.said: Dict[str, str] = {}  # heading and machine -> what the page's commands printed

    def __getitem__(self, name: str) -> Machine:
        return self.machines[name]

    def follow(self, steps: Sequence[Step]) -> None:
        """Run blocks of the page in order; one that is for several machines runs on them at once."""
        for step in steps:
            if len(step.machines) == 1:
                outputs = [self._type(step.machines[0], step)]
            else:
                with ThreadPoolExecutor(len(step.machines)) as pool:
                    outputs = list(pool.map(lambda name, step=step: self._type(name, step), step.machines))
            for name, output in zip(step.machines, outputs):
                self.said[f"{step.heading} {name}"] = self.said.get(f"{step.heading} {name}", "") + output

    def _type(self, name: str, step: Step) -> str:
        return self[name].run(f"set -eo pipefail\n{step.script}", timeout_s=900)

    def show(self, machine: str, unit: str, what: str) -> str:
        """A property of a unit."""
        return self[machine].run(f"systemctl show -p {what} --value {unit}", check=False).strip()

    def is_up(self, machine: str, unit: str) -> bool:
        return self.show(machine, unit, "ActiveState") == "active"

    def pid(self, machine: str, unit: str) -> str:
        return self.show(machine, unit, "MainPID")

    def why_not(self) -> str:
        """What the journals say, for a failed test."""
        parts = []
        for name, unit in SERVICES:
            parts.append(f"--- {name} {unit}: {self.show(name, unit, 'ActiveState')}")
            parts.append(self[name].run(f"journalctl -u {unit} --no-pager -n 12 -o cat", check=False))
        return "\n".join(parts)

    def operator(self, command: str) -> str:
        """`shoal COMMAND` on the first machine, with the operator's token, as the page does it."""
        said = "SHOAL_SECURITY__CA=pki/ca.pem SHOAL_SECURITY__TOKEN=pki/operator.token"
        return self["replay"].run(f"{said} shoal {command} 2>&1", check=False)

    def updates(self) -> int:
        """Of the learner, as it tells systemd; 0 while it says something else."""
        found = re.match(r"(\d+) of \d+ updates", self.show("learner", "shoal-learner", "StatusText"))
        return int(found.group(1)) if found else 0

    def acknowledged(self, machine: str) -> int:
        """Steps of this life of an actor that the replay has acknowledged."""
        found = re.match(r"(\d+) steps acknowledged", self.show(machine, "shoal-actor@0", "StatusText"))
        return int(found.group(1)) if found else 0

    def success(self) -> float:
        """The success rate of the last policy that was judged."""
        text = self["learner"].run(f"tail -n 1 {RUN}/evaluations.jsonl", check=False)
        with contextlib.suppress(ValueError):
            return float(json.loads(text)["success_rate"])
        return 0.0

    def until(self, holds: Callable[[], Any], what: str, deadline_s: float = 120.0) -> float:
        """Wait until something holds; returns the seconds that it took."""
        began = time.monotonic()
        while not holds():
            if time.monotonic() - began > deadline_s:
                pytest.fail(f"{what}: not within {deadline_s} s\n{self.why_not()}")
            time.sleep(0.3)
        return time.monotonic() - began

    def all_up(self, deadline_s: float = 120.0) -> None:
        for machine, unit in SERVICES:
            self.until(lambda m=machine, u=unit: self.is_up(m, u), f"{unit} on {machine} is up", deadline_s)

    def trains_on(self, deadline_s: float = 180.0) -> None:
        """Wait until training has gone on for 100 updates from where it is, or is after its restart."""
        before = 0

        def has_trained() -> bool:
            nonlocal before
            now = self.updates()
            before = min(before, now) if before and now else now or before
            return bool(before) and now >= before + 100

        self.until(has_trained, "training goes on", deadline_s)
        audit = self.operator("audit shoal.toml")
        assert "BROKEN" not in audit, audit

    def query(self, expression: str) -> Dict[str, float]:
        """Prometheus' answer, asked over the network: value by the target's address."""
        ask = (
            "import json, sys, urllib.parse, urllib.request; "
            f"url = 'http://{self['replay'].address}:9090/api/v1/query?query=' + urllib.parse.quote(sys.argv[1]); "
            "opener = urllib.request.build_opener(urllib.request.ProxyHandler({})); "
            "print(opener.open(url, timeout=5).read().decode())"
        )
        command = self.network.command(sys.executable, "-c", ask, expression)
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        if done.returncode != 0:
            return {}
        found = json.loads(done.stdout)["data"]["result"]
        return {each["metric"].get("instance", ""): float(each["value"][1]) for each in found}


@contextlib.contextmanager
def four_machines(folder: Path) -> Iterator[Cluster]:
    """Boot them with what the page takes for granted: names, root by ssh, and shoal's files in root's home."""
    wheel = build_wheel(folder)
    wheels = wheelhouse(wheel, "learner,sim")
    base = root_file_system()
    with contextlib.ExitStack() as stack:
        network = stack.enter_context(Network())
        machines: Dict[str, Machine] = {}
        for name in UNITS:
            machines[name] = stack.enter_context(Machine(name, network, folder, base, {"/wheels": wheels}))
        _let_them_meet(machines)
        first = machines["replay"].root / "root"
        (first / wheel.name).write_bytes(wheel.read_bytes())
        copied = [str(CHECKOUT / "deploy" / name) for name in ("systemd", "prometheus")]
        subprocess.run(["cp", "-r", *copied, str(first)], check=True)
        yield Cluster(machines, network, wheels)


def _let_them_meet(machines: Dict[str, Machine]) -> None:
    names = "".join(f"{machine.address} {name}\n" for name, machine in machines.items())
    machines["replay"].run("mkdir -p -m 700 .ssh; ssh-keygen -q -t ed25519 -N '' -f .ssh/id_ed25519")
    key = (machines["replay"].root / "root" / ".ssh" / "id_ed25519.pub").read_text()
    machines["replay"].write("/root/.ssh/config", "StrictHostKeyChecking accept-new\n")
    for name, machine in machines.items():
        machine.write("/etc/hosts", f"127.0.0.1 localhost\n{names}")
        machine.write("/etc/pip.conf", PIP_FROM_FOLDER)
        machine.write("/etc/apt/sources.list", "")
        machine.run("mkdir -p -m 700 .ssh")
        machine.write("/root/.ssh/authorized_keys", key, 0o600)
        if name != "replay":  # only there does the page install it
            machine.run("systemctl disable --now prometheus 2>&1")


def numbered(steps: List[Step]) -> List[Step]:
    """The page's main line: sections with a number."""
    return [step for step in steps if step.heading[:1].isdigit()]
