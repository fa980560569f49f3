"""The actor's loop: newest parameters, act, step, append to the chunk, hand a full chunk to the writer."""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Any, Callable, Mapping, Optional

import numpy as np
import numpy.typing as npt

from services.actor.chunk_writer import ChunkWriter
from services.actor.envs.contract import VectorEnv
from services.actor.parameter_client import Draining, ParameterClient
from services.agent.algorithm import Policy
from services.common.chunk import Chunk
from services.common.lifecycle import Lifecycle
from services.common.parameter_set import ParameterSet
from services.common.rpc import Stopped


def act(
    env: VectorEnv,
    policy: Policy,
    parameters: ParameterClient,
    writer: ChunkWriter,
    *,
    send: Callable[[Chunk], None],
    rest: Callable[[], None],
    rng: np.random.Generator,
    seed: int,
    max_policy_age_s: float,
    lifecycle: Lifecycle,
) -> None:
    """Act until the process is to end; the loop knows no gRPC. Running episodes are cut at the stop, and sent.

    So they are when the run is drained: `rest` is called then, and new episodes begin when it returns.
    """
    lanes = _Lanes(env, policy, parameters, writer, send, rng)
    lanes.begin(seed)
    with contextlib.suppress(Stopped):
        while True:
            lanes.act(max_policy_age_s, lifecycle)
            if lifecycle.stopping.is_set():
                break
            lanes.cut()
            rest()
            lanes.begin(None)
    lanes.cut()


class _Lanes:
    """The lanes of one environment, between two cuts."""

    def __init__(
        self,
        env: VectorEnv,
        policy: Policy,
        parameters: ParameterClient,
        writer: ChunkWriter,
        send: Callable[[Chunk], None],
        rng: np.random.Generator,
    ) -> None:
        self._env = env
        self._policy = policy
        self._parameters = parameters
        self._writer = writer
        self._send = send
        self._rng = rng
        self._acting: Optional[ParameterSet] = None
        self._observation: Mapping[str, npt.NDArray[Any]] = {}
        self._has_stepped = False  # since the last cut

    def begin(self, seed: Optional[int]) -> None:
        """Begin new episodes in all lanes."""
        self._observation = self._env.reset(seed)
        self._has_stepped = False

    def act(self, max_policy_age_s: float, lifecycle: Lifecycle) -> None:
        """Act until the process is to end, or the run is drained.

        Raises:
            Stopped: the process is to end, and there was no policy to act with.
        """
        # An end on a chunk's border takes one more step, so that there is a row to cut the episodes at. One, and no
        # further: chunks of a single step never leave such a row.
        is_last_step = False
        with contextlib.suppress(Draining):
            while True:
                is_over = lifecycle.stopping.is_set() or self._parameters.is_draining
                if is_over and (is_last_step or not self._has_stepped or not self._writer.is_empty):
                    return
                is_last_step = is_over
                newest = self._parameters.wait_for_newest(max_policy_age_s)
                if self._parameters.is_draining and not self._has_stepped:
                    return  # the first set came with the word that the run is drained
                self._step(newest)

    def _step(self, newest: ParameterSet) -> None:
        if newest is not self._acting:
            self._policy.anneal(newest.updates)
            self._acting = newest
        decision = self._policy.act(newest.parameters, self._observation, self._rng)
        self._writer.record_decision(self._observation, decision, newest.version)
        step = self._env.step(decision.action)
        chunk = self._writer.record_outcome(
            step,
            partial(self._policy.value, newest.parameters),
            newest_version=self._parameters.newest_known_version,
        )
        if chunk is not None:
            self._send(chunk)
        self._observation = step.observation
        self._has_stepped = True

    def cut(self) -> None:
        """Cut the running episodes, and hand over the unfinished chunk."""
        last = self._parameters.newest
        if last is not None:
            tail = self._writer.cut(self._observation, partial(self._policy.value, last.parameters))
            if tail is not None:
                self._send(tail)
