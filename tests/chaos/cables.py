"""Cables between services: each pair that talks has one, which can be cut and made slow."""

from __future__ import annotations

from typing import Dict, FrozenSet, List, Set

from tests.chaos.isolation import run


class Cables:
    """Networks of the services, one each, and a cable for each pair of them that talk to each other."""

    def __init__(self, prefix: str) -> None:
        """Prepare; `prefix` tells these names from others'."""
        self._prefix = prefix
        self._names: Dict[str, str] = {}  # service -> network namespace; the harness is in none of them
        self._left: List[str] = []  # networks whose service has moved
        self._laid = 0  # cables
        self._ends: Dict[FrozenSet[str], int] = {}  # pair -> number of the cable
        self._shaped: Set[FrozenSet[str]] = set()  # those that are cut or slow now

    def network(self, service: str) -> str:
        """The network of a service, made when it is first asked for."""
        if service not in self._names:
            name = f"{self._prefix}-{service}-{len(self._left)}"
            run("ip", "netns", "add", name)
            run("ip", "-n", name, "link", "set", "lo", "up")
            self._names[service] = name
        return self._names[service]

    def into(self, service: str) -> List[str]:
        """Words before a command that is to run in the network of `service`."""
        return ["nsenter", f"--net=/run/netns/{self.network(service)}"]

    def plug(self, server: str, client: str) -> str:
        """Lay a cable; returns the server's address at its end. `client` empty: the harness itself."""
        self._laid += 1
        number = self._ends[frozenset((server, client))] = self._laid
        address = f"10.78.{number}"
        words = ["ip", "link", "add", f"cable{number}", "netns", self.network(server), "type", "veth"]
        words += ["peer", "name", f"cable{number}"]
        run(*words, *(["netns", self.network(client)] if client else []))
        for service, host in ((server, 1), (client, 2)):
            run(*self._ip(service), "addr", "add", f"{address}.{host}/30", "dev", f"cable{number}")
            run(*self._ip(service), "link", "set", f"cable{number}", "up")
        return f"{address}.1"

    def cut(self, one: str, other: str) -> None:
        """From now on what is sent over the cable arrives nowhere, and nobody is told."""
        self._shape(one, other, "blackhole")

    def slow(self, one: str, other: str, kbit: int) -> None:
        """A cable that carries `kbit` kilobits a second each way."""
        self._shape(one, other, "tbf", "rate", f"{kbit}kbit", "burst", "4kb", "latency", "400ms")

    def mend(self, one: str, other: str) -> None:
        """As it was."""
        for service in (one, other):
            run(*self._tc(service), "qdisc", "del", "dev", self._device(one, other), "root")
        self._shaped.discard(frozenset((one, other)))

    def is_shaped(self, one: str, other: str) -> bool:
        """Whether the cable between the two is cut or slow now."""
        return frozenset((one, other)) in self._shaped

    def pairs_of(self, service: str) -> List[str]:
        """Who is connected with `service`, the harness left out."""
        return [other for pair in self._ends for other in pair if service in pair and other not in (service, "")]

    def close(self) -> None:
        """Take all down."""
        for name in [*self._names.values(), *self._left]:
            run("ip", "netns", "del", name)
        self._names.clear()
        self._left.clear()
        self._ends.clear()

    def leave(self, service: str) -> None:
        """The service gets a new network when it is next asked for; the old one stays, with its cables."""
        self._left.append(self._names.pop(service))

    def _shape(self, one: str, other: str, *discipline: str) -> None:
        self._shaped.add(frozenset((one, other)))
        for service in (one, other):
            run(*self._tc(service), "qdisc", "replace", "dev", self._device(one, other), "root", *discipline)

    def _device(self, one: str, other: str) -> str:
        return f"cable{self._ends[frozenset((one, other))]}"

    def _ip(self, service: str) -> List[str]:
        return ["ip", "-n", self.network(service)] if service else ["ip"]

    def _tc(self, service: str) -> List[str]:
        return ["tc", "-n", self.network(service)] if service else ["tc"]
