"""What is measured of a codec is what it does."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, Mapping

import numpy as np
import pytest

from bench.gradients.codec_case import CodecCase, ErrorSums
from bench.gradients.recording import Gradients, Recording, RecordingInfo, write


class Half:
    """Sends half of everything; a message is twenty bytes."""

    def __init__(self, variant: str, recording: Recording) -> None:
        assert variant == "half"
        assert len(recording) == 2

    def encode(self, gradients: Gradients) -> Gradients:
        return {name: gradient / 2 for name, gradient in gradients.items()}

    def decode(self, sent: Gradients) -> Mapping[str, Any]:
        return sent

    def num_bytes(self, sent: Gradients) -> int:
        assert sent
        return 20


def test_errors_of_pushes_and_of_their_sum_are_told_apart() -> None:
    errors = ErrorSums()
    for sign in (1.0, -1.0):  # each push is off by a tenth, and the sum is right
        gradient = {"a": np.full(4, 1.0, np.float32)}
        errors.add(gradient, {"a": np.full(4, 1.0 + sign * 0.1)})
    result = errors.result()
    assert result["single_error"] == pytest.approx(0.1)
    assert result["sum_error"] == pytest.approx(0.0, abs=1e-9)
    assert result["num_pushes"] == 2


def test_a_case_measures_bytes_and_errors_and_times_rounds(tmp_path: Path) -> None:
    pushes = [{"a": np.full(10, value, np.float32)} for value in (1.0, 2.0)]
    write(tmp_path / "r.npy", pushes, RecordingInfo(10, 1, 4, 2, 0, 0.0))
    case = CodecCase(Half)
    case.open(str(tmp_path / "r.npy"))
    quality: Dict[str, float] = case.quality("half")
    assert quality["bytes_ratio"] == 0.5
    assert quality["bytes_a_push"] == 20
    assert quality["single_error"] == quality["sum_error"] == pytest.approx(0.5)
    for call in (case.encode, case.decode):
        timing = call("half", 7)
        assert timing["count"] == 7
        assert timing["seconds"] > 0
