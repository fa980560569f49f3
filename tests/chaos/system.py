"""The whole system as processes: each service started, killed, frozen and stopped by hand, wherever it runs."""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Dict, Iterator, List, Mapping, Optional, Sequence, Set, Tuple

from services.cli import certs_command
from services.cli.target import Addresses, Target
from services.common.config.security import SecuritySection
from tests.chaos.cables import Cables
from tests.chaos.proc import MARK, busy_s, state
from tests.chaos.pushes import FOLDER, RESENDS

ROOT = Path(__file__).resolve().parents[2]
RUN = "chaos"
MODULES = {
    "replay": "services.replay",
    "learner": "services.learner",
    "helper": "tests.chaos.journaled_helper",
    "evaluator": "services.actor.evaluator",
    "actor": "services.actor",
}
STOP_S = 10.0  # a service that is asked to stop has gone by then
CHECKPOINT_PERIOD = "learner.checkpoint_period_s"
# After what the harness does to a service has ended, what those who talk with it do is its doing still for so long.
CALM_S = 10.0
LOOPBACK, CABLES, TLS = "loopback", "cables", "tls"

# Small and quick: what is tested is not how well it learns.
SETTINGS: Mapping[str, str] = {
    "env.lanes": "8",
    "td3.hidden_sizes": "[64, 64]",
    "replay.capacity": "150000",
    "replay.discount": "0.95",
    "replay.samples_per_insert": "32",
    "replay.min_size_to_sample": "500",
    "learner.batch_size": "64",
    "learner.max_updates": "1000000",
    CHECKPOINT_PERIOD: "2",
    "evaluator.episodes": "10",
    "gradients.lease_s": "2",
}


def role_of(name: str) -> str:
    """`actor` of `actor-0`."""
    return name.partition("-")[0]


def service_environ() -> Dict[str, str]:
    """The environment of every process of this checkout."""
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "proto")]),
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
        "MALLOC_ARENA_MAX": "2",
    }


