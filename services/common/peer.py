"""Who calls, and whether it may: every request names its peer."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

from shoal.v1 import experience_pb2

PROTOCOL_VERSION = 1
MAX_NAME_LENGTH = 128  # of peers: names are kept, logged and shown


@dataclass(frozen=True)
class Peer:
    """One life of a process, as it introduces itself."""

    run_id: str
    role: experience_pb2.Role.ValueType
    name: str
    incarnation: int = field(default_factory=lambda: secrets.randbits(63) | 1)

    def to_proto(self, schema_digest: str = "") -> experience_pb2.Peer:
        """As sent with each request."""
        return experience_pb2.Peer(
            protocol_version=PROTOCOL_VERSION,
            run_id=self.run_id,
            role=self.role,
            name=self.name,
            incarnation=self.incarnation,
            schema_digest=schema_digest,
        )


def objection(peer: experience_pb2.Peer, run_id: str) -> str:
    """One sentence that says why a server of `run_id` refuses `peer`; empty if it does not."""
    lengths = (len(peer.name), len(peer.run_id), len(peer.schema_digest))
    if not peer.name.isprintable() or any(length > MAX_NAME_LENGTH for length in lengths):
        return f"the caller's name, run or schema is not one of at most {MAX_NAME_LENGTH} printable characters"
    if peer.protocol_version != PROTOCOL_VERSION:
        return (
            f"{peer.name or 'the caller'} speaks protocol version {peer.protocol_version}, this service "
            f"{PROTOCOL_VERSION}: install the same version of shoal on both"
        )
    if peer.role == experience_pb2.ROLE_OPERATOR and not peer.run_id:
        return ""
    if peer.run_id != run_id:
        return (
            f"{peer.name or 'the caller'} belongs to run {peer.run_id!r}, this service to run {run_id!r}: "
            "check run.name and the addresses of both run files"
        )
    if not peer.incarnation or not peer.name:
        return "the caller gave no name or incarnation; every process must introduce itself"
    return ""
