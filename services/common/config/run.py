"""The run file's sections. `load.py` makes a `RunConfig` of file, environment and flags; parts get values, not this."""

from __future__ import annotations

from typing import Any, Dict, Optional, Tuple, Union

from pydantic import ByteSize, Field, field_validator, model_validator
from typing_extensions import Annotated, Literal

from services.common.config.algorithms import DqnSettings, Section, Td3Settings
from services.common.config.values import Count, Names

DEFAULT_CAPACITY = 1_000_000  # rows
LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "[::1]")


def check_address(address: str) -> str:
    """Return `address` if it is HOST:PORT on loopback.

    Raises:
        ValueError: it is not. Without TLS and tokens nothing listens or talks beyond the machine.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{address!r} is no address; write HOST:PORT, as in 127.0.0.1:7401")
    if host not in LOOPBACK_HOSTS:
        raise ValueError(
            f"{address!r} is not on loopback ({', '.join(LOOPBACK_HOSTS)}); without TLS and a token shoal stays there"
        )
    return address


Port = Annotated[int, Field(ge=0, le=65535)]


class RunSection(Section):
    """`[run]`: what this run is called and where its files go."""

    name: str = Field("", pattern=r"^[A-Za-z0-9._-]*$")
    """Name of the run and its folder. Empty: `shoal up` makes one of the file's name and the time."""
    folder: str = "runs"
    """Folder that holds the runs' folders."""
    seed: Annotated[Count, Field(ge=0)] = 1
    """Seeds everything: networks, environments, exploration, sampling."""


class EnvSection(Section):
    """`[env]`: the environment that actors and evaluator step."""

    factory: str = Field("services.actor.envs.arm:make_reach", min_length=1)
    """`package.module:function`, or a gymnasium id such as `CartPole-v1`."""
    kwargs: Dict[str, Any] = Field(default_factory=dict)
    """Passed to the factory."""
    lanes: Annotated[Count, Field(ge=1, le=65536)] = 16
    """Environments that an actor steps together."""


class ReplaySection(Section):
    """`[replay]`: the table, its sampling and its rate limiter."""

    addresses: Annotated[Names, Field(min_length=1)] = ("127.0.0.1:7401",)
    """Where the replay listens and its clients find it."""
    metrics_port: Port = 9401
    """Prometheus endpoint; 0: any free port."""
    capacity: Optional[Annotated[Count, Field(ge=1)]] = None
    """Rows: steps and final observations. Not given, nor `memory`: 1,000,000."""
    memory: Optional[ByteSize] = None
    """Bytes for everything that the table holds, as in "8GiB", instead of `capacity`."""
    data_dir: str = ""
    """Folder of rings that outlive their process, one for each run; empty: the ring is in memory."""
    n_step: Annotated[Count, Field(ge=1, le=1000)] = 3
    """Rewards summed in an item (n)."""
    discount: float = Field(0.99, gt=0, le=1)
    """Discount of a step (gamma)."""
    priority_exponent: float = Field(0.6, ge=0, le=1)
    """alpha: an item is drawn with a chance in proportion to p^alpha; 0 is uniform."""
    samples_per_insert: float = Field(0.0, ge=0)
    """Items drawn for each step inserted; 0: unlimited."""
    error_buffer: float = Field(0.0, ge=0)
    """Draws that either side may run ahead of samples_per_insert; 0: chosen from batch and chunk sizes."""
    min_size_to_sample: Annotated[Count, Field(ge=1)] = 1000
    """Items in the table before the first draw."""
    max_actor_silence_s: float = Field(30.0, gt=0)
    """An actor silent for longer is taken for dead: its open windows are closed."""

    @property
    def capacity_rows(self) -> Optional[int]:
        """Rows, or None where `memory` decides: that takes the schema."""
        if self.capacity is None and self.memory is None:
            return DEFAULT_CAPACITY
        return self.capacity

    @model_validator(mode="after")
    def _check_one_size(self) -> ReplaySection:
        if self.capacity is not None and self.memory is not None:
            raise ValueError(
                f"replay.capacity = {self.capacity} and replay.memory = {self.memory.human_readable()} both say how "
                "large the table is; set one of them"
            )
        return self

    @field_validator("addresses")
    @classmethod
    def _check_addresses(cls, addresses: Tuple[str, ...]) -> Tuple[str, ...]:
        for address in addresses:
            check_address(address)
        if len(addresses) > 1:
            raise ValueError(f"{len(addresses)} addresses; this version runs one replay, so give one")
        return addresses


class LearnerSection(Section):
    """`[learner]`: the training loop."""

    address: str = "127.0.0.1:7402"
    """Where the chief listens and actors and evaluator find it."""
    metrics_port: Port = 9402
    """Prometheus endpoint; 0: any free port."""
    batch_size: Annotated[Count, Field(ge=1)] = 256
    """Items of one update."""
    max_updates: Annotated[Count, Field(ge=1)] = 8000
    """Updates after which training is finished."""
    importance_exponent: float = Field(0.4, ge=0, le=1)
    """beta of the importance weights w = (N P)^-beta / max w."""
    publish_period: Annotated[Count, Field(ge=1)] = 20
    """Updates between two published versions."""
    checkpoint_period_s: float = Field(5.0, gt=0)
    """Seconds between two checkpoints."""
    batches_per_sample: Annotated[Count, Field(ge=1, le=64)] = 4
    """Batches asked for in one Sample call (K)."""
    samples_in_flight: Annotated[Count, Field(ge=1, le=16)] = 2
    """Sample calls under way at once."""
    device: str = "cpu"
    """torch device."""
    torch_threads: Annotated[Count, Field(ge=1)] = 1
    """Threads of torch; one where processes share cores."""

    @field_validator("address")
    @classmethod
    def _check_address(cls, address: str) -> str:
        return check_address(address)


