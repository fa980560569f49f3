"""Tasks of Isaac Lab under our contract.

Written after the sources of Isaac Lab 3.0, and tested with a fake of them. `make` starts the simulator; importing this
module imports nothing of it.
"""

from __future__ import annotations

import importlib
from typing import Any, Dict, Mapping, Optional, Protocol, Sequence, Tuple

import numpy as np
import numpy.typing as npt

from services.actor.envs.contract import AutoReset, EnvStep, Observation
from services.actor.envs.host_tensors import ToDevice, copy_to_host, torch_sender
from services.common.errors import UserError
from services.common.schema import ActionSpec, TensorSpec

GROUPS = {"policy": "policy", "critic": "states"}  # of Isaac Lab's observations, by our names
FINAL = "final_obs"  # the key of extras


class LabEnv(Protocol):
    """What this adapter uses of a ManagerBasedRLEnv or DirectRLEnv; its tensors are those of torch, on its device."""

    num_envs: int
    single_observation_space: Any  # a Dict of groups
    single_action_space: Any  # a Box

    def reset(self, seed: Optional[int] = None) -> Tuple[Mapping[str, Any], Mapping[str, Any]]:
        """Observations by group, extras."""

    def step(self, action: Any) -> Tuple[Mapping[str, Any], Any, Any, Any, Mapping[str, Any]]:
        """Observations by group, reward, terminated, truncated, extras; buffers are overwritten by the next step."""

    def close(self) -> None: ...


class IsaacLab:
    """A task of Isaac Lab as a `VectorEnv` in same_step mode.

    The group `policy` is the tensor of that name, the group `critic` becomes `states`, which critics alone see; other
    groups are left out.

    Args:
        env: made with `cfg.compute_final_obs = True` where its version knows it.
        to_device: how actions travel to its device.
        has_final_observations: whether extras hold the last observation of lanes that ended.
        action_limit: bounds +-this of actions for which the task gives none.
        metrics: keys of extras that hold a number for each lane.
        application: that the environment runs in; kept as long as this is.

    Raises:
        ValueError: its observations or actions cannot be brought under the contract.
    """

    def __init__(
        self,
        env: LabEnv,
        *,
        to_device: ToDevice,
        has_final_observations: bool = True,
        action_limit: float = 1.0,
        metrics: Sequence[str] = (),
        application: Any = None,
    ) -> None:
        if not (np.isfinite(action_limit) and action_limit > 0):
            raise ValueError(f"action_limit is {action_limit}; it must be positive and finite")
        self._env = env
        self._to_device = to_device
        self._metrics = tuple(metrics)
        self._observation_spec = _observation_spec(env.single_observation_space)
        self._action_spec = _action_spec(env.single_action_space, action_limit)
        self.has_final_observations = has_final_observations
        self._application = application
        self._is_closed = False

    @property
    def num_lanes(self) -> int:
        return self._env.num_envs

    @property
    def autoreset(self) -> AutoReset:
        return AutoReset.SAME_STEP

    @property
    def observation_spec(self) -> Tuple[TensorSpec, ...]:
        return self._observation_spec

    @property
    def action_spec(self) -> ActionSpec:
        return self._action_spec

    def reset(self, seed: Optional[int] = None) -> Observation:
        """Begin a new episode in every lane."""
        observation, _ = self._env.reset(seed=seed)
        return self._of_spec(copy_to_host(_named(observation)))

    def step(self, action: npt.NDArray[Any]) -> EnvStep:
        """Apply one action a lane; see `VectorEnv.step`.

        Raises:
            UserError: a metric that was asked for is not in extras.
        """
        groups, reward, terminated, truncated, extras = self._env.step(self._to_device(np.asarray(action, np.float32)))
        missing = [name for name in self._metrics if name not in extras]
        if missing:
            held = ", ".join(sorted(extras)) or "nothing"
            raise UserError(f"extras hold {held}, but no {missing[0]!r}, which env.kwargs.metrics names")
        host = copy_to_host(
            {
                **_named(groups),
                "reward": reward,
                "terminated": terminated,
                "truncated": truncated,
                **{f"metrics.{name}": extras[name] for name in self._metrics},
            }
        )
        terminated, truncated = host["terminated"] != 0, host["truncated"] != 0
        observation = self._of_spec(host)
        return EnvStep(
            observation=observation,
            true_next_observation=self._true_next(observation, extras, terminated | truncated),
            reward=host["reward"].astype(np.float32),
            terminated=terminated,
            truncated=truncated,
            valid=np.ones(self.num_lanes, np.bool_),
            metrics={name: host[f"metrics.{name}"] for name in self._metrics},
        )

    def close(self) -> None:
        """Close the environment, harmless if called twice; its application ends with the process."""
        if not self._is_closed:
            self._is_closed = True
            self._env.close()

    def _of_spec(self, host: Mapping[str, npt.NDArray[Any]]) -> Observation:
        return {spec.name: np.asarray(host[spec.name], spec.dtype) for spec in self._observation_spec}

    def _true_next(
        self, observation: Observation, extras: Mapping[str, Any], ended: npt.NDArray[np.bool_]
    ) -> Optional[Observation]:
        """`observation` with the rows of ended lanes as they were before their reset; None if nobody kept those."""
        if not ended.any():
            return observation
        if not self.has_final_observations or FINAL not in extras:
            return None
        final = self._of_spec(copy_to_host(_named(extras[FINAL])))  # copied only in steps that end episodes
        return {
            name: np.where(ended.reshape(-1, *([1] * (tensor.ndim - 1))), final[name], tensor)
            for name, tensor in observation.items()
        }


