"""Tasks of IsaacGymEnvs (Isaac Gym Preview 4) under our contract.

Written after the sources of IsaacGymEnvs 1.5.1, and tested with a fake of them: the simulator itself is proprietary
and needs Python 3.6 to 3.8 with an NVIDIA GPU. `make` imports it; importing this module does not.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any, Callable, Dict, Mapping, Optional, Protocol, Sequence, Tuple

import numpy as np
import numpy.typing as npt

from services.actor.envs.contract import AutoReset, EnvStep, Observation
from services.actor.envs.host_tensors import ToDevice, copy_to_host, torch_sender
from services.common.errors import UserError
from services.common.schema import ActionSpec, TensorSpec


class VecTask(Protocol):
    """What this adapter uses of a task of IsaacGymEnvs; its tensors are those of torch, on `rl_device`."""

    num_envs: int
    num_obs: int
    num_states: int  # 0: no tensor `states`
    num_acts: int
    clip_actions: float  # actions are clamped to +-this; inf where the task does not say
    reset_buf: Any  # <int64>[B], 1: the next step resets the lane

    def zero_actions(self) -> Any:
        """<float32>[B, A]."""

    def step(self, actions: Any) -> Tuple[Mapping[str, Any], Any, Any, Mapping[str, Any]]:
        """Observations by name, reward [B], reset <int64>[B], extras; all of them are overwritten by the next step."""

    def reset(self) -> Mapping[str, Any]:
        """The observations of now; resets nothing."""


class IsaacGym:
    """A task of IsaacGymEnvs as a `VectorEnv` in next_step mode.

    The observation that comes with reset = 1 is the episode's true last one: the task resets inside of the next step,
    before or after the physics. That step's reward and observation belong to no transition, so it is not `valid`.

    Observations: `policy`, and `states` where the task has privileged ones. `time_outs` is also set where a task fails
    in an episode's very last step, and nothing tells the two apart: such a failure counts as a time-out.

    Args:
        task: made by `isaacgymenvs.make`.
        to_device: how actions travel to the task's device.
        set_seed: seeds all random numbers of the process.
        metrics: keys of the task's extras that hold a number for each lane.

    Raises:
        ValueError: the task has no observations or no actions.
    """

    def __init__(
        self, task: VecTask, *, to_device: ToDevice, set_seed: Callable[[int], Any], metrics: Sequence[str] = ()
    ) -> None:
        if task.num_obs < 1 or task.num_acts < 1:
            raise ValueError(f"the task has {task.num_obs} observations and {task.num_acts} actions; it needs both")
        self._task = task
        self._to_device = to_device
        self._set_seed = set_seed
        self._metrics = tuple(metrics)
        # Its own action space is +-1. It clamps further where it says so, and what it got must be what is stored.
        limit = min(1.0, float(task.clip_actions))
        self._action_spec = ActionSpec(low=(-limit,) * task.num_acts, high=(limit,) * task.num_acts)
        specs = [TensorSpec("policy", "float32", (task.num_obs,))]
        if task.num_states > 0:
            specs.append(TensorSpec("states", "float32", (task.num_states,)))
        self._observation_spec = tuple(specs)
        self._resets_next = np.ones(task.num_envs, np.bool_)

    @property
    def num_lanes(self) -> int:
        return self._task.num_envs

    @property
    def autoreset(self) -> AutoReset:
        return AutoReset.NEXT_STEP

    @property
    def observation_spec(self) -> Tuple[TensorSpec, ...]:
        return self._observation_spec

    @property
    def action_spec(self) -> ActionSpec:
        return self._action_spec

    def reset(self, seed: Optional[int] = None) -> Observation:
        """Begin a new episode in every lane, by a step that resets them all: the task's own `reset` does not."""
        if seed is not None:
            self._set_seed(seed)
        self._task.reset_buf.fill_(1)
        _, _, reset, _ = self._task.step(self._task.zero_actions())
        observation = copy_to_host(_named(self._task.reset()))
        self._resets_next = copy_to_host({"reset": reset})["reset"] != 0
        return self._of_spec(observation)

    def step(self, action: npt.NDArray[Any]) -> EnvStep:
        """Apply one action a lane; see `VectorEnv.step`.

        Raises:
            UserError: the task reports no `time_outs`, or lacks a metric that was asked for.
        """
        observations, reward, reset, extras = self._task.step(self._to_device(np.asarray(action, np.float32)))
        missing = [name for name in ("time_outs", *self._metrics) if name not in extras]
        if missing:
            raise UserError(
                f"the task's extras hold {', '.join(sorted(extras)) or 'nothing'}, but no {missing[0]!r}; time_outs"
                " come with IsaacGymEnvs 1.3 and newer, metrics are what env.kwargs.metrics names"
            )
        told = {f"metrics.{name}": extras[name] for name in self._metrics}
        host = copy_to_host(
            {**_named(observations), "reward": reward, "reset": reset, "time_outs": extras["time_outs"], **told}
        )
        valid, ended = ~self._resets_next, host["reset"] != 0
        timed_out = host["time_outs"] != 0
        self._resets_next = ended
        observation = self._of_spec(host)
        return EnvStep(
            observation=observation,
            true_next_observation=observation,
            reward=host["reward"].astype(np.float32),
            terminated=valid & ended & ~timed_out,
            truncated=valid & ended & timed_out,
            valid=valid,
            metrics={name: host[f"metrics.{name}"] for name in self._metrics},
        )

    def close(self) -> None:
        """Nothing that can be undone: the simulation lives as long as its process."""

    def _of_spec(self, host: Mapping[str, npt.NDArray[Any]]) -> Observation:
        return {spec.name: np.asarray(host[spec.name], spec.dtype) for spec in self._observation_spec}


