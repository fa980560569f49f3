"""The helper's end: gradients in, segments for a push out, and the residual kept by what became of the push."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Tuple

import numpy as np
import numpy.typing as npt

from services.learner.gradients.codec import (
    LARGEST_CODE,
    MAX_BLOCK_SIZE,
    MIN_BLOCK_SIZE,
    Values,
    block_scales,
    quantize,
    scale_exponents,
    subtract_decoded,
)
from services.learner.gradients.feedback import ErrorFeedback
from services.learner.gradients.layout import STRIP_VALUES, Place, Plan
from services.learner.gradients.packing import Packer
from services.learner.gradients.wire import CODECS, extend_checksum
from shoal.v1 import gradients_pb2 as pb2

_CODE_DTYPES: Dict[str, np.dtype[Any]] = {"int8": np.dtype("int8"), "fp16": np.dtype("<f2"), "none": np.dtype("<f4")}


@dataclass(frozen=True)
class EncodedGradients:
    """The content of one push; sending it again sends the same bytes."""

    segments: List[pb2.GradientSegment]  # of the tensors, in the order of the encoder's buffer
    crc32c: int
    num_bytes: int  # that the segments take on the wire
    raw_bytes: int  # that the same gradients take as float32


class GradientEncoder:
    """Turns gradients into pushes, one in flight at a time.

    After `encode` the push is in flight: it is sent, and resent, until the chief gives a definite answer; then `commit`
    (accepted, scaled) or `rollback` (anything else) follows, and the next `encode` may come. One thread uses it.
    """

    def __init__(self, codec: str, block_size: int, error_feedback: bool, packing: str) -> None:
        """Start with residuals of zero.

        Args:
            codec: "int8" in blocks, "fp16", or "none" (float32, which leaves no error to feed back).
            block_size: values that share a scale, 1024 to 2048; a power of two or not.
            error_feedback: add what a push could not say to the next.
            packing: "zstd", "zlib" or "none".

        Raises:
            ValueError: an argument is out of its range.
            UserError: the packing's package is not installed.
        """
        if codec not in CODECS:
            raise ValueError(f"codec is {codec!r}; known are {', '.join(CODECS)}")
        if not MIN_BLOCK_SIZE <= block_size <= MAX_BLOCK_SIZE:
            raise ValueError(f"block_size is {block_size}; it must be {MIN_BLOCK_SIZE} to {MAX_BLOCK_SIZE}")
        self._codec = codec
        self._block_size = block_size
        self._packer = Packer(packing)
        self._feedback = ErrorFeedback(block_size, enabled=error_feedback and codec != "none")
        self._scratch = np.empty((max(1, STRIP_VALUES // block_size), block_size), np.float32)
        self._absmax = np.zeros(0, np.float32)
        self._codes: npt.NDArray[Any] = np.zeros((0, block_size), _CODE_DTYPES[codec])

    def encode(self, gradients: Mapping[str, npt.NDArray[np.float32]]) -> EncodedGradients:
        """Encode the gradients of some tensors, or of all of them.

        Args:
            gradients: name -> <float32>[shape], means over the batch, not clipped.

        Raises:
            NonFinite: one holds NaN or an infinity; nothing has changed, and no push is in flight.
            BadGradient: a tensor had another shape before.
            ValueError: there is none.
            RuntimeError: the last push has neither been committed nor rolled back.
        """
        feedback = self._feedback
        if feedback.in_flight:
            raise RuntimeError("the last push has no answer yet: commit it or roll it back before the next is encoded")
        if not gradients:
            raise ValueError("there are no gradients to encode")
        arrays = {name: np.asarray(gradient, np.float32, order="C") for name, gradient in gradients.items()}
        feedback.make_room(arrays)
        self._make_room(feedback.layout.num_blocks)
        plan = feedback.correct(arrays, self._absmax, self._scratch)
        halves, exponents = self._quantize(plan)
        segments, crc = [], 0
        for place, exponent in zip(plan.places, exponents.tolist()):
            segment, crc = self._segment(place, halves, exponent, crc)
            segments.append(segment)
        feedback.send(plan)
        return EncodedGradients(
            segments=segments,
            crc32c=crc,
            num_bytes=sum(segment.ByteSize() for segment in segments),
            raw_bytes=sum(4 * place.size for place in plan.places),
        )

    def commit(self) -> None:
        """The chief took the push: the residual that it left counts from now on."""
        self._feedback.commit()

    def rollback(self) -> None:
        """The chief refused the push: the residual is what it was before, and the gradient is gone."""
        self._feedback.rollback()

    @property
    def residual_norm(self) -> float:
        """Euclidean norm of the residual, without the push in flight."""
        return self._feedback.norm

    def state(self) -> Dict[str, npt.NDArray[np.float32]]:
        """A copy of the residuals for a checkpoint, name -> <float32>[shape]; a push in flight does not count."""
        return self._feedback.state()

    def load_state(self, state: Mapping[str, npt.NDArray[np.float32]]) -> None:
        """Take up residuals by name and shape; what is missing or has another shape starts at zero.

        A shape shows when its gradient comes, and `take_notices` then says which residual could not be used.

        Raises:
            NonFinite: a residual is not finite; nothing has changed.
            RuntimeError: a push is in flight.
        """
        self._feedback.load_state(state)

    def take_notices(self) -> List[str]:
        """Sentences about residuals that could not be used, each told once: the caller logs them."""
        return self._feedback.take_notices()

    def _make_room(self, num_blocks: int) -> None:
        if len(self._absmax) < num_blocks:
            self._absmax = np.zeros(num_blocks, np.float32)
            if self._codec != "none":
                self._codes = np.empty((num_blocks, self._block_size), self._codes.dtype)

    def _quantize(self, plan: Plan) -> Tuple[npt.NDArray[np.float16], npt.NDArray[np.int32]]:
        """Write the codes of a pass, and leave the residual in the working buffer.

        Returns:
            Scales of the blocks in the buffer's order [num_blocks], and e of each of the plan's tensors.
        """
        num_blocks = len(self._absmax)
        exponents = np.zeros(len(plan.places), np.int32)
        halves = np.zeros(num_blocks, np.float16)
        if self._codec == "none":
            self._codes = self._feedback.working
            return halves, exponents
        absmax = self._absmax[plan.blocks]
        if len(absmax):
            largest = np.maximum.reduceat(absmax, plan.starts).astype(np.float64)
            exponents[plan.owners[plan.starts]] = scale_exponents(
                largest / LARGEST_CODE if self._codec == "int8" else largest
            )
        by_block = exponents[plan.owners]
        scales, reciprocals = np.zeros(num_blocks, np.float32), np.zeros(num_blocks, np.float32)
        if self._codec == "int8":
            halves[plan.blocks], scales[plan.blocks], reciprocals[plan.blocks] = block_scales(absmax, by_block)
        else:
            scales[plan.blocks] = np.ldexp(np.float32(1), by_block)
            reciprocals[plan.blocks] = np.ldexp(np.float32(1), -by_block)
        self._write_codes(plan, scales, reciprocals)
        return halves, exponents

    def _write_codes(self, plan: Plan, scales: Values, reciprocals: Values) -> None:
        for strip in plan.strips:
            blocks = strip.blocks
            values, scratch = self._feedback.working[blocks], self._scratch[: strip.end_block - strip.first_block]
            quantize(values, reciprocals[blocks], scratch, self._codes[blocks])
            if self._feedback.enabled:
                subtract_decoded(values, scales[blocks], scratch)

    def _segment(
        self, place: Place, halves: npt.NDArray[np.float16], exponent: int, crc: int
    ) -> Tuple[pb2.GradientSegment, int]:
        """One tensor's segment, and the checksum `crc` with it."""
        codes = self._codes.reshape(-1)[place.values].reshape(place.shape)
        data, packing, order = self._packer.pack(codes)
        has_blocks = self._codec == "int8"
        scales = halves[place.blocks].astype("<f2", copy=False).tobytes() if has_blocks else b""
        segment = pb2.GradientSegment(
            tensor=place.name,
            shape=place.shape,
            codec=CODECS[self._codec],
            block_size=self._block_size if has_blocks else 0,
            scales=scales,
            packing=packing,
            data=data,
            scale_exponent=exponent,
            order=order,
        )
        return segment, extend_checksum(crc, segment, scales, data)
