"""The run file's `[helper]` and `[gradients]`: learners that help the chief, and how their gradients become steps."""

from __future__ import annotations

from pydantic import Field, field_validator, model_validator
from typing_extensions import Annotated, Literal

from services.common.config.algorithms import Section
from services.common.config.values import Count, Port, check_address


class HelperSection(Section):
    """`[helper]`: learners that compute gradients for the chief."""

    chief: str = ""
    """Address of the chief that this learner helps. Empty: it is the chief. `--chief` is short for the flag."""
    name: str = Field("", pattern=r"^[A-Za-z0-9._-]*$", max_length=100)
    """Unique name, under which its residual is kept. Empty: made of host and process, and nothing is kept."""
    count: Annotated[Count, Field(ge=0, le=256)] = 0
    """Helpers that `shoal up` starts."""
    metrics_port: Port = 0
    """Prometheus endpoint; 0: any free port."""

    @field_validator("chief")
    @classmethod
    def _check_chief(cls, chief: str) -> str:
        return check_address(chief) if chief else chief

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if name in {".", ".."}:
            raise ValueError(f"{name!r} is no name of a file; choose letters and digits")
        return name


class GradientsSection(Section):
    """`[gradients]`: how helpers' gradients travel, and how they become steps."""

    mode: Literal["synchronous", "asynchronous"] = "synchronous"
    """One gradient of each contributor a step; or a step for each `accumulate` gradients, as they come."""
    accumulate: Annotated[Count, Field(ge=2, le=1024)] = 5
    """Gradients of an asynchronous step, the chief's own included."""
    max_lag_updates: Annotated[Count, Field(ge=0, le=1_000_000)] = 4
    """Updates that an asynchronous gradient may be behind; later ones are refused."""
    codec: Literal["int8", "fp16", "none"] = "int8"
    """How a helper sends them: int8 in blocks with a scale each, float16, or float32."""
    block_size: Annotated[Count, Field(ge=1024, le=2048)] = 2048
    """Values that share a scale, with int8."""
    error_feedback: bool = True
    """Whether a helper adds what one push lost to the next."""
    packing: Literal["zstd", "zlib", "none"] = "zstd"
    """Lossless packing of what is sent."""
    lease_s: float = Field(5.0, ge=0.1, le=3600)
    """A helper silent for longer is not waited for."""
    max_helpers: Annotated[Count, Field(ge=1, le=256)] = 16
    """Helpers that may take part at once; a further one is refused."""

    @model_validator(mode="after")
    def _check_lockstep(self) -> GradientsSection:
        if self.mode == "asynchronous" and self.max_lag_updates == 0:
            raise ValueError(
                "gradients.max_lag_updates = 0 with mode = 'asynchronous' would refuse each gradient that an update "
                "overtook, and most are overtaken; lockstep is mode = 'synchronous', or allow at least 1"
            )
        return self
