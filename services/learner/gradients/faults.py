"""What can be wrong with a gradient; each message is one sentence."""

from __future__ import annotations


class GradientFault(ValueError):
    """A gradient cannot be sent, or not be used."""


class BadChecksum(GradientFault):
    """The bytes are not those that were sent: the sender resends them."""


class BadGradient(GradientFault):
    """It is not what it should be: an unknown tensor, another shape, sizes that do not fit together."""


class NonFinite(GradientFault):
    """A tensor's gradient holds NaN, an infinity, or a value too large to be anything but a fault."""

    def __init__(self, tensor: str, sentence: str) -> None:
        super().__init__(sentence)
        self.tensor = tensor
