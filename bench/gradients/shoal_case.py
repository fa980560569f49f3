"""shoal's encoder and decoder; a variant is "codec packing feedback", as in "int8 zstd on"."""

from __future__ import annotations

import sys
from typing import Any, Mapping

from bench.gradients.codec_case import CodecCase
from bench.gradients.recording import Gradients, Recording
from services.learner.gradients import EncodedGradients, GradientEncoder, decode_gradients

BLOCK_SIZE = 2048


class ShoalCodec:
    def __init__(self, variant: str, recording: Recording) -> None:
        codec, packing, feedback = variant.split()
        self._encoder = GradientEncoder(codec, BLOCK_SIZE, feedback == "on", packing)
        self._expected = recording.shapes

    def encode(self, gradients: Gradients) -> EncodedGradients:
        encoded = self._encoder.encode(gradients)
        self._encoder.commit()
        return encoded

    def decode(self, sent: EncodedGradients) -> Mapping[str, Any]:
        return decode_gradients(sent.segments, sent.crc32c, self._expected)

    def num_bytes(self, sent: EncodedGradients) -> int:
        return sent.num_bytes


if __name__ == "__main__":
    sys.exit(CodecCase(ShoalCodec).serve())
