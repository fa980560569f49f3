"""Any gymnasium environment under our contract, by its id or as a vector environment that exists already."""

from __future__ import annotations

import copy
from typing import Any, Callable, Dict, Mapping, Optional, Tuple, Union

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from services.actor.envs.contract import AutoReset, EnvStep, Observation
from services.actor.envs.gymnasium_spaces import action_translator, observation_spec
from services.actor.envs.host_tensors import is_tensor, to_host
from services.common.schema import ActionSpec, TensorSpec

# Where a same-step environment keeps the observation that its reset replaced: gymnasium's name, then ManiSkill's.
_FINAL_OBSERVATION_KEYS = ("final_obs", "final_observation")
_GYMNASIUM_MODES = {
    AutoReset.SAME_STEP: AutoresetMode.SAME_STEP,
    AutoReset.NEXT_STEP: AutoresetMode.NEXT_STEP,
    AutoReset.DISABLED: AutoresetMode.DISABLED,
}


class GymnasiumVector:
    """A gymnasium vector environment as a `VectorEnv`.

    A Box observation becomes the tensor `policy`, a Dict of boxes one tensor for each key. float32, uint8 and the other
    dtypes of a schema stay as they are; float64 and all the rest become float32. Actions: see `action_translator`.
    Metrics are the numbers that the environment reports in its info, for those that every lane reported. Tensors of
    torch are understood wherever arrays are.

    Args:
        env: the vector environment; its metadata names its auto-reset mode.
        autoreset: what the environment does, where its metadata does not say it.

    Raises:
        ValueError: its spaces or its auto-reset mode cannot be brought under the contract.
    """

    def __init__(self, env: Any, autoreset: Union[str, AutoReset, None] = None) -> None:
        self._env = env
        self._num_lanes = int(env.num_envs)
        self._autoreset = _autoreset(env) if autoreset is None else AutoReset(autoreset)
        self._observation_spec = observation_spec(env.single_observation_space)
        self._actions = action_translator(env.single_action_space)
        self._ended = np.zeros(self._num_lanes, dtype=np.bool_)  # lanes whose last step ended an episode
        self._closed = False

    @property
    def num_lanes(self) -> int:
        return self._num_lanes

    @property
    def autoreset(self) -> AutoReset:
        return self._autoreset

    @property
    def observation_spec(self) -> Tuple[TensorSpec, ...]:
        return self._observation_spec

    @property
    def action_spec(self) -> ActionSpec:
        return self._actions.spec

    def reset(self, seed: Optional[int] = None) -> Observation:
        """Begin a new episode in every lane; lane i is seeded with seed + i, as gymnasium does."""
        observation, _ = self._env.reset(seed=seed)
        self._ended[:] = False
        return self._named(observation)

    def reset_lanes(self, mask: npt.NDArray[np.bool_]) -> Observation:
        """Begin a new episode in some lanes of an environment whose auto-reset is disabled.

        Args:
            mask: <bool>[B], the lanes.

        Returns:
            The observation of all lanes.

        Raises:
            RuntimeError: the environment resets its lanes itself.
            ValueError: the mask names no lane.
        """
        if self._autoreset is not AutoReset.DISABLED:
            raise RuntimeError(f"this environment resets its lanes itself ({self._autoreset.value}); do not reset them")
        if not mask.any():
            raise ValueError("the mask of lanes to reset names no lane")
        observation, _ = self._env.reset(options={"reset_mask": mask})
        self._ended = self._ended & ~mask
        return self._named(observation)

    def step(self, action: npt.NDArray[Any]) -> EnvStep:
        """Apply one action a lane; see `VectorEnv.step`.

        Raises:
            RuntimeError: auto-reset is disabled, and a lane that ended was not reset.
        """
        if self._autoreset is AutoReset.DISABLED and self._ended.any():
            lanes = np.flatnonzero(self._ended).tolist()
            raise RuntimeError(f"the episodes of lanes {lanes} ended; call reset_lanes before the next step")
        raw_observation, reward, terminated, truncated, info = self._env.step(self._actions.translate(action))
        terminated, truncated = (np.array(to_host(flag), dtype=np.bool_) for flag in (terminated, truncated))
        ended = terminated | truncated
        observation = self._named(raw_observation)

        valid = np.ones(self._num_lanes, dtype=np.bool_)
        true_next: Optional[Observation] = observation
        if self._autoreset is AutoReset.NEXT_STEP:
            # The row after an end ignored its action and returned a new episode's beginning.
            valid = ~self._ended
        elif self._autoreset is AutoReset.SAME_STEP and ended.any():
            true_next = self._with_final(observation, info, ended)
        self._ended = ended
        return EnvStep(
            observation=observation,
            true_next_observation=true_next,
            reward=np.array(to_host(reward), dtype=np.float32),
            terminated=terminated,
            truncated=truncated,
            valid=valid,
            metrics=_metrics(info, self._num_lanes),
        )

    def close(self) -> None:
        """Close the environment; harmless if called twice."""
        if not self._closed:
            self._closed = True
            self._env.close()

    def _named(self, observation: Any) -> Observation:
        parts = observation if isinstance(observation, Mapping) else {"policy": observation}
        return {spec.name: to_host(parts[spec.name]).astype(spec.dtype) for spec in self._observation_spec}

    def _with_final(
        self, observation: Observation, info: Mapping[str, Any], ended: npt.NDArray[np.bool_]
    ) -> Optional[Observation]:
        """`observation` with the rows of ended lanes replaced by what ended them; None if nobody kept that."""
        final = next((info[key] for key in _FINAL_OBSERVATION_KEYS if key in info), None)
        if final is None:
            return None
        true_next = {name: tensor.copy() for name, tensor in observation.items()}
        if isinstance(final, np.ndarray) and final.dtype == np.dtype(object):  # gymnasium's: an observation a lane
            for lane in np.flatnonzero(ended).tolist():
                row = final[lane]
                for name, tensor in true_next.items():
                    tensor[lane] = row[name] if isinstance(row, Mapping) else row
        else:  # batched tensors, by name or bare
            for name, tensor in true_next.items():
                tensor[ended] = to_host(final[name] if isinstance(final, Mapping) else final)[ended]
        return true_next


