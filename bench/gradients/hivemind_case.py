"""hivemind's blockwise 8 bit (over bitsandbytes): tensor by tensor, as its averager compresses them, or joined to one.

bitsandbytes builds a search table at each call, so that a dozen small tensors cost it more than all of them as one.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any, Dict, Mapping

import numpy as np
import torch
from hivemind.compression.base import CompressionInfo
from hivemind.compression.quantization import BlockwiseQuantization

from bench.gradients.codec_case import CodecCase
from bench.gradients.recording import Gradients, Recording

JOINED = "joined"


class HivemindCodec:
    def __init__(self, variant: str, recording: Recording) -> None:
        self._shapes = recording.shapes
        self._is_joined = variant == JOINED
        warnings.filterwarnings("ignore")
        torch.set_num_threads(1)
        self._blockwise = BlockwiseQuantization()

    def encode(self, gradients: Gradients) -> Dict[str, Any]:
        sent = {}
        for name, gradient in self._tensors(gradients).items():
            tensor = torch.from_numpy(gradient)
            sent[name] = self._blockwise.compress(tensor, CompressionInfo.from_tensor(tensor))
        return sent

    def decode(self, sent: Dict[str, Any]) -> Mapping[str, Any]:
        received = {name: self._blockwise.extract(message).numpy() for name, message in sent.items()}
        if not self._is_joined:
            return received
        sizes = [int(np.prod(shape, dtype=np.int64)) for shape in self._shapes.values()]
        parts = np.split(received[JOINED], np.cumsum(sizes)[:-1])
        return {name: part.reshape(shape) for (name, shape), part in zip(self._shapes.items(), parts)}

    def num_bytes(self, sent: Dict[str, Any]) -> int:
        return sum(message.ByteSize() for message in sent.values())

    def _tensors(self, gradients: Gradients) -> Gradients:
        if not self._is_joined:
            return gradients
        return {JOINED: np.concatenate([gradient.reshape(-1) for gradient in gradients.values()])}


if __name__ == "__main__":
    sys.exit(CodecCase(HivemindCodec).serve())
