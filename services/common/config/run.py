"""The run file's sections. `load.py` makes a `RunConfig` of file, environment and flags; parts get values, not this."""

from __future__ import annotations

from typing import Any, Dict, Optional, Tuple, Union

from pydantic import Field, field_validator, model_validator
from typing_extensions import Annotated, Literal

from services.common.config.agreement import check_agreement
from services.common.config.algorithms import DqnSettings, Section, Td3Settings
from services.common.config.gradients import GradientsSection, HelperSection
from services.common.config.replay import ReplaySection
from services.common.config.security import SecuritySection
from services.common.config.staleness import StalenessSection
from services.common.config.values import (
    Count,
    Period,
    Port,
    PublishPeriod,
    WireDtype,
    check_address,
    check_device,
    publish_period,
)

MAX_SEED = 2**31 - 1
Level = Literal["debug", "info", "warning", "error"]


class RunSection(Section):
    """`[run]`: what this run is called and where its files go."""

    name: str = Field("", pattern=r"^[A-Za-z0-9._-]*$", max_length=100)
    """Name of the run and its folder. Empty: `shoal up` makes one of the file's name and the time."""
    folder: str = Field("runs", min_length=1)
    """Folder that holds the runs' folders."""
    seed: Annotated[Count, Field(ge=0, le=MAX_SEED)] = 1
    """Seeds everything: networks, environments, exploration, sampling."""

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if name in {".", ".."}:
            raise ValueError(f"{name!r} is no name of a folder; choose letters and digits")
        return name


class EnvSection(Section):
    """`[env]`: the environment that actors and evaluator step."""

    factory: str = Field("services.actor.envs.arm:make_reach", min_length=1)
    """`package.module:function`, or a gymnasium id such as `CartPole-v1`."""
    kwargs: Dict[str, Any] = Field(default_factory=dict)
    """Passed to the factory."""
    lanes: Annotated[Count, Field(ge=1, le=65536)] = 16
    """Environments that an actor steps."""
    observation_dtypes: Dict[str, Literal["float16", "float32"]] = Field(default_factory=dict)
    """Observations of reals that are sent and stored as another dtype, by name: `{ policy = "float16" }`."""


class LearnerSection(Section):
    """`[learner]`: the training loop."""

    address: str = "127.0.0.1:7402"
    """Where actors and evaluator find the chief, and where it listens unless `listen` says otherwise."""
    listen: str = ""
    """Where the chief listens, where that is not how others reach it, as in 0.0.0.0:7402. Empty: at `address`."""
    metrics_port: Port = 9402
    """Prometheus endpoint; 0: any free port."""
    batch_size: Annotated[Count, Field(ge=1)] = 256
    """Items of one update."""
    max_updates: Annotated[Count, Field(ge=1)] = 8000
    """Updates after which training is finished."""
    importance_exponent: float = Field(0.4, ge=0, le=1)
    """beta of the importance weights w = (N P)^-beta / max w."""
    publish_period: Period = 20
    """Between two published versions: a number of updates, or seconds, as in "2s"."""
    average_rate: float = Field(0.0, ge=0, lt=1)
    """tau of the averaged policy, taken in at each update and published beside the policy; 0: there is none."""
    wire_dtype: WireDtype = "float32"
    """What acting parameters travel in; readers compute in float32."""
    checkpoint_period_s: float = Field(5.0, gt=0)
    """Seconds between two checkpoints."""
    checkpoints_kept: Annotated[Count, Field(ge=1, le=1000)] = 3
    """The last checkpoints, which are kept beside that of the best version."""
    max_non_finite_updates: Annotated[Count, Field(ge=1)] = 10
    """Updates in a row that may be stopped because they are not finite, beyond those drawn ahead, before it ends."""
    batches_per_sample: Annotated[Count, Field(ge=1, le=64)] = 8
    """Batches asked for in one Sample call (K); fewer where rows of more than 32 MiB would come with it."""
    samples_in_flight: Annotated[Count, Field(ge=1, le=16)] = 3
    """Sample calls under way at once. No more than this times batches_per_sample is drawn ahead of the training."""
    transport: Literal["auto", "grpc", "mapped"] = "auto"
    """How rows come: from the mapped ring of a replay on the same host, over gRPC, or the first where it can be."""
    device: str = "cpu"
    """torch device: cpu, cuda, or cuda:N."""
    torch_threads: Annotated[Count, Field(ge=1)] = 1
    """Threads of torch; one where processes share cores."""

    @property
    def listens_at(self) -> str:
        """Where the chief binds."""
        return self.listen or self.address

    @property
    def publish_schedule(self) -> PublishPeriod:
        """`publish_period` as the publisher takes it."""
        return publish_period(self.publish_period)

    @field_validator("address")
    @classmethod
    def _check_address(cls, address: str) -> str:
        return check_address(address)

    @field_validator("listen")
    @classmethod
    def _check_listen(cls, address: str) -> str:
        return check_address(address) if address else address

    @field_validator("device")
    @classmethod
    def _check_device(cls, device: str) -> str:
        return check_device(device)


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
    """How often the chief is asked for a newer version when no hint came; seldomer where there are many actors."""
    lane_groups: Annotated[Count, Field(ge=1, le=64)] = 1
    """Groups that the lanes are split over; each steps its own environment on a thread, while another infers."""
    inference: Literal["auto", "numpy", "torch"] = "auto"
    """What runs the policy: torch where observations lie on a GPU and else numpy, or the one that is named."""
    torch_threads: Annotated[Count, Field(ge=1, le=1024)] = 1
    """Threads of the policy's arithmetic; one where processes share cores."""
    cpus: Tuple[Annotated[Count, Field(ge=0)], ...] = ()
    """CPUs that an actor may run on; empty: as it was started."""
    max_step_s: float = Field(30.0, gt=0)
    """A step of the environment that takes longer is said to hang."""
    compression: Literal["none", "lz4", "zstd"] = "none"
    """How observations of uint8 (images) are packed on the way to the replay."""


