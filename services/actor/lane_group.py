"""Lane groups: an actor's lanes, split so that one group's simulator steps while another group infers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, List, Mapping

import numpy as np

from services.actor.chunk_writer import ChunkWriter
from services.actor.envs.contract import AutoReset
from services.actor.envs.factory import build_env
from services.actor.loop import act
from services.actor.narrowed_env import narrowed
from services.actor.parameter_client import ParameterClient
from services.actor.seeds import TRAINING, env_seed
from services.actor.watchdog import WatchedEnv
from services.agent.algorithm import Policy
from services.common.chunk import Chunk
from services.common.config.run import EnvSection
from services.common.errors import UserError
from services.common.lifecycle import Lifecycle
from services.common.rpc import MAX_MESSAGE_BYTES
from services.common.schema import Schema

BYTES_BESIDE = 22  # of a row: reward, flags, q_taken, value; of a final observation's: step, value, cut


@dataclass(frozen=True)
class LaneGroup:
    """A group's environment, how it explores, and its unfinished chunk. One thread acts in it."""

    index: int
    env: WatchedEnv
    seed: int
    policy: Policy
    writer: ChunkWriter

    def act(
        self,
        parameters: ParameterClient,
        *,
        send: Callable[[Chunk], None],
        rest: Callable[[], None],
        max_policy_age_s: float,
        lifecycle: Lifecycle,
    ) -> None:
        """The group's loop, until the process is to end; see `services.actor.loop.act`."""
        act(
            self.env,
            self.policy,
            parameters,
            self.writer,
            send=send,
            rest=rest,
            rng=np.random.default_rng(self.seed),
            seed=self.seed,
            max_policy_age_s=max_policy_age_s,
            lifecycle=lifecycle,
        )


def group_seed(run_seed: int, name: str, group: int) -> int:
    """Seeds a group's environment and noise; group 0's is that of an actor whose lanes are not split."""
    return env_seed(run_seed, TRAINING, name if group == 0 else f"{name}/{group}")


def group_rung(actor_index: int, num_actors: int, group: int, num_groups: int) -> Mapping[str, int]:
    """A group's place on the exploration ladder, as the arguments `actor_index` and `num_actors` of a policy.

    A group counts as an actor with L / G lanes. Lane l of group g then has the rung (l G + g) A + a, which is the rung
    of lane l G + g of an actor that is not split: the actor holds the same rungs, and each group spans the ladder.
    """
    return {"actor_index": group * num_actors + actor_index, "num_actors": num_actors * num_groups}


def build_envs(env: EnvSection, num_groups: int, seeds: List[int]) -> List[WatchedEnv]:
    """An environment for each group, of lanes / groups lanes.

    Raises:
        UserError: the environment cannot be built, or is not one that an actor can act in.
    """
    envs: List[WatchedEnv] = []
    for seed in seeds:
        built = build_env(env.factory, env.kwargs, env.lanes // num_groups, seed)
        if built.autoreset is AutoReset.DISABLED:
            raise UserError("the environment does not reset its lanes; let it do so in same_step or next_step mode")
        envs.append(WatchedEnv(narrowed(built, env.observation_dtypes)))
    return envs


def check_chunk_bytes(schema: Schema, num_lanes: int, chunk_steps: int) -> None:
    """Refuse chunks that could not be sent when all lanes end an episode in one, as they do at a time limit.

    Raises:
        UserError: says how large they are, and how many steps would do.
    """
    observation = sum(spec.num_bytes for spec in schema.observation)
    action = int(np.prod(schema.action.shape, dtype=np.int64)) * np.dtype(schema.action.dtype).itemsize
    step_bytes = num_lanes * (observation + action + BYTES_BESIDE)
    most = MAX_MESSAGE_BYTES // step_bytes - 1
    if chunk_steps > most:
        raise UserError(
            f"a chunk of actor.chunk_steps = {chunk_steps} steps of {num_lanes} lanes may take"
            f" {(chunk_steps + 1) * step_bytes:,} bytes, and {MAX_MESSAGE_BYTES:,} can be sent: "
            + (f"set it to {most} or less" if most > 0 else "split the lanes by actor.lane_groups")
        )


def device_of(env: Any) -> str:
    """Where an environment keeps its observations: its member `device`, or the host's memory where it has none."""
    return str(getattr(env, "device", "cpu"))
