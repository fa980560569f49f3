"""What every codec under test is asked: bytes, errors, and timed rounds. numpy alone: it runs in the peers' venvs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Protocol

import numpy as np

from bench.gradients.recording import Gradients, Recording
from bench.replay.protocol import serve_calls

NUM_TIMED = 4  # different pushes of a timed round: more than a cache of one push, and no more memory than that
WARM_UP = 2  # pushes before the timer starts


class Codec(Protocol):
    """One way to send gradients."""

    def encode(self, gradients: Gradients) -> Any:
        """What is sent for one push, which the chief takes."""

    def decode(self, sent: Any) -> Mapping[str, Any]:
        """Arrays again, in the order of the tensors."""

    def num_bytes(self, sent: Any) -> int: ...


class CodecCase:
    """The calls of the line protocol over one recording."""

    def __init__(self, make: Callable[[str, Recording], Codec]) -> None:
        """Args: make: builds a codec from the name of a variant."""
        self._make = make

    def open(self, file: str) -> Dict[str, Any]:
        self._recording = Recording(Path(file))
        self._timed = [self._recording.push(i % len(self._recording)) for i in range(NUM_TIMED)]
        self._codecs: Dict[str, Codec] = {}
        self._sent: Dict[str, List[Any]] = {}
        return {}

    def quality(self, variant: str) -> Dict[str, float]:
        """Bytes against float32, and errors against the gradients, over all recorded pushes."""
        codec = self._make(variant, self._recording)
        errors = ErrorSums()
        num_bytes = 0
        for index in range(len(self._recording)):
            gradients = self._recording.push(index)
            sent = codec.encode(gradients)
            num_bytes += codec.num_bytes(sent)
            errors.add(gradients, codec.decode(sent))
        raw = 4 * sum(gradient.size for gradient in self._timed[0].values()) * len(self._recording)
        return {"bytes_ratio": num_bytes / raw, "bytes_a_push": num_bytes / len(self._recording), **errors.result()}

    def encode(self, variant: str, count: int) -> Dict[str, float]:
        codec = self._codec(variant)
        for index in range(WARM_UP):
            codec.encode(self._timed[index])
        began = time.perf_counter()
        for index in range(count):
            codec.encode(self._timed[index % NUM_TIMED])
        return {"count": count, "seconds": time.perf_counter() - began}

    def decode(self, variant: str, count: int) -> Dict[str, float]:
        codec = self._codec(variant)
        if variant not in self._sent:
            self._sent[variant] = [codec.encode(push) for push in self._timed]
        sent = self._sent[variant]
        for index in range(WARM_UP):
            codec.decode(sent[index])
        began = time.perf_counter()
        for index in range(count):
            codec.decode(sent[index % NUM_TIMED])
        return {"count": count, "seconds": time.perf_counter() - began}

    def serve(self) -> int:
        return serve_calls({"open": self.open, "quality": self.quality, "encode": self.encode, "decode": self.decode})

    def _codec(self, variant: str) -> Codec:
        if variant not in self._codecs:
            self._codecs[variant] = self._make(variant, self._recording)
        return self._codecs[variant]


class ErrorSums:
    """||sent - g|| / ||g|| of each push, and ||sum sent - sum g|| / ||sum g||."""

    def __init__(self) -> None:
        self._single: List[float] = []
        self._gap: Dict[str, Any] = {}
        self._sum: Dict[str, Any] = {}

    def add(self, gradients: Gradients, received: Mapping[str, Any]) -> None:
        off = of = 0.0
        for name, gradient in gradients.items():
            gap = np.asarray(received[name], np.float64).reshape(gradient.shape) - gradient
            off += float(np.vdot(gap, gap))
            of += float(np.vdot(gradient.astype(np.float64), gradient.astype(np.float64)))
            self._gap[name] = self._gap.get(name, 0.0) + gap
            self._sum[name] = self._sum.get(name, 0.0) + gradient.astype(np.float64)
        self._single.append(float(np.sqrt(off / of)))

    def result(self) -> Dict[str, float]:
        off = sum(float(np.vdot(gap, gap)) for gap in self._gap.values())
        of = sum(float(np.vdot(total, total)) for total in self._sum.values())
        return {
            "single_error": float(np.median(self._single)),
            "sum_error": float(np.sqrt(off / of)),
            "num_pushes": len(self._single),
        }
