"""What shoal's gradients are to reach, and whether they did; and from which link speed on they stop paying."""

from __future__ import annotations

from typing import Dict, List, Mapping, Optional, Tuple

from bench.replay.rounds import Rates
from bench.replay.targets import Verdict

LARGEST_BYTES_RATIO = 0.22
PEER = "hivemind-joined"  # the smaller and the faster of hivemind's two ways

Qualities = Mapping[Tuple[str, str], Dict[str, float]]  # of a size and a way
Timings = Mapping[Tuple[str, str], Rates]  # of a size and a call; pushes a second by way


def verdicts(size: str, qualities: Qualities, timings: Timings) -> List[Verdict]:
    """The targets at one size."""

    def quality(way: str, name: str) -> Optional[float]:
        return qualities.get((size, way), {}).get(name)

    encoding = timings.get((size, "encode"), Rates())
    return [
        Verdict(f"{size}: bytes against float32", quality("int8", "bytes_ratio"), LARGEST_BYTES_RATIO, at_least=False),
        Verdict(
            f"{size}: bytes against hivemind's blockwise",
            _ratio(quality("int8", "bytes_ratio"), quality(PEER, "bytes_ratio")),
            1.0,
            at_least=False,
        ),
        Verdict(f"{size}: encoded pushes/s against hivemind's blockwise", encoding.ratio("int8", PEER), 1.0),
        Verdict(
            f"{size}: error of the sum of pushes, with feedback over without",
            _ratio(quality("int8", "sum_error"), quality("int8-open", "sum_error")),
            1.0,
            at_least=False,
        ),
    ]


def break_even_mbit(num_bytes: float, raw_bytes: float, encode_s: float, decode_s: float) -> float:
    """Link speed in Mbit/s below which a push arrives earlier compressed: bits saved over seconds spent.

    Args:
        num_bytes: of the push.
        raw_bytes: of the same as float32.
        encode_s: at the helper.
        decode_s: at the chief.
    """
    return 8 * (raw_bytes - num_bytes) / (encode_s + decode_s) / 1e6


def _ratio(over: Optional[float], under: Optional[float]) -> Optional[float]:
    return over / under if over is not None and under else None
