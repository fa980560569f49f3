"""Machines with a real systemd on this one: a root file system, a network and control groups each, no images.

They meet in a bridge that lies in a namespace of its own, so that the host's network is not touched. What a run that
was killed has left behind is removed at the start of the next.
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
from typing import Dict, Iterator, List, Optional

from typing_extensions import Self

HERE = Path(__file__).parent
TOOLS = ("mmdebstrap", "systemd-nspawn", "ip", "nsenter", "setpriv")
BOOT_S = 60.0
NETWORK = "10.77.0"
PREFIX = "shoal-test-"  # of names that the host sees, with the process id of the run behind it
CONTROL_GROUPS = Path("/sys/fs/cgroup")


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
    tar = Path(_run("bash", str(HERE / "bootstrap.sh"), timeout_s=900).strip().splitlines()[-1])
    root = tar.with_suffix("")
    if not (root / "usr").exists():
        aside = root.with_name(f"{root.name}.{os.getpid()}")
        aside.mkdir()
        _run("tar", "-C", str(aside), "-xf", str(tar), timeout_s=600)
        aside.rename(root)
    return root


def sweep() -> None:
    """Remove processes, mounts, namespaces and control groups of runs that were killed before they could."""
    for hierarchy in _hierarchies():  # first: what runs on the machines holds the rest
        for group in hierarchy.glob(f"{PREFIX}*"):
            if _is_orphan(group.name):
                _remove_group(group)
    for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines():
        source, target = line.split()[:2]
        if _is_orphan(source):
            _run("umount", "-R", target, check=False)
    for name in _run("ip", "netns", "list", check=False).splitlines():
        if _is_orphan(name.split()[0]):
            _run("ip", "netns", "del", name.split()[0], check=False)


def _is_orphan(name: str) -> bool:
    """Whether `name` is of a run that is no more."""
    owner = name[len(PREFIX) :].split("-", maxsplit=1)[0]
    return name.startswith(PREFIX) and owner.isdecimal() and not Path(f"/proc/{owner}").exists()


def _hierarchies() -> List[Path]:
    """Of control groups, those that systemd keeps its units in; which of them there are depends on the host."""
    hybrid = [CONTROL_GROUPS / name for name in ("systemd", "unified")]
    return [found for found in hybrid if found.is_mount()] or [CONTROL_GROUPS]


def _remove_group(group: Path) -> None:
    """Kill what still runs in a control group, and remove it."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        pids: List[str] = []
        with contextlib.suppress(OSError):  # groups come and go while they are looked at
            pids = [pid for file in group.rglob("cgroup.procs") for pid in file.read_text().split()]
            if not pids:
                break
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        time.sleep(0.1)
    for folder in sorted((path for path in group.rglob("*") if path.is_dir()), reverse=True):
        with contextlib.suppress(OSError):
            folder.rmdir()
    with contextlib.suppress(OSError):
        group.rmdir()


