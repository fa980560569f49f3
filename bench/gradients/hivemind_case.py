"""hivemind's blockwise 8 bit (over bitsandbytes), tensor by tensor, as its averager compresses them."""

from __future__ import annotations

import sys
import warnings
from typing import Any, Dict, Mapping

import torch
from hivemind.compression.base import CompressionInfo
from hivemind.compression.quantization import BlockwiseQuantization

from bench.gradients.codec_case import CodecCase
from bench.gradients.recording import Gradients, Recording


class HivemindCodec:
    def __init__(self, variant: str, recording: Recording) -> None:  # noqa: ARG002 (there is one way)
        warnings.filterwarnings("ignore")
        torch.set_num_threads(1)
        self._blockwise = BlockwiseQuantization()

    def encode(self, gradients: Gradients) -> Dict[str, Any]:
        sent = {}
        for name, gradient in gradients.items():
            tensor = torch.from_numpy(gradient)
            sent[name] = self._blockwise.compress(tensor, CompressionInfo.from_tensor(tensor))
        return sent

    def decode(self, sent: Dict[str, Any]) -> Mapping[str, Any]:
        return {name: self._blockwise.extract(message).numpy() for name, message in sent.items()}

    def num_bytes(self, sent: Dict[str, Any]) -> int:
        return sum(message.ByteSize() for message in sent.values())


if __name__ == "__main__":
    sys.exit(CodecCase(HivemindCodec).serve())
