"""Error feedback: what a push could not say is added to the next gradient (Seide et al. 2014, Karimireddy et al. 2019).

    corrected = gradient + residual
    sent      = decode(encode(corrected))
    residual  = corrected - sent          once the chief has taken the push; otherwise as it was

so that the sum of what was sent follows the sum of the gradients, off by one residual and no more.
"""

from __future__ import annotations

from typing import Dict, List, Mapping, Optional

import numpy as np
import numpy.typing as npt

from services.learner.gradients.codec import LARGEST_VALUE, Values
from services.learner.gradients.faults import NonFinite
from services.learner.gradients.layout import Layout, Plan


class ErrorFeedback:
    """The residual of each tensor, in two buffers: that of the pushes that were taken, and that of the one in flight.

    A push is worked on in the second; taking it swaps the two, and refusing it needs nothing at all.
    """

    def __init__(self, block_size: int, *, enabled: bool) -> None:
        """Start with residuals of zero.

        Args:
            block_size: values a block.
            enabled: False: nothing is added to a gradient, and nothing kept.
        """
        self.layout = Layout(block_size)
        self.enabled = enabled
        self._block_size = block_size
        self._taken = np.zeros((0, block_size), np.float32)
        self._working = np.zeros((0, block_size), np.float32)
        self._in_flight: Optional[Plan] = None
        self._loaded: Dict[str, Values] = {}  # of tensors that have not come yet
        self._notices: List[str] = []

    @property
    def in_flight(self) -> bool:
        """Whether a push has neither been committed nor rolled back."""
        return self._in_flight is not None

    def correct(self, gradients: Mapping[str, Values], absmax: Values, scratch: Values) -> Plan:
        """Fill the working buffer with gradient + residual.

        Args:
            gradients: name -> <float32>[...], contiguous.
            absmax: <float32>[num_blocks], overwritten where tensors come: the largest magnitude of each block.
            scratch: <float32>[blocks of a strip or more, block_size], overwritten.

        Returns:
            The pass over these tensors, whose blocks of `working` are ready.

        Raises:
            NonFinite: a gradient holds NaN or an infinity; no residual has changed.
        """
        plan = self.layout.plan(list(gradients))
        flat = {name: gradient.reshape(-1) for name, gradient in gradients.items()}
        taken, working = self._taken.reshape(-1), self._working.reshape(-1)
        starts = np.arange(0, scratch.size, self._block_size)
        with np.errstate(over="ignore", invalid="ignore"):  # the gate below sees what comes of it
            for strip in plan.strips:
                for piece in strip.pieces:
                    gradient, at = flat[piece.name][piece.begin : piece.end], piece.values
                    if self.enabled:
                        np.add(gradient, taken[at], out=working[at])
                    else:
                        np.copyto(working[at], gradient)
                count = strip.end_block - strip.first_block
                np.abs(self._working[strip.blocks], out=scratch[:count])
                magnitudes = scratch[:count].reshape(-1)
                np.maximum.reduceat(magnitudes, starts[:count], out=absmax[strip.blocks])
        within = absmax[plan.blocks] <= LARGEST_VALUE  # NaN compares false
        if not within.all():
            name = plan.places[plan.owners[np.argmin(within)]].name
            raise _non_finite(name, flat[name])
        return plan

    @property
    def working(self) -> Values:
        """<float32>[num_blocks, block_size], corrected gradients first, then the residual that they leave."""
        return self._working

    def make_room(self, gradients: Mapping[str, Values]) -> None:
        """Give tensors that come for the first time their place, and the residual that was loaded for them.

        Raises:
            BadGradient: a tensor had another shape before.
        """
        for name, gradient in gradients.items():  # all of them before the first gets its place
            self.layout.check(name, gradient.shape)
        new = [name for name, gradient in gradients.items() if self.layout.add(name, gradient.shape)]
        if not new:
            return
        self._taken, self._working = (self._grown(buffer) for buffer in (self._taken, self._working))
        for name in new:
            loaded = self._loaded.pop(name, None)
            place = self.layout.places[name]
            if loaded is not None and loaded.shape == place.shape:
                self._taken.reshape(-1)[place.values] = loaded.reshape(-1)
            elif loaded is not None:
                self._notices.append(
                    f"the residual of {name!r} was saved with shape {list(loaded.shape)}, the gradient has "
                    f"{list(place.shape)}: it starts at zero"
                )

    def send(self, plan: Plan) -> None:
        """Note that a push of these tensors is in flight, its residual in the working buffer."""
        self._in_flight = plan

    def commit(self) -> None:
        """The push was taken: its residual is the one that counts from now on."""
        plan = self._end_flight()
        if not self.enabled:
            return
        if plan.covers_all:
            self._taken, self._working = self._working, self._taken
        else:
            for strip in plan.strips:
                self._taken[strip.blocks] = self._working[strip.blocks]

    def rollback(self) -> None:
        """The push was refused: the residual is what it was before it, since nothing has touched it."""
        self._end_flight()

    @property
    def norm(self) -> float:
        """Euclidean norm over all tensors, without a push in flight."""
        flat = self._taken.reshape(-1)
        loaded = sum(float(np.vdot(values, values)) for values in self._loaded.values())
        return float(np.sqrt(float(flat @ flat) + loaded))

    def state(self) -> Dict[str, npt.NDArray[np.float32]]:
        """A copy of the residuals, name -> <float32>[shape], as if a push in flight had been refused."""
        if not self.enabled:
            return {}
        flat = self._taken.reshape(-1)
        placed = {name: flat[place.values].reshape(place.shape) for name, place in self.layout.places.items()}
        return {name: values.copy() for name, values in {**self._loaded, **placed}.items()}

    def load_state(self, state: Mapping[str, npt.NDArray[np.float32]]) -> None:
        """Set the residuals: what is not in `state` starts at zero, what has another shape does too, with a notice.

        Raises:
            NonFinite: a residual holds NaN or an infinity; nothing has changed.
            RuntimeError: a push is in flight.
        """
        if self.in_flight:
            raise RuntimeError("a push is in flight: commit it or roll it back before residuals are loaded")
        loaded = {name: np.array(values, np.float32) for name, values in state.items()} if self.enabled else {}
        for name, values in loaded.items():
            if not (np.abs(values) <= LARGEST_VALUE).all():
                raise NonFinite(name, f"the saved residual of {name!r} is not finite; leave it out of the checkpoint")
        known = {name: place.shape for name, place in self.layout.places.items()}
        self.layout = Layout(self._block_size)
        self._taken, self._working = self._taken[:0], self._working[:0]
        self._loaded = loaded
        self.make_room({name: np.broadcast_to(np.float32(0), shape) for name, shape in known.items()})

    def take_notices(self) -> List[str]:
        """What `load_state` could not use, a sentence each, told once."""
        notices, self._notices = self._notices, []
        return notices

    def _grown(self, buffer: Values) -> Values:
        grown = np.zeros((self.layout.num_blocks, self._block_size), np.float32)
        grown[: len(buffer)] = buffer
        return grown

    def _end_flight(self) -> Plan:
        plan, self._in_flight = self._in_flight, None
        if plan is None:
            raise RuntimeError("there is no push in flight to commit or to roll back")
        return plan


def _non_finite(name: str, gradient: Values) -> NonFinite:
    if np.isfinite(gradient).all():
        return NonFinite(name, f"the gradient of {name!r} with its residual is beyond 2^126: training has diverged")
    return NonFinite(name, f"the gradient of {name!r} holds NaN or an infinity; it is not sent")
