"""Machines with a real systemd on this one: a root file system each (an overlay), a network namespace each, no images.

They meet in a bridge that lies in a namespace of its own, so that the host's network is not touched.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Dict, Iterator, List, Optional, Sequence

from typing_extensions import Self

HERE = Path(__file__).parent
TOOLS = ("mmdebstrap", "systemd-nspawn", "ip", "nsenter")
BOOT_S = 60.0
NETWORK = "10.77.0"


class CommandFailed(AssertionError):
    """A command on a machine ended with an error."""


def missing_tools() -> List[str]:
    """What the host lacks; root is one of them."""
    lacks = [tool for tool in TOOLS if shutil.which(tool) is None]
    return lacks if os.geteuid() == 0 else [*lacks, "root"]


def _run(*command: str, check: bool = True, timeout_s: float = 60.0) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    if check and done.returncode != 0:
        raise CommandFailed(f"{shlex.join(command)} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def root_file_system() -> Path:
    """The Debian that all machines share, unpacked; made if this machine has none yet."""
    tar = Path(_run("bash", str(HERE / "bootstrap.sh"), timeout_s=900).strip())
    root = tar.with_suffix("")
    if not (root / "usr").exists():
        aside = root.with_name(f"{root.name}.{os.getpid()}")
        aside.mkdir()
        _run("tar", "-C", str(aside), "-xf", str(tar), timeout_s=600)
        aside.rename(root)
    return root


class Network:
    """A bridge in a namespace, and a cable from it to each machine."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._count = 0

    def __enter__(self) -> Self:
        _run("ip", "netns", "add", self._name)
        _run("ip", "-n", self._name, "link", "add", "bridge", "type", "bridge")
        _run("ip", "-n", self._name, "addr", "add", f"{NETWORK}.1/24", "dev", "bridge")
        for device in ("lo", "bridge"):
            _run("ip", "-n", self._name, "link", "set", device, "up")
        return self

    def __exit__(self, *_exc: object) -> None:
        _run("ip", "netns", "del", self._name, check=False)

    def plug(self, namespace: str) -> str:
        """Connect a namespace; returns its address."""
        self._count += 1
        cable, address = f"cable{self._count}", f"{NETWORK}.{self._count + 1}"
        _run("ip", "link", "add", cable, "netns", self._name, "type", "veth", "peer", "host0", "netns", namespace)
        _run("ip", "-n", self._name, "link", "set", cable, "master", "bridge", "up")
        _run("ip", "-n", namespace, "addr", "add", f"{address}/24", "dev", "host0")
        for device in ("lo", "host0"):
            _run("ip", "-n", namespace, "link", "set", device, "up")
        return address

    def command(self, *words: str) -> List[str]:
        """A command that runs beside the machines: as one more host of their network."""
        return ["ip", "netns", "exec", self._name, *words]


class Machine:
    """One machine: it boots, runs commands, loses its network or its power, and boots again with its disk."""

    def __init__(
        self, name: str, network: Network, folder: Path, lower: Sequence[Path], binds: Dict[str, Path]
    ) -> None:
        """Prepare it.

        Args:
            name: of the machine.
            network: that it is plugged into.
            folder: for its own files.
            lower: root file systems below its own, the topmost first.
            binds: path on the machine -> folder of the host, read-only.
        """
        self.name = name
        self._namespace = f"{folder.name}-{name}"[-15:]
        self._network = network
        self._folder = folder / name
        self._lower = lower
        self._binds = binds
        self._process: Optional[subprocess.Popen[bytes]] = None
        self._leader = 0
        self.address = ""

    @property
    def upper(self) -> Path:
        """What this machine wrote."""
        return self._folder / "upper"

    @property
    def root(self) -> Path:
        """Its file system, as the host sees it."""
        return self._folder / "root"

    def __enter__(self) -> Self:
        for part in (self.upper, self._folder / "work", self.root):
            part.mkdir(parents=True)
        lower = ":".join(map(str, self._lower))
        options = f"lowerdir={lower},upperdir={self.upper},workdir={self._folder / 'work'}"
        _run("mount", "-t", "overlay", "overlay", "-o", options, str(self.root))
        _run("ip", "netns", "add", self._namespace)
        self.address = self._network.plug(self._namespace)
        self.boot()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.power_off()
        _run("ip", "netns", "del", self._namespace, check=False)
        _run("umount", "-R", str(self.root), check=False)

    def boot(self) -> None:
        """Start it and wait until systemd says that it runs."""
        command = ["systemd-nspawn", "-q", "-D", str(self.root), "-M", self._namespace]
        command += ["--register=no", "--keep-unit", f"--network-namespace-path=/run/netns/{self._namespace}"]
        command += [f"--bind-ro={source}:{target}" for target, source in self._binds.items()]
        command += ["--resolv-conf=off", "--timezone=off", "--console=pipe", "-b"]
        with (self._folder / "console").open("ab") as console:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=console, stderr=console)
        deadline = time.monotonic() + BOOT_S
        while True:
            with contextlib.suppress(CommandFailed, ValueError):
                self._leader = int(_run("ps", "--ppid", str(self._process.pid), "-o", "pid=").split()[0])
                if self.run("systemctl is-system-running", check=False).strip() in {"running", "degraded"}:
                    return
            if time.monotonic() > deadline:
                raise CommandFailed(f"{self.name} does not boot: {(self._folder / 'console').read_text()[-2000:]}")
            time.sleep(0.2)

    def power_off(self) -> None:
        """Pull the plug: everything on it dies at this instant."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._leader, signal.SIGKILL)
            self._process.wait(30)
            self._process = None

    def run(self, script: str, *, check: bool = True, timeout_s: float = 120.0) -> str:
        """Run a line of bash on it; returns its output."""
        command = ["nsenter", "-t", str(self._leader), "-a", "bash", "-c", script]
        return _run(*command, check=check, timeout_s=timeout_s)

    def write(self, path: str, text: str, mode: int = 0o640, owner: str = "root:shoal") -> None:
        """Write a file on it."""
        target = self.root / path.lstrip("/")
        target.write_text(text)
        target.chmod(mode)
        self.run(f"chown {owner} {shlex.quote(path)}")

    @contextlib.contextmanager
    def unplugged(self) -> Iterator[None]:
        """Cut it off from the network for a while."""
        _run("ip", "-n", self._namespace, "link", "set", "host0", "down")
        try:
            yield
        finally:
            _run("ip", "-n", self._namespace, "link", "set", "host0", "up")
