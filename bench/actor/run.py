"""Real processes of a run: a replay, a chief that publishes, and actors; all end with this process at the latest."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Dict, List, Mapping, Optional, Sequence, Type

import tomli_w
from typing_extensions import Self

from bench.actor.simulators import ACTION_SIZE, OBSERVATION_SIZE
from services.cli.plan import child_environ
from services.common.peer import Peer
from services.common.rpc import call_once, connect
from shoal.v1 import experience_pb2, replay_pb2, replay_pb2_grpc

START_TIMEOUT_S = 120.0


class Process:
    """One process with its log; it says a word `KEY=VALUE` when it is ready."""

    def __init__(self, command: Sequence[str], log: Path, *, threads: int = 1) -> None:
        read, self._lifeline = os.pipe()
        self._log = log
        with log.open("wb") as stream:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *command],
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                env=child_environ(os.environ, read, threads=threads),
                pass_fds=(read,),
            )
        os.close(read)
        self.pid = self._process.pid

    def wait_for_word(self, key: str) -> str:
        """The value of the first word `key=VALUE` of its log."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline and self._process.poll() is None:
            for word in self._log.read_text(encoding="utf-8").split():
                if word.startswith(f"{key}="):
                    return word[len(key) + 1 :]
            time.sleep(0.05)
        raise RuntimeError(f"{self._log.stem} did not start:\n{self._log.read_text(encoding='utf-8')}")

    def cpu_s(self) -> float:
        """Seconds of CPU that it has used, from /proc."""
        fields = Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        """Ask it to end, and wait."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        self._process.wait(20)
        os.close(self._lifeline)


class Run:
    """A replay and a chief; actors come and go."""

    def __init__(
        self,
        *,
        capacity: int = 1_000_000,
        width: int = 128,
        observation_size: int = OBSERVATION_SIZE,
        action_size: int = ACTION_SIZE,
        publish_s: float = 0.25,
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="shoal-bench-")
        self.folder = Path(self._folder.name)
        self._file = self.folder / "bench.toml"
        settings: Dict[str, Mapping[str, Any]] = {
            "run": {"name": "bench", "folder": str(self.folder)},
            "td3": {"hidden_sizes": [width, width]},
            "replay": {"capacity": capacity, "min_size_to_sample": 1000},
        }
        self._file.write_text(tomli_w.dumps(settings), encoding="utf-8")
        self.replay = Process(
            ["services.replay", str(self._file), "--replay.addresses", "127.0.0.1:0", "--replay.metrics_port", "0"],
            self.folder / "replay.log",
        )
        self.replay_address = self.replay.wait_for_word("address")
        sizes = [str(observation_size), str(action_size), str(width), str(publish_s)]
        self._chief = Process(
            ["bench.actor.chief_process", str(self.folder / "chief"), *sizes], self.folder / "chief.log"
        )
        self.chief_address = self._chief.wait_for_word("address")
        self._channel = connect(self.replay_address)
        self._stub = replay_pb2_grpc.ReplayServiceStub(self._channel)

    def flags(self, **values: Any) -> List[str]:
        """Flags of an actor of this run; `env__lanes=4` is --env.lanes 4."""
        pairs = {
            "replay.addresses": self.replay_address,
            "learner.address": self.chief_address,
            **{key.replace("__", "."): value for key, value in values.items()},
        }
        return [f"--{key}={value}" for key, value in pairs.items()]

    def actor(self, name: str, **values: Any) -> Process:
        """Start an actor; it is ready when its first steps have arrived."""
        command = ["services.actor", str(self._file), *self.flags(actor__name=name, **values)]
        return Process(command, self.folder / f"{name}.log", threads=int(values.get("actor__torch_threads", 1)))

    def info(self) -> Any:
        """What the replay says of itself."""
        peer = Peer("", experience_pb2.ROLE_OPERATOR, "bench").to_proto()
        return call_once(self._stub.GetInfo, replay_pb2.GetReplayInfoRequest(peer=peer), timeout_s=10.0)

    def acknowledged(self, actor: str = "") -> int:
        """Steps that the replay has acknowledged, of all actors or of one."""
        info = self.info()
        if not actor:
            return int(info.steps.acknowledged)
        return next((int(known.acknowledged_steps) for known in info.actors if known.name == actor), 0)

    def wait_for_steps(self, more_than: int, actor: str = "") -> None:
        """Wait until actors are at work."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while self.acknowledged(actor) <= more_than:
            if time.monotonic() > deadline:
                raise RuntimeError(f"no steps came within {START_TIMEOUT_S:g} s")
            time.sleep(0.1)

    def rate(self, seconds: float, actor: str = "") -> float:
        """Acknowledged steps a second over the next `seconds`."""
        began, before = time.perf_counter(), self.acknowledged(actor)
        time.sleep(seconds)
        after, ended = self.acknowledged(actor), time.perf_counter()
        return (after - before) / (ended - began)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self._channel.close()
        self._chief.stop()
        self.replay.stop()
        self._folder.cleanup()