class _KeepFinal(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Copies the observation that ends an episode, lest an environment that reuses its buffers overwrites it."""

    def step(self, action: Any) -> Tuple[Any, Any, bool, bool, Dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        if terminated or truncated:
            observation = copy.deepcopy(observation)
        return observation, reward, terminated, truncated, info


def vectorize(
    make_env: Callable[[], Any],
    num_lanes: int,
    autoreset: Union[str, AutoReset] = AutoReset.SAME_STEP,
    seed: Optional[int] = None,
) -> GymnasiumVector:
    """Build `num_lanes` of a single gymnasium environment, stepped in this thread.

    Args:
        make_env: builds one; called once a lane.
        num_lanes: number of environments.
        autoreset: "same_step", "next_step" or "disabled".
        seed: resets the environment with it, if given.

    Raises:
        ValueError: a value is out of range, or the environment cannot be brought under the contract.
    """
    _check_num_lanes(num_lanes)
    env = SyncVectorEnv(
        [lambda: _KeepFinal(make_env())] * num_lanes, autoreset_mode=_GYMNASIUM_MODES[AutoReset(autoreset)]
    )
    return _adapt(env, seed)


def make_vector(
    env_id: str,
    num_lanes: int,
    autoreset: Union[str, AutoReset] = AutoReset.SAME_STEP,
    seed: Optional[int] = None,
    **kwargs: Any,
) -> GymnasiumVector:
    """Build `num_lanes` of a registered environment, stepped in this thread.

    Args:
        env_id: such as "CartPole-v1", or "module:Name-v0" where importing the module registers it.
        num_lanes: number of environments.
        autoreset: "same_step", "next_step" or "disabled".
        seed: resets the environment with it, if given.
        kwargs: for `gymnasium.make`.

    Raises:
        ValueError: a value is out of range, or the environment cannot be brought under the contract.
        gymnasium.error.Error: the environment cannot be made.
    """
    _check_num_lanes(num_lanes)
    env = gymnasium.make_vec(
        env_id,
        num_envs=num_lanes,
        vectorization_mode="sync",
        vector_kwargs={"autoreset_mode": _GYMNASIUM_MODES[AutoReset(autoreset)]},
        wrappers=(_KeepFinal,),
        **kwargs,
    )
    return _adapt(env, seed, f"{env_id}: ")


def _check_num_lanes(num_lanes: int) -> None:
    if num_lanes < 1:
        raise ValueError(f"num_lanes is {num_lanes}; an environment needs at least 1")


def _adapt(env: Any, seed: Optional[int], whose: str = "") -> GymnasiumVector:
    """Wrap a vector environment of our own making, which is closed again if that cannot be done."""
    try:
        adapted = GymnasiumVector(env)
    except ValueError as error:
        env.close()
        raise ValueError(f"{whose}{error}") from error
    if seed is not None:
        adapted.reset(seed)
    return adapted


def _autoreset(env: Any) -> AutoReset:
    mode = env.metadata.get("autoreset_mode")
    for ours, gymnasiums in _GYMNASIUM_MODES.items():
        if mode is gymnasiums:
            return ours
    raise ValueError(
        f"the vector environment's metadata gives autoreset_mode as {mode!r}; it must be a gymnasium AutoresetMode, or"
        " GymnasiumVector(env, autoreset=...) must say what the environment does"
    )


def _metrics(info: Mapping[str, Any], num_lanes: int) -> Dict[str, npt.NDArray[Any]]:
    """The numbers of `info` that every lane has; those of a lane that ended come from before its reset."""
    final = info.get("final_info", {})
    metrics: Dict[str, npt.NDArray[Any]] = {}
    for name in {**info, **final}:
        value, last = _column(info.get(name), num_lanes), _column(final.get(name), num_lanes)
        if name.startswith("_") or (value is None and last is None):
            continue
        nobody = np.zeros(num_lanes, dtype=np.bool_)
        has_last = nobody if last is None else to_host(final.get(f"_{name}", info.get("_final_info", nobody)))
        has_value = nobody if value is None else to_host(info.get(f"_{name}", ~nobody))
        if (has_last | has_value).all():
            metrics[name] = np.where(has_last, 0 if last is None else last, 0 if value is None else value)
    return metrics


def _column(value: Any, num_lanes: int) -> Optional[npt.NDArray[Any]]:
    """A number for each lane, as an array; None if it is anything else."""
    if not isinstance(value, np.ndarray) and not is_tensor(value):
        return None
    if tuple(value.shape) != (num_lanes,):
        return None
    column = to_host(value)
    return column if column.dtype.kind in "biuf" else None