class ActorSection(Section):
    """`[actor]`: every actor of the run."""

    count: Annotated[Count, Field(ge=1, le=1024)] = 2
    """Actors that `shoal up` starts."""
    index: Optional[int] = Field(None, ge=0)
    """This actor's rung of the exploration ladder; not given: leased from the chief."""
    name: str = Field("", pattern=r"^[A-Za-z0-9._-]*$")
    """Unique name; empty: `actor-INDEX`, or made of host and process when there is no index."""
    metrics_port: Port = 0
    """Prometheus endpoint; 0: any free port."""
    chunk_steps: Annotated[Count, Field(ge=1, le=65536)] = 10
    """Steps of each lane in a chunk (T)."""
    buffer_chunks: Annotated[Count, Field(ge=1, le=65536)] = 4
    """Chunks that wait for the replay before `on_full` applies."""
    on_full: Literal["block", "drop_oldest"] = "block"
    """What a full buffer does: hold the actor, or drop the oldest chunk (counted)."""
    max_policy_age_s: float = Field(60.0, gt=0)
    """The actor parks when its parameters could not be confirmed as the newest for this long."""
    poll_period_s: float = Field(1.0, gt=0)
    """How often the chief is asked for a newer version when no hint came."""


class EvaluatorSection(Section):
    """`[evaluator]`: judges published versions while training goes on."""

    enabled: bool = True
    """Whether `shoal up` starts one."""
    metrics_port: Port = 9403
    """Prometheus endpoint; 0: any free port."""
    episodes: Annotated[Count, Field(ge=1)] = 50
    """Episodes of goal set A behind each judgement."""
    period_s: float = Field(0.5, gt=0)
    """Pause between two judgements, and between two questions for a newer version."""
    nice: int = Field(10, ge=0, le=19)
    """Priority of the process: higher yields to the others."""


class ReportSection(Section):
    """`[report]`: the evaluation that ends a run."""

    episodes: Annotated[Count, Field(ge=1)] = 200
    """Episodes of the held-out goal set B."""
    video: bool = True
    """Whether eval.mp4 is drawn (needs a renderer)."""


class AlgorithmSection(Section):
    """`[algorithm]`: which one; its settings are in the section of its name."""

    name: Literal["td3", "dqn"] = "td3"
    """`td3` for continuous actions, `dqn` for discrete ones."""


class RunConfig(Section):
    """The whole run file."""

    run: RunSection = Field(default_factory=RunSection)
    env: EnvSection = Field(default_factory=EnvSection)
    algorithm: AlgorithmSection = Field(default_factory=AlgorithmSection)
    td3: Td3Settings = Field(default_factory=Td3Settings)
    dqn: DqnSettings = Field(default_factory=DqnSettings)
    replay: ReplaySection = Field(default_factory=ReplaySection)
    learner: LearnerSection = Field(default_factory=LearnerSection)
    actor: ActorSection = Field(default_factory=ActorSection)
    evaluator: EvaluatorSection = Field(default_factory=EvaluatorSection)
    report: ReportSection = Field(default_factory=ReportSection)

    def named(self, name: str) -> RunConfig:
        """This run file, with `name` for a run that has none."""
        if self.run.name:
            return self
        return self.model_copy(update={"run": self.run.model_copy(update={"name": name})})

    @property
    def algorithm_settings(self) -> Union[Td3Settings, DqnSettings]:
        """The section of the chosen algorithm."""
        return self.td3 if self.algorithm.name == "td3" else self.dqn

    @property
    def error_buffer(self) -> float:
        """`replay.error_buffer`, or what the largest calls of both sides need several times over."""
        if self.replay.error_buffer:
            return self.replay.error_buffer
        return 4.0 * max(self._draws_in_flight, self.replay.samples_per_insert * self._steps_in_flight)

    @property
    def _draws_in_flight(self) -> int:
        learner = self.learner
        return learner.batch_size * learner.batches_per_sample * learner.samples_in_flight

    @property
    def _steps_in_flight(self) -> int:
        return self.actor.chunk_steps * self.env.lanes * self.actor.count

    @model_validator(mode="after")
    def _check_sizes_agree(self) -> RunConfig:
        replay, learner = self.replay, self.learner
        capacity = replay.capacity_rows
        if capacity is not None and learner.batch_size > capacity:
            raise ValueError(
                f"learner.batch_size = {learner.batch_size} is larger than replay.capacity = {capacity}; "
                "a table cannot hold one batch: raise the capacity or lower the batch size"
            )
        if capacity is not None and replay.min_size_to_sample > capacity - self._steps_in_flight:
            raise ValueError(
                f"replay.min_size_to_sample = {replay.min_size_to_sample} can never be reached: replay.capacity = "
                f"{capacity} rows less the {self._steps_in_flight} steps that the actors' chunks hold "
                "(actor.chunk_steps x env.lanes x actor.count); raise the capacity or lower min_size_to_sample"
            )
        if replay.samples_per_insert and replay.error_buffer:
            draws = learner.batch_size * learner.batches_per_sample
            inserts = replay.samples_per_insert * self.actor.chunk_steps * self.env.lanes
            if replay.error_buffer < max(draws, inserts):
                raise ValueError(
                    f"replay.error_buffer = {replay.error_buffer:g} deadlocks: one Sample draws {draws} items "
                    f"(batch_size x batches_per_sample) and one chunk allows {inserts:g} more (samples_per_insert x "
                    f"chunk_steps x lanes); set it to at least {max(draws, inserts):g}, or to 0 to have it chosen"
                )
        return self