class Network:
    """A bridge in a namespace, and a cable from it to each machine."""

    def __init__(self) -> None:
        self._name = f"{PREFIX}{os.getpid()}-bridge"
        self._count = 0

    def __enter__(self) -> Self:
        _run("ip", "netns", "add", self._name)
        try:
            _run("ip", "-n", self._name, "link", "add", "bridge", "type", "bridge")
            _run("ip", "-n", self._name, "addr", "add", f"{self.address}/24", "dev", "bridge")
            for device in ("lo", "bridge"):
                _run("ip", "-n", self._name, "link", "set", device, "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_exc: object) -> None:
        _run("ip", "netns", "del", self._name, check=False)

    @property
    def address(self) -> str:
        """Of a host beside the machines."""
        return f"{NETWORK}.1"

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

    def __init__(self, name: str, network: Network, folder: Path, base: Path, binds: Dict[str, Path]) -> None:
        """Prepare it.

        Args:
            name: of the machine.
            network: that it is plugged into.
            folder: for its own files, which are removed with it.
            base: root file system below its own.
            binds: path on the machine -> folder of the host, read-only.
        """
        self.name = name
        self._id = f"{PREFIX}{os.getpid()}-{name}"
        self._network = network
        self._folder = folder / name
        self._base = base
        self._binds = binds
        self._process: Optional[subprocess.Popen[bytes]] = None
        self._leader = 0
        self.address = ""

    @property
    def root(self) -> Path:
        """Its file system, as the host sees it."""
        return self._folder / "root"

    def __enter__(self) -> Self:
        for part in ("upper", "work", "root"):
            (self._folder / part).mkdir(parents=True)
        try:
            options = f"lowerdir={self._base},upperdir={self._folder / 'upper'},workdir={self._folder / 'work'}"
            _run("mount", "-t", "overlay", self._id, "-o", options, str(self.root))
            (self.root / "etc" / "hostname").write_text(f"{self.name}\n")
            _run("ip", "netns", "add", self._id)
            self.address = self._network.plug(self._id)
            # Else the same unit on two machines would be one control group, and a kill of one the other's end.
            for group in self._groups():
                group.mkdir()
            self.boot()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_exc: object) -> None:
        self.power_off()
        for group in self._groups():
            _remove_group(group)
        _run("ip", "netns", "del", self._id, check=False)
        _run("umount", "-R", str(self.root), check=False)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _groups(self) -> List[Path]:
        return [hierarchy / self._id for hierarchy in _hierarchies()]

    def boot(self) -> None:
        """Start it and wait until systemd says that it runs."""
        join = "".join(f"echo $$ > {shlex.quote(str(group))}/cgroup.procs; " for group in self._groups())
        nspawn = ["systemd-nspawn", "-q", "-D", str(self.root), "-M", self.name]
        nspawn += ["--register=no", "--keep-unit", f"--network-namespace-path=/run/netns/{self._id}"]
        nspawn += [f"--bind-ro={source}:{target}" for target, source in self._binds.items()]
        nspawn += ["--resolv-conf=off", "--timezone=off", "--console=pipe", "-b"]
        # It ends with the tests, even where those were killed.
        command = ["setpriv", "--pdeathsig", "KILL", "bash", "-c", f"{join} exec {shlex.join(nspawn)}"]
        with (self._folder / "console").open("ab") as console:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=console, stderr=console)
        deadline = time.monotonic() + BOOT_S
        while True:
            with contextlib.suppress(CommandFailed, ValueError, IndexError):
                self._leader = int(_run("ps", "--ppid", str(self._process.pid), "-o", "pid=", check=False).split()[0])
                if self.run("systemctl is-system-running", check=False).strip() in {"running", "degraded"}:
                    return
            if time.monotonic() > deadline:
                raise CommandFailed(f"{self.name} does not boot: {(self._folder / 'console').read_text()[-2000:]}")
            time.sleep(0.2)

    def power_off(self) -> None:
        """Pull the plug: everything on it dies at this instant."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._leader or self._process.pid, signal.SIGKILL)
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(30)
            self._process, self._leader = None, 0

    def run(self, script: str, *, check: bool = True, timeout_s: float = 120.0) -> str:
        """Run lines of bash on it, in root's home; returns their output."""
        environment = ["env", "-i", "HOME=/root", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]
        command = ["nsenter", "-t", str(self._leader), "-a", *environment, "bash", "-c", f"cd /root; {script}"]
        return _run(*command, check=check, timeout_s=timeout_s)

    def write(self, path: str, text: str, mode: int = 0o644) -> None:
        """Write a file of root's on it."""
        target = self.root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        target.chmod(mode)

    @contextlib.contextmanager
    def unplugged(self) -> Iterator[None]:
        """Cut it off from the network for a while."""
        _run("ip", "-n", self._id, "link", "set", "host0", "down")
        try:
            yield
        finally:
            _run("ip", "-n", self._id, "link", "set", "host0", "up")
