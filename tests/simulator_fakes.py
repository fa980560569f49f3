"""Simulators that cannot be installed here, as their sources have them; each keeps on paper what really happened.

Every observation is a number of its own, every reward a power of 3, so that a wrong row shows in what is made of it.
The buffers that they hand out are overwritten by the next step, and what they are given is checked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Sequence, Tuple

import gymnasium
import numpy as np
from gymnasium import spaces

KINDS = ("terminal", "time_out", "both")
LENGTHS = (4, 1, 6, 2, 9, 3, 1, 1, 7)
JUNK_REWARD = 1e6


@dataclass(frozen=True)
class Transition:
    observation: float
    reward: float
    terminated: bool
    truncated: bool
    led_to: float


class PaperLane:
    """One lane of the counter simulation, and its log of true transitions."""

    def __init__(self, lane: int, kinds: Sequence[str] = KINDS) -> None:
        self.log: List[Transition] = []
        self._kinds = kinds
        self._number = 1000.0 * (lane + 1)
        self._episode = lane  # lanes go through the lengths at different places
        self._age = 0
        self.observation = self._next()

    def _next(self) -> float:
        self._number += 1.0
        return self._number

    def advance(self) -> Transition:
        """One true step; nothing is reset."""
        self._age += 1
        kind = ""
        if self._age >= LENGTHS[self._episode % len(LENGTHS)]:
            kind = self._kinds[self._episode % len(self._kinds)]
        reward = 3.0 ** (self._number % 9)
        begun = self.observation
        self.observation = self._next()
        step = Transition(begun, reward, kind in ("terminal", "both"), kind in ("time_out", "both"), self.observation)
        self.log.append(step)
        return step

    def begin(self) -> None:
        """The next episode."""
        self._episode += 1
        self._age = 0
        self.observation = self._next()

    def drift(self) -> None:
        """Physics that moves a lane although nobody acted on what is there now."""
        self.observation = self._next()


class FakeTensor:
    """What the adapters use of a torch tensor; one of a device can be read by nobody before it is copied."""

    def __init__(self, array: Any, device: str = "cuda:0") -> None:
        self.array, self.device = array, device

    @property
    def shape(self) -> Tuple[int, ...]:
        return tuple(self.array.shape)

    @property
    def dtype(self) -> str:
        return f"torch.{self.array.dtype}"

    def detach(self) -> FakeTensor:
        return self

    def cpu(self) -> FakeTensor:
        return self if self.device == "cpu" else FakeTensor(self.array.copy(), "cpu")

    def numpy(self) -> Any:
        if self.device != "cpu":
            raise TypeError(f"can't convert {self.device} device type tensor to numpy")
        return self.array

    def __array__(self, *_args: Any, **_kwargs: Any) -> Any:
        return self.numpy()

    def fill_(self, value: Any) -> FakeTensor:
        self.array[...] = value
        return self


class FakeVecTask:
    """A task of IsaacGymEnvs. `resets_before_physics` as in Factory and ShadowHand; else as in the Franka tasks."""

    def __init__(
        self,
        num_envs: int = 3,
        *,
        resets_before_physics: bool = False,
        num_states: int = 0,
        clip_actions: float = float("inf"),
        device: str = "cuda:0",
        extras: Sequence[str] = ("time_outs",),
    ) -> None:
        self.num_envs, self.num_obs, self.num_states, self.num_acts = num_envs, 2, num_states, 2
        self.clip_actions = clip_actions
        self.device = device
        self.lanes = [PaperLane(lane) for lane in range(num_envs)]
        self.actions: List[Any] = []
        self.is_begun = False
        self._resets_before_physics = resets_before_physics
        self._obs = np.zeros((num_envs, 2), np.float32)
        self._states = np.zeros((num_envs, num_states), np.float32)
        self._reward = np.zeros(num_envs, np.float32)
        self._reset = np.ones(num_envs, np.int64)
        self._time_outs = np.zeros(num_envs, np.int64)
        self.reset_buf = FakeTensor(self._reset, device)
        buffers = {"time_outs": self._time_outs, "successes": self._reward}
        self._extras = {name: FakeTensor(buffers[name], device) for name in extras}

    def zero_actions(self) -> FakeTensor:
        return FakeTensor(np.zeros((self.num_envs, self.num_acts), np.float32), self.device)

    def step(self, actions: FakeTensor) -> Any:
        assert isinstance(actions, FakeTensor)
        assert actions.device == self.device
        assert actions.array.dtype == np.float32
        assert actions.array.shape == (self.num_envs, self.num_acts)
        self.actions.append(actions.array.copy())
        self._time_outs[:] = 0
        for index, lane in enumerate(self.lanes):
            if self._reset[index]:
                self._restart(index, lane)
            else:
                step = lane.advance()
                self._reward[index] = step.reward
                self._reset[index] = step.terminated or step.truncated
                # "both" is a failure in the very last step, which `time_outs` does not tell apart.
                self._time_outs[index] = step.truncated
        return self._observations(), FakeTensor(self._reward, self.device), self.reset_buf, self._extras

    def reset(self) -> Dict[str, FakeTensor]:
        return self._observations()

    def _restart(self, index: int, lane: PaperLane) -> None:
        if self.is_begun:
            lane.begin()
        self.is_begun = self.is_begun or index == self.num_envs - 1
        if self._resets_before_physics:
            lane.drift()
        self._reward[index] = JUNK_REWARD
        self._reset[index] = 0

    def _observations(self) -> Dict[str, FakeTensor]:
        number = np.array([lane.observation if self.is_begun else 0.0 for lane in self.lanes], np.float32)
        self._obs[:] = number[:, None]
        self._states[:] = -number[:, None]
        tensors = {"obs": FakeTensor(self._obs, self.device)}
        if self.num_states:
            tensors["states"] = FakeTensor(self._states, self.device)
        return tensors


class FakeLabEnv:
    """A task of Isaac Lab with the groups policy, critic and camera."""

    def __init__(
        self, num_envs: int = 3, *, final_obs: bool = True, device: str = "cuda:0", kinds: Sequence[str] = KINDS
    ) -> None:
        self.num_envs, self.device, self.final_obs = num_envs, device, final_obs
        self.single_observation_space = spaces.Dict(
            {
                "policy": spaces.Box(-np.inf, np.inf, (2,)),
                "critic": spaces.Box(-np.inf, np.inf, (1,)),
                "camera": spaces.Box(0, 255, (2, 2), np.uint8),
            }
        )
        self.single_action_space = spaces.Box(-np.inf, np.inf, (2,))
        self.lanes = [PaperLane(lane, kinds) for lane in range(num_envs)]
        self.seeds: List[Optional[int]] = []
        self.num_closed = 0
        self._buffers = self._make()
        self._reward = np.zeros(num_envs, np.float32)
        self._terminated, self._truncated = np.zeros(num_envs, np.bool_), np.zeros(num_envs, np.bool_)
        self._extras: Dict[str, Any] = {"log": {}}

    def reset(self, seed: Optional[int] = None) -> Any:
        if self.seeds:
            for lane in self.lanes:
                lane.begin()
        self.seeds.append(seed)
        return self._fill(self._buffers), self._extras

    def step(self, action: FakeTensor) -> Any:
        assert isinstance(action, FakeTensor)
        assert action.device == self.device
        assert action.array.dtype == np.float32
        assert action.array.shape == (self.num_envs, 2)
        for index, step in enumerate([lane.advance() for lane in self.lanes]):
            self._reward[index] = step.reward
            self._terminated[index], self._truncated[index] = step.terminated, step.truncated
        ended = self._terminated | self._truncated
        if ended.any() and self.final_obs:  # what an earlier step left there stays until then
            self._extras["final_obs"] = self._fill(self._make())
        for index in np.flatnonzero(ended):
            self.lanes[index].begin()
        flags = (FakeTensor(flag, self.device) for flag in (self._terminated, self._truncated))
        return (self._fill(self._buffers), FakeTensor(self._reward, self.device), *flags, self._extras)

    def close(self) -> None:
        self.num_closed += 1

    def _make(self) -> Dict[str, Any]:
        return {
            "policy": np.zeros((self.num_envs, 2), np.float32),
            "critic": np.zeros((self.num_envs, 1), np.float32),
            "camera": np.zeros((self.num_envs, 2, 2), np.uint8),
        }

    def _fill(self, buffers: Dict[str, Any]) -> Dict[str, FakeTensor]:
        number = np.array([lane.observation for lane in self.lanes], np.float32)
        buffers["policy"][:] = number[:, None]
        buffers["critic"][:] = -number[:, None]
        return {name: FakeTensor(buffer, self.device) for name, buffer in buffers.items()}


class PaperEnv(gymnasium.Env):
    """One lane as a single gymnasium environment that reuses its buffer."""

    def __init__(self, lane: int) -> None:
        self.observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.lane = PaperLane(lane)
        self._is_begun = False
        self._buffer = np.zeros(2, np.float32)

    def reset(self, *, seed: Optional[int] = None, options: Any = None) -> Any:
        if self._is_begun:
            self.lane.begin()
        self._is_begun = True
        self._buffer[:] = self.lane.observation
        return self._buffer, {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action)
        step = self.lane.advance()
        self._buffer[:] = step.led_to
        return self._buffer, step.reward, step.terminated, step.truncated, {}


class FakeManiSkill:
    """A vector environment with torch's tensors that keeps final observations whole, under ManiSkill's names."""

    def __init__(self, num_envs: int = 3) -> None:
        self.num_envs = num_envs
        self.metadata: Dict[str, Any] = {}
        self.single_observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        self.single_action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.lanes = [PaperLane(lane) for lane in range(num_envs)]
        self._is_begun = False

    def reset(self, seed: Optional[int] = None) -> Any:
        if self._is_begun:
            for lane in self.lanes:
                lane.begin()
        self._is_begun = True
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        assert action.shape == (self.num_envs, 2)
        steps = [lane.advance() for lane in self.lanes]
        terminated = np.array([step.terminated for step in steps])
        truncated = np.array([step.truncated for step in steps])
        ended = terminated | truncated
        info: Dict[str, Any] = {"elapsed_steps": FakeTensor(np.arange(self.num_envs))}
        if ended.any():
            info["final_observation"] = self._observe()
            info["_final_observation"] = FakeTensor(ended)
            info["final_info"] = {"success": FakeTensor(terminated.copy())}
            info["_final_info"] = FakeTensor(ended)
        for index in np.flatnonzero(ended):
            self.lanes[index].begin()
        reward = np.array([step.reward for step in steps], np.float32)
        return self._observe(), FakeTensor(reward), FakeTensor(terminated), FakeTensor(truncated), info

    def close(self) -> None:
        pass

    def _observe(self) -> FakeTensor:
        return FakeTensor(np.array([[lane.observation] * 2 for lane in self.lanes], np.float32))


def to_fake(array: Any) -> FakeTensor:
    """How actions travel to the fakes' device."""
    return FakeTensor(array.copy())
