"""One published set as it travels: made when it is first asked for, once for all readers."""

from __future__ import annotations

import threading
from typing import Any, List, Mapping, Optional

import google_crc32c
import numpy.typing as npt
from typing_extensions import TypeAlias

from services.common.config.values import WireDtype
from services.common.parameter_download import PART_BYTES
from services.common.parameter_set import digest_of, encode_set
from shoal.v1 import parameters_pb2

Role: TypeAlias = "parameters_pb2.ParameterRole.ValueType"
MAX_PART_BYTES = 4 * PART_BYTES


class PublishedSet:
    """One version of the set of one role. Thread-safe.

    Nothing is serialized before somebody asks: a set that nobody fetches is free. Then the answers to `Get` are kept
    in the place of the arrays, ready to be sent: checksums and messages are made once and not once a reader.
    """

    def __init__(
        self, role: Role, version: int, updates: int, parameters: Mapping[str, npt.NDArray[Any]], wire_dtype: WireDtype
    ) -> None:
        """Take over `parameters`.

        Args:
            role: of the set.
            version: of the set.
            updates: behind it.
            parameters: name -> array; nobody writes into them any more.
            wire_dtype: what they travel in.
        """
        self.role = role
        self.version = version
        self.updates = updates
        self._parameters: Optional[Mapping[str, npt.NDArray[Any]]] = parameters
        self.array_bytes = sum(array.nbytes for array in parameters.values())  # in memory, before it is packed
        self._wire_dtype = wire_dtype
        self._lock = threading.Lock()
        self._answers: List[bytes] = []
        self._size_bytes = 0
        self._digest = ""

    @property
    def size_bytes(self) -> int:
        """Of the set as it travels."""
        self._serialize()
        return self._size_bytes

    @property
    def digest(self) -> str:
        """BLAKE2b of the set as it travels, 32 hex digits."""
        self._serialize()
        return self._digest

    @property
    def is_serialized(self) -> bool:
        """Whether anybody asked for it."""
        return self._parameters is None

    @property
    def data(self) -> bytes:
        """The set as it travels (safetensors); put together anew at each call."""
        self._serialize()
        return b"".join(parameters_pb2.GetParametersResponse.FromString(answer).data for answer in self._answers)

    def answer(self, offset_bytes: int, max_bytes: int) -> bytes:
        """A serialized `GetParametersResponse` with a part of the set and its checksum.

        Args:
            offset_bytes: where the part begins.
            max_bytes: of the part; 0: as many as readers of ours ask for.
        """
        self._serialize()
        size = min(max_bytes or PART_BYTES, MAX_PART_BYTES)
        if size == PART_BYTES and offset_bytes % PART_BYTES == 0:
            number = offset_bytes // PART_BYTES
            return self._answers[number] if number < len(self._answers) else b""
        return _answer(self.data[offset_bytes : offset_bytes + size])

    def _serialize(self) -> None:
        with self._lock:  # readers that come together wait for one of them
            if self._parameters is None:
                return
            data = encode_set(self._parameters, self._wire_dtype)
            self._digest = digest_of(data)
            self._size_bytes = len(data)
            self._answers = [_answer(data[at : at + PART_BYTES]) for at in range(0, len(data), PART_BYTES)]
            self._parameters = None


def _answer(part: bytes) -> bytes:
    message = parameters_pb2.GetParametersResponse(data=part, crc32c=google_crc32c.value(part))
    return message.SerializeToString()
