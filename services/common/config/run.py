"""The run file's sections. `load.py` makes a `RunConfig` of file, environment and flags; parts get values, not this."""

from __future__ import annotations

import math
from typing import Any, Dict, Optional, Tuple, Union

from pydantic import Field, field_validator, model_validator
from typing_extensions import Annotated, Literal

from services.common.config.algorithms import DqnSettings, Section, Td3Settings
from services.common.config.values import Count, Names

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
    capacity: Annotated[Count, Field(ge=1)] = 1_000_000
    """Rows: steps and final observations."""
    n_step: Annotated[Count, Field(ge=1, le=1000)] = 3
    """Rewards summed in an item (n)."""
    discount: float = Field(0.99, gt=0, le=1)
    """Discount of a step (gamma)."""
    selector: Literal["prioritized", "uniform", "fifo"] = "prioritized"
    """How items are chosen: by priority, all alike, or the oldest first (a queue; needs max_times_sampled)."""
    max_times_sampled: Annotated[Count, Field(ge=0)] = 0
    """Draws after which an item leaves the sampler; 0: unlimited. With `fifo`, 1 makes an on-policy queue."""
    priority_rule: Literal["td_error", "td_error_visits"] = "td_error"
    """What p is made of: the TD error, or the TD error and how seldom the item was drawn."""
    td_weight: float = Field(0.7, ge=0, le=1)
    """Share of the TD error in `td_error_visits`; the rest is for items that were seldom drawn."""
    freshness_half_life_updates: float = Field(0.0, ge=0, allow_inf_nan=False)
    """An item whose policy is this many updates older is drawn half as often; 0: age does not count."""
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
    dump_dir: str = ""
    """Folder for lanes with values that are not finite. Empty: none, and under `shoal up` one in the run's folder."""
    max_dumps: Annotated[Count, Field(ge=0, le=100_000)] = 100
    """Such files that are kept, the newest; 0: none is written."""

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
        """`replay.error_buffer`, or twice what the largest call of either side needs: more lets actors run ahead."""
        if self.replay.error_buffer:
            return self.replay.error_buffer
        draws = self.learner.batch_size * self.learner.batches_per_sample
        return 2.0 * max(draws, self.replay.samples_per_insert * self.actor.chunk_steps * self.env.lanes)

    @property
    def max_open_steps(self) -> int:
        """Steps of all actors whose n-step windows are open at once: rows that are no items yet."""
        return self.replay.n_step * self.env.lanes * self.actor.count

    @property
    def _steps_in_flight(self) -> int:
        return self.actor.chunk_steps * self.env.lanes * self.actor.count

    @model_validator(mode="after")
    def _check_sizes_agree(self) -> RunConfig:
        replay, learner = self.replay, self.learner
        if learner.batch_size > replay.capacity:
            raise ValueError(
                f"learner.batch_size = {learner.batch_size} is larger than replay.capacity = {replay.capacity}; "
                "a table cannot hold one batch: raise the capacity or lower the batch size"
            )
        if replay.min_size_to_sample > replay.capacity - self._steps_in_flight:
            raise ValueError(
                f"replay.min_size_to_sample = {replay.min_size_to_sample} can never be reached: replay.capacity = "
                f"{replay.capacity} rows less the {self._steps_in_flight} steps that the actors' chunks hold "
                "(actor.chunk_steps x env.lanes x actor.count); raise the capacity or lower min_size_to_sample"
            )
        if replay.min_size_to_sample > replay.capacity - self.max_open_steps:
            raise ValueError(
                f"replay.min_size_to_sample = {replay.min_size_to_sample} can never be reached: replay.capacity = "
                f"{replay.capacity} rows less the {self.max_open_steps} steps whose windows are open (replay.n_step x "
                "env.lanes x actor.count); raise the capacity or lower min_size_to_sample"
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

    @model_validator(mode="after")
    def _check_sampling_agrees(self) -> RunConfig:
        replay, most = self.replay, self.replay.max_times_sampled
        if replay.selector == "fifo" and most == 0:
            raise ValueError(
                "replay.selector = 'fifo' with max_times_sampled = 0 would draw the oldest items for ever; set "
                "replay.max_times_sampled to at least 1"
            )
        if replay.selector != "prioritized" and replay.priority_rule != "td_error":
            raise ValueError(
                f"replay.priority_rule = {replay.priority_rule!r} has no effect with replay.selector = "
                f"{replay.selector!r}; choose 'prioritized', or leave the rule at 'td_error'"
            )
        if replay.selector == "fifo" and replay.freshness_half_life_updates:
            raise ValueError(
                "replay.freshness_half_life_updates has no effect with replay.selector = 'fifo', which draws by age "
                "alone; set it to 0"
            )
        if most and replay.samples_per_insert > most:
            raise ValueError(
                f"replay.samples_per_insert = {replay.samples_per_insert:g} deadlocks with max_times_sampled = {most}: "
                f"a step that is inserted brings at most {most} draws; raise max_times_sampled to at least "
                f"{math.ceil(replay.samples_per_insert)}, or lower samples_per_insert to {most}"
            )
        draws = self.learner.batch_size * self.learner.batches_per_sample
        room = replay.capacity - self.max_open_steps
        if most and most * (room // 2) < draws:
            least = 2 * math.ceil(draws / most) + self.max_open_steps
            raise ValueError(
                f"replay.capacity = {replay.capacity} deadlocks with max_times_sampled = {most}: one Sample draws "
                f"{draws} items (batch_size x batches_per_sample), and {room} rows without open windows (replay.n_step "
                f"x env.lanes x actor.count), each second of which may be a final observation, stand only "
                f"{most * max(0, room // 2)} draws; raise the capacity to at least {least}"
            )
        return self
