"""Gradients for the tests, and a decoder that says the same in other words."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Tuple

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from services.learner.gradients import EncodedGradients, decode_gradients
from shoal.v1 import gradients_pb2 as pb2

SHAPES: Dict[str, Tuple[int, ...]] = {
    "policy.0.weight": (23, 60),
    "policy.0.bias": (60,),
    "critics.0.weight": (2, 26, 60),
    "critics.0.bias": (2, 1, 60),
}

# An example is some blocks of work, and machines are shared: a slow one is no fault.
patient = settings(deadline=None, max_examples=50)


def draw(seed: int, shapes: Mapping[str, Tuple[int, ...]] = SHAPES, scale: float = 1e-3) -> Dict[str, np.ndarray]:
    """Gradients of heavy tails, with units that nothing activates."""
    rng = np.random.default_rng(seed)
    gradients = {}
    for name, shape in shapes.items():
        values = rng.standard_t(3, shape) * scale
        if len(shape) > 1:
            values[..., rng.random(shape[-1]) < 0.3] = 0.0
        gradients[name] = values.astype(np.float32)
    return gradients


def shapes_of(gradients: Mapping[str, np.ndarray]) -> Dict[str, Tuple[int, ...]]:
    return {name: gradient.shape for name, gradient in gradients.items()}


def decoded(encoded: EncodedGradients, gradients: Mapping[str, np.ndarray]) -> Dict[str, np.ndarray]:
    """What the chief makes of a push, after it has been bytes."""
    wire = [pb2.GradientSegment.FromString(segment.SerializeToString()) for segment in encoded.segments]
    return decode_gradients(wire, encoded.crc32c, shapes_of(gradients))


def step_sizes(segment: pb2.GradientSegment, size: int) -> np.ndarray:
    """The scale s of each value's block, <float64>[size]."""
    scales = np.frombuffer(segment.scales, np.float16).astype(np.float64) * 2.0**segment.scale_exponent
    return np.repeat(scales, segment.block_size)[:size]


def as_bytes(encoded: EncodedGradients) -> List[bytes]:
    return [segment.SerializeToString(deterministic=True) for segment in encoded.segments]


@st.composite
def tensors(draw_from: Any) -> np.ndarray:
    """Any shape of up to some blocks; magnitudes from subnormals to the largest, which differ from part to part."""
    shape = draw_from(
        st.sampled_from([(), (1,), (7,), (1024,), (1025,), (5000,), (3, 700), (2, 40, 33), (0,), (4, 0), (1, 2049)])
    )
    rng = np.random.default_rng(draw_from(st.integers(0, 2**32 - 1)))
    size = int(np.prod(shape, dtype=np.int64))
    exponents = draw_from(st.lists(st.integers(-150, 125), min_size=1, max_size=4))
    values = rng.uniform(-1.0, 1.0, size) * 2.0 ** np.resize(np.repeat(exponents, 700), size)
    values[rng.random(size) < draw_from(st.sampled_from([0.0, 0.5, 1.0]))] = 0.0
    return values.astype(np.float32).reshape(shape)