class EvaluatorSection(Section):
    """`[evaluator]`: judges published versions while training goes on."""

    enabled: bool = True
    """Whether `shoal up` starts one."""
    metrics_port: Port = 9403
    """Prometheus endpoint; 0: any free port."""
    episodes: Annotated[Count, Field(ge=1)] = 50
    """Episodes of goal set A behind each judgement."""
    parameters: Literal["act", "average"] = "act"
    """Which policy is judged, and kept as the best: the newest, or the averaged one (`learner.average_rate`)."""
    period_s: float = Field(0.5, gt=0)
    """Pause between two judgements, and between two questions for a newer version."""
    nice: int = Field(10, ge=0, le=19)
    """Priority of the process: higher yields to the others."""


class MetricsSection(Section):
    """`[metrics]`: the Prometheus endpoints of all services."""

    host: str = Field("127.0.0.1", min_length=1)
    """Where endpoints listen: a name or address of the machine; 0.0.0.0 for all of its addresses."""


class LogSection(Section):
    """`[log]`: lines on standard output."""

    style: Literal["console", "json"] = "console"
    """`console` for people, `json` for machines: one object a line, with service, run and incarnation."""
    level: Level = "info"
    """Lines below it are left out."""
    levels: Dict[Literal["replay", "learner", "helper", "actor", "evaluator"], Level] = Field(default_factory=dict)
    """Another level for some services, as in `{ replay = "debug" }`."""

    def level_of(self, service: str) -> Level:
        """The level of one service."""
        return next((level for name, level in self.levels.items() if name == service), self.level)


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


class NormalizationSection(Section):
    """`[normalization]`: what is done to observations and rewards before networks see them."""

    observations: bool = False
    """Whether observations, but for images, are brought to a mean of 0 and a deviation of 1."""
    warmup_steps: Annotated[Count, Field(ge=1)] = 10_000
    """Steps whose statistics are used; once there are as many they are frozen."""
    reward_scale: float = Field(1.0, gt=0, le=1e6)
    """Constant that the learner multiplies rewards with."""


class RunConfig(Section):
    """The whole run file."""

    run: RunSection = Field(default_factory=RunSection)
    env: EnvSection = Field(default_factory=EnvSection)
    algorithm: AlgorithmSection = Field(default_factory=AlgorithmSection)
    td3: Td3Settings = Field(default_factory=Td3Settings)
    dqn: DqnSettings = Field(default_factory=DqnSettings)
    replay: ReplaySection = Field(default_factory=ReplaySection)
    learner: LearnerSection = Field(default_factory=LearnerSection)
    helper: HelperSection = Field(default_factory=HelperSection)
    gradients: GradientsSection = Field(default_factory=GradientsSection)
    actor: ActorSection = Field(default_factory=ActorSection)
    staleness: StalenessSection = Field(default_factory=StalenessSection)
    evaluator: EvaluatorSection = Field(default_factory=EvaluatorSection)
    report: ReportSection = Field(default_factory=ReportSection)
    normalization: NormalizationSection = Field(default_factory=NormalizationSection)
    log: LogSection = Field(default_factory=LogSection)
    metrics: MetricsSection = Field(default_factory=MetricsSection)
    security: SecuritySection = Field(default_factory=SecuritySection)

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
        """`replay.error_buffer`, or twice what the largest call of either side needs: more lets actors run ahead."""
        if self.replay.error_buffer:
            return self.replay.error_buffer
        draws = self.learner.batch_size * self.learner.batches_per_sample
        return 2.0 * max(draws, self.replay.samples_per_insert * self.actor.chunk_steps * self.env.lanes)

    @property
    def prefetched_batches(self) -> int:
        """Batches that may be drawn and not yet trained on: those in the queue, and those of the calls under way."""
        return self.learner.batches_per_sample * self.learner.samples_in_flight

    @property
    def max_open_steps(self) -> int:
        """Steps of all actors whose n-step windows are open at once: rows that are no items yet."""
        return self.replay.n_step * self.env.lanes * self.actor.count

    @property
    def steps_in_flight(self) -> int:
        """Steps that the chunks of all actors hold."""
        return self.actor.chunk_steps * self.env.lanes * self.actor.count

    @model_validator(mode="after")
    def _check_agreement(self) -> RunConfig:
        check_agreement(self)
        return self
