"""HTTP/2 by hand (RFC 9113): what a stranger sends who has no library that would keep him from it."""

from __future__ import annotations

import struct
from typing import Dict

import numpy as np

DATA, HEADERS, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE = 0, 1, 3, 4, 6, 8
END_STREAM, END_HEADERS = 1, 4
MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE = 3, 4
LARGEST_WINDOW = 2**31 - 1


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """A frame (4.1)."""
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def setting(name: int, value: int) -> bytes:
    """A frame with one setting (6.5)."""
    return frame(SETTINGS, 0, 0, struct.pack(">HI", name, value))


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0, b"")


def headers(stream: int, path: str, token: str = "") -> bytes:
    """The beginning of a gRPC call."""
    fields = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": "x",
        "content-type": "application/grpc",
        "te": "trailers",
    }
    if token:
        fields["authorization"] = f"Bearer {token}"
    block = b"".join(b"\0" + _string(name) + _string(value) for name, value in fields.items())
    return frame(HEADERS, END_HEADERS, stream, block)


def _string(text: str) -> bytes:
    """A literal of a header block (RFC 7541, 5.2 and 6.2.2)."""
    assert len(text) < 127, "a longer one takes a length of several bytes"
    return bytes((len(text),)) + text.encode()


def call(stream: int, path: str, request: bytes, token: str = "") -> bytes:
    """A whole gRPC call."""
    message = b"\0" + struct.pack(">I", len(request)) + request
    return headers(stream, path, token) + frame(DATA, END_STREAM, stream, message)


def foreign(path: str) -> Dict[str, bytes]:
    """What no caller of ours sends, by what it is; `path` is of a method that there is."""
    return {
        "http/1": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        "http/1 with a header that does not end": b"GET / HTTP/1.1\r\nX: " + b"a" * 100_000,
        "tls": bytes.fromhex("16030100") + b"\xff" * 200,
        "ssh": b"SSH-2.0-OpenSSH_9.6\r\n",
        "noise": np.random.default_rng(0).integers(0, 256, 65_536, np.uint8).tobytes(),
        "nothing": b"",
        "half a preface": PREFACE[:10],
        "frames that cannot be": PREFACE + b"\xff" * 4096,
        "a frame of 16 MB": PREFACE + b"\xff\xff\xff" + frame(DATA, 0, 1, b"")[3:] + b"\0" * 100,
        "pings": PREFACE + frame(PING, 0, 0, bytes(8)) * 20_000,
        "settings": PREFACE + setting(INITIAL_WINDOW_SIZE, 1 << 20) * 20_000,
        "opened and reset": PREFACE
        + b"".join(
            headers(stream, path) + frame(RST_STREAM, 0, stream, struct.pack(">I", 8)) for stream in range(1, 10_001, 2)
        ),
    }