def free_ports(count: int) -> List[int]:
    """Ports of loopback where nobody listens."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


class System:
    """Processes of one run, each with a log of its own. `close` ends whatever is left."""

    def __init__(
        self,
        folder: Path,
        mark: str,
        *,
        layout: str = LOOPBACK,
        with_helper: bool = False,
        settings: Optional[Mapping[str, str]] = None,
        resends: float = 0.0,
    ) -> None:
        """Lay everything out; nothing is started.

        Args:
            folder: of this run and its logs.
            mark: by which its processes are known.
            layout: how services reach each other: "loopback", "cables" (a network each) or "tls" (with tokens).
            with_helper: whether a helper takes part.
            settings: keys of the run file.
            resends: chance that a chunk or a gradient is sent again in each of the ways that there are.
        """
        self.folder = folder
        self.mark = mark
        self.layout = layout
        self.run_folder = folder / "runs" / RUN
        self.journals = folder / "journals"
        self.pushes = folder / "pushes"  # the helpers' journals
        self.ring = folder / "rings" / RUN
        self.pki = folder / "pki"
        helpers = ("helper-0",) if with_helper else ()
        self.names: Tuple[str, ...] = ("replay", "learner", *helpers, "evaluator", "actor-0", "actor-1")
        self.cables = Cables(f"{mark}")
        self._prefix: Dict[str, List[str]] = {}  # of a service's command
        self._processes: Dict[str, subprocess.Popen[bytes]] = {}
        self.replaced: List[subprocess.Popen[bytes]] = []  # whose name another process has taken
        self._expected_ends: Set[int] = set()
        self.resources = contextlib.ExitStack()  # what scenarios put under it, given back when all processes are gone
        (folder / "logs").mkdir(parents=True)
        (folder / "rings").mkdir()
        (folder / "runs").mkdir()
        self._file = folder / "run.toml"
        self._resends = resends
        self._disturbed_s: Dict[str, float] = {}  # when the harness last did something to a service
        self._deaf: Set[str] = set()  # services that cannot do their work just now, as a scenario knows
        self._write_run_file({**SETTINGS, **(settings or {})})
        self._addresses = self._lay_out()

    def _write_run_file(self, settings: Mapping[str, str]) -> None:
        kwargs = f'{{ journal = "{self.journals}", resends = {self._resends} }}'
        self._file.write_text(
            f'[env]\nfactory = "tests.chaos.numbered_arm:make"\nkwargs = {kwargs}\n', encoding="utf-8"
        )
        self.checkpoint_period_s = float(settings[CHECKPOINT_PERIOD])
        self._flags = {
            "run.name": RUN,
            "run.folder": str(self.folder / "runs"),
            "replay.data_dir": str(self.folder / "rings"),
            "replay.metrics_port": "0",
            "learner.metrics_port": "0",
            "evaluator.metrics_port": "0",
            **settings,
        }

    def _lay_out(self) -> Dict[Tuple[str, str], str]:
        """Who finds whom where: (server, client) -> HOST:PORT; client "" is the harness."""
        clients = {
            "replay": ["learner", *(n for n in self.names if role_of(n) in ("actor", "helper")), ""],
            "learner": [*(n for n in self.names if role_of(n) in ("actor", "helper", "evaluator")), ""],
        }
        if self.layout != CABLES:
            ports = dict(zip(clients, free_ports(2)))
            found = {(server, each): f"127.0.0.1:{ports[server]}" for server in clients for each in clients[server]}
            self._flags.update({"replay.addresses": found["replay", ""], "learner.address": found["learner", ""]})
            if self.layout == TLS:
                self._make_pki()
            return found
        ports = {"replay": 7401, "learner": 7402}
        self._flags.update({"security.insecure": "true", "learner.transport": "grpc"})
        return {
            (server, client): f"{self.cables.plug(server, client)}:{ports[server]}"
            for server in clients
            for client in clients[server]
        }

    def _make_pki(self) -> None:
        with contextlib.redirect_stdout(io.StringIO()) as out:
            certs_command.run(["init", str(self.pki)], out)
        self.issue("machine")
        pair = {"security.certificate": "machine.pem", "security.key": "machine-key.pem", "security.ca": "ca.pem"}
        self._flags.update({key: str(self.pki / file) for key, file in pair.items()})
        self._flags["security.tokens"] = str(self.pki / "tokens.toml")

    def issue(self, name: str) -> None:
        """Make, or make again, the certificate of this machine."""
        certs_command.run(["issue", str(self.pki), name, "127.0.0.1"], io.StringIO())

    def target(self) -> Target:
        """Where and how the harness asks replay and learner."""
        addresses = Addresses(self._addresses["replay", ""], self._addresses["learner", ""])
        section = SecuritySection(insecure=True)
        if self.layout == TLS:
            section = SecuritySection(ca=str(self.pki / "ca.pem"), token=str(self.pki / "operator.token"))
        return Target(addresses, section)

    # --- processes -----------------------------------------------------------------------------------------------

    def command(self, name: str, flags: Optional[Mapping[str, str]] = None) -> List[str]:
        """The command of a service."""
        role = role_of(name)
        mine = dict(self._flags)
        if self.layout == CABLES:
            if role in ("replay", "learner"):
                mine[f"{role}.listen"] = f"0.0.0.0:{self._addresses[role, ''].rpartition(':')[2]}"
            for server, key in (("replay", "replay.addresses"), ("learner", "learner.address")):
                mine[key] = self._addresses.get((server, name), self._addresses[server, ""])
        if role == "actor":
            mine.update({"actor.name": name, "actor.index": name.rpartition("-")[2]})
        if role == "helper":
            mine.update({"helper.name": name, "helper.chief": self._addresses["learner", name]})
        if self.layout == TLS and role != "replay":
            mine["security.token"] = str(self.pki / f"{'learner' if role == 'helper' else role}.token")
        mine.update(flags or {})
        words = [word for key, value in mine.items() for word in (f"--{key}", value)]
        into = self.cables.into(name) if self.layout == CABLES else []
        return [*self._prefix.get(name, []), *into, sys.executable, "-m", MODULES[role], str(self._file), *words]

    def run_behind(self, name: str, prefix: Sequence[str]) -> None:
        """Start `name` by these words from now on; they must end by becoming the command that follows them."""
        self._prefix[name] = list(prefix)

    def start(self, name: str, flags: Optional[Mapping[str, str]] = None) -> float:
        """Start a service, in the place of one of its name; returns when, by the monotonic clock."""
        if name in self._processes and self.is_alive(name):
            self.replaced.append(self._processes[name])
        environ = {**service_environ(), MARK: self.mark, FOLDER: str(self.pushes), RESENDS: str(self._resends)}
        began_s = self._disturbed_s[name] = time.monotonic()
        with self.log_file(name).open("ab") as log:
            self._processes[name] = subprocess.Popen(
                self.command(name, flags),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environ,
                cwd=self.folder,
            )
        return began_s

    def move_to_another_machine(self, name: str) -> None:
        """The next life of a client has another network; what the last one left there stays as it is."""
        self.cables.leave(name)
        for (server, client), address in list(self._addresses.items()):
            if client == name:
                port = address.rpartition(":")[2]
                self._addresses[server, client] = f"{self.cables.plug(server, client)}:{port}"

    def start_all(self) -> None:
        for name in self.names:
            self.start(name)

    def pid(self, name: str) -> int:
        return self._processes[name].pid

    def busy_s(self, name: str) -> float:
        """See `tests.chaos.proc.busy_s`; of the present life."""
        return busy_s(self.pid(name)) if name in self._processes else 0.0

    def is_alive(self, name: str) -> bool:
        return self._processes[name].poll() is None

    def kill(self, name: str) -> None:
        """SIGKILL, and it is gone when this returns."""
        self.expect_end(name)
        self._processes[name].kill()
        self._processes[name].wait(STOP_S)

    def excused(self) -> Set[str]:
        """Actors whose silence is the harness's own doing: something is, or just was, done to them or to a server."""
        now_s = time.monotonic()
        for name in self.names:
            if name in self._processes and self._is_disturbed(name):
                self._disturbed_s[name] = now_s
        servers = max(self._disturbed_s.get(name, now_s) for name in ("replay", "learner"))
        actors = [name for name in self.names if role_of(name) == "actor"]
        return {n for n in actors if now_s - max(servers, self._disturbed_s.get(n, now_s)) < CALM_S}

    def _is_disturbed(self, name: str) -> bool:
        if name in self._deaf or not self.is_alive(name) or state(self.pid(name)) == "T":
            return True
        return any(self.cables.is_shaped(server, name) for server in ("replay", "learner"))

    @contextlib.contextmanager
    def disturbed(self, *names: str) -> Iterator[None]:
        """Meanwhile these cannot do their work, and nobody is to wonder."""
        self._deaf.update(names)
        try:
            yield
        finally:
            self._deaf.difference_update(names)

    def freeze(self, name: str) -> None:
        os.kill(self.pid(name), signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        os.kill(self.pid(name), signal.SIGCONT)

    def stop(self, *names: str, timeout_s: float = STOP_S) -> List[str]:
        """Ask services to stop; one sentence for each that does not do so in time with exit code 0."""
        faults = []
        for name in names:
            self.expect_end(name)
            if self.is_alive(name):
                self._processes[name].terminate()
        for name in names:
            try:
                code = self._processes[name].wait(timeout_s + 1)  # with what the machine takes to end it
            except subprocess.TimeoutExpired:
                faults.append(f"{name} does not stop within {timeout_s:.0f} s of SIGTERM; its log says where it is")
                self._processes[name].send_signal(signal.SIGABRT)  # faulthandler prints the threads
                continue
            if code != 0:
                faults.append(f"{name} ends with {code} when it is asked to stop: {self.last_words(name)}")
        return faults

    def wait(self, name: str, timeout_s: float) -> int:
        """Wait for a service that ends by itself; returns its exit code."""
        self.expect_end(name)
        return self._processes[name].wait(timeout_s)

    def expect_end(self, name: str) -> None:
        """No fault is to be seen in the end of this life."""
        self._expected_ends.add(self.pid(name))

    def unexpected_ends(self) -> List[str]:
        """Services that ended though nobody asked them to, a sentence each."""
        return [
            f"{name} ended by itself with {process.poll()}: {self.last_words(name)}"
            for name, process in self._processes.items()
            if process.poll() is not None and process.pid not in self._expected_ends
        ]

    def close(self) -> None:
        """Kill what is left, and take the networks down."""
        for process in [*self._processes.values(), *self.replaced]:
            if process.poll() is None:
                process.kill()
            process.wait(STOP_S)
        self.cables.close()
        self.resources.close()

    # --- what they say -------------------------------------------------------------------------------------------

    def log_file(self, name: str) -> Path:
        return self.folder / "logs" / f"{name}.log"

    def log(self, name: str) -> str:
        """All that a service ever said, in all of its lives."""
        return self.log_file(name).read_text(encoding="utf-8", errors="replace")

    def last_words(self, name: str) -> str:
        lines = self.log(name).strip().splitlines()
        return lines[-1] if lines else "(it said nothing)"

    def tracebacks(self) -> List[str]:
        """Services whose log holds a traceback, with its last line."""
        found = []
        for name in self.names:
            text = self.log(name) if self.log_file(name).exists() else ""
            for piece in text.split("Traceback (most recent call last):")[1:]:
                error = next((line for line in piece.splitlines()[1:] if line and not line.startswith(" ")), "")
                found.append(f"{name} printed a traceback: {error[:200]}")
        return found

    def logged(self, name: str, pattern: str) -> List[Tuple[str, ...]]:
        """The groups of each match of `pattern` in a service's log."""
        return [match.groups() for match in re.finditer(pattern, self.log(name))]