def make(
    num_lanes: int,
    seed: int,
    task: str,
    *,
    device: str = "cuda:0",
    action_limit: float = 1.0,
    metrics: Sequence[str] = (),
    task_modules: Sequence[str] = ("isaaclab_tasks",),
) -> IsaacLab:
    """Start Isaac Sim without a window and build a task; a process can hold one.

    Args:
        num_lanes: number of environments.
        seed: of the task.
        task: its gymnasium id, "Isaac-Reach-Franka-v0".
        device: where physics runs and tensors lie, "cuda:0" or "cpu".
        action_limit: bounds +-this of actions for which the task gives none.
        metrics: keys of extras that hold a number for each lane.
        task_modules: imported so that they register their tasks.

    Raises:
        UserError: the simulator is not installed.
    """
    try:
        # The application must run before anything else of Isaac Lab can be imported.
        application = importlib.import_module("isaaclab.app").AppLauncher(headless=True, device=device)
        for module in task_modules:
            importlib.import_module(module)
        parse_env_cfg = importlib.import_module("isaaclab_tasks.utils").parse_env_cfg
    except ImportError as error:
        raise UserError(f"the simulator cannot be imported ({error}); this environment needs Isaac Lab") from error
    import gymnasium

    config = parse_env_cfg(task, device=device, num_envs=num_lanes)
    config.seed = seed
    # Opt-in since 2026; older versions lose what a reset overwrites, and say so by not knowing the setting.
    has_final = hasattr(config, "compute_final_obs")
    if has_final:
        config.compute_final_obs = True
    env: Any = gymnasium.make(task, cfg=config).unwrapped
    return IsaacLab(
        env,
        to_device=torch_sender(device),
        has_final_observations=has_final,
        action_limit=action_limit,
        metrics=metrics,
        application=application,
    )


def _named(groups: Mapping[str, Any]) -> Dict[str, Any]:
    """The groups that are used, by our names."""
    return {GROUPS[group]: tensor for group, tensor in groups.items() if group in GROUPS}


def _observation_spec(space: Any) -> Tuple[TensorSpec, ...]:
    groups: Mapping[str, Any] = getattr(space, "spaces", {})
    if "policy" not in groups:
        raise ValueError(f"the observations are {space}; they need a group 'policy'")
    specs = []
    for group, name in sorted(GROUPS.items(), key=lambda item: item[1]):
        part = groups.get(group)
        if part is None:
            continue
        if hasattr(part, "spaces"):
            raise ValueError(
                f"the observation group {group!r} is a dict of terms; set concatenate_terms = True in its config, so"
                " that it is one tensor"
            )
        dtype = np.dtype(part.dtype).name
        specs.append(TensorSpec(name, "uint8" if dtype == "uint8" else "float32", tuple(part.shape)))
    return tuple(specs)


def _action_spec(space: Any, limit: float) -> ActionSpec:
    low, high = getattr(space, "low", None), getattr(space, "high", None)
    if low is None or high is None:
        raise ValueError(f"the actions are {space}; only a Box is supported")
    low, high = (np.asarray(bound, np.float64).ravel() for bound in (low, high))
    return ActionSpec(
        low=tuple(np.where(np.isfinite(low), low, -limit).tolist()),
        high=tuple(np.where(np.isfinite(high), high, limit).tolist()),
    )
