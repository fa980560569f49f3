"""Gradients on their way from a helper to the chief: quantized in blocks, with error feedback, packed, checked.

A helper holds a `GradientEncoder`; the chief calls `decode_gradients`. No torch, no gRPC calls, no threads.
"""

from services.learner.gradients.encoder import EncodedGradients, GradientEncoder
from services.learner.gradients.faults import BadChecksum, BadGradient, GradientFault, NonFinite
from services.learner.gradients.wire import decode_gradients

__all__ = [
    "BadChecksum",
    "BadGradient",
    "EncodedGradients",
    "GradientEncoder",
    "GradientFault",
    "NonFinite",
    "decode_gradients",
]