def make(
    num_lanes: int,
    seed: int,
    task: str,
    *,
    sim_device: str = "cuda:0",
    rl_device: Optional[str] = None,
    overrides: Sequence[str] = (),
    metrics: Sequence[str] = (),
) -> IsaacGym:
    """Build a task of IsaacGymEnvs, without a window; a process can hold one.

    Args:
        num_lanes: number of environments.
        seed: of everything in the process.
        task: as IsaacGymEnvs names it, "FrankaCabinet".
        sim_device: where physics runs, "cuda:0" or "cpu"; the pipeline follows it.
        rl_device: where its tensors lie; as `sim_device` if not given.
        overrides: further ones of its Hydra config, ("task.env.episodeLength=300",).
        metrics: keys of the task's extras that hold a number for each lane.

    Raises:
        UserError: the simulator is not installed, or torch was imported before it.
    """
    isaacgymenvs, hydra = _import_simulator()
    rl_device = rl_device or sim_device
    set_seed = importlib.import_module("isaacgymenvs.utils.utils").set_seed
    set_seed(seed)  # `isaacgymenvs.make` does not
    # A composed config: with none, `make` keeps the pipeline and devices of the GPU whatever it is told.
    with hydra.initialize_config_dir(str(Path(isaacgymenvs.__file__).parent / "cfg"), version_base="1.1"):
        config = hydra.compose(
            config_name="config",
            overrides=[
                f"task={task}",
                f"num_envs={num_lanes}",
                f"seed={seed}",
                f"sim_device={sim_device}",
                f"rl_device={rl_device}",
                f"pipeline={'cpu' if sim_device == 'cpu' else 'gpu'}",
                "headless=True",
                *overrides,
            ],
        )
    made = isaacgymenvs.make(
        seed=seed,
        task=task,
        num_envs=num_lanes,
        sim_device=sim_device,
        rl_device=rl_device,
        graphics_device_id=-1,
        headless=True,
        force_render=False,
        cfg=config,
    )
    return IsaacGym(made, to_device=torch_sender(rl_device), set_seed=set_seed, metrics=metrics)


def _import_simulator() -> Tuple[Any, Any]:
    """Import isaacgym, then what imports torch: the other way round it refuses to work."""
    if "torch" in sys.modules and "isaacgym" not in sys.modules:
        raise UserError(
            "torch was imported before isaacgym, which refuses to work then: let the module that env.factory names, and"
            " whatever it imports, import isaacgym first"
        )
    try:
        importlib.import_module("isaacgym")
        return importlib.import_module("isaacgymenvs"), importlib.import_module("hydra")
    except ImportError as error:
        raise UserError(
            f"the simulator cannot be imported ({error}); this environment needs Isaac Gym Preview 4, IsaacGymEnvs and"
            " an NVIDIA driver, on Python 3.8: see docs/isaac-gym.md"
        ) from error


def _named(observations: Mapping[str, Any]) -> Dict[str, Any]:
    """The task's names of observations, by ours."""
    names = {"obs": "policy", "states": "states"}
    return {names[name]: tensor for name, tensor in observations.items() if name in names}
