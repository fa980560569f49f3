"""The arm as single gymnasium environments; importing this module registers them.

`gymnasium.make("services.actor.envs.arm_gymnasium:shoal/ArmReach-v0")` builds the Cartesian one, and
`shoal/ArmReachJoint-v0` is the one with joint moves.
"""

from __future__ import annotations

from typing import Any, Dict, Optional, Tuple

import gymnasium
import numpy as np
import numpy.typing as npt

from services.actor.envs.arm import CONTROL_HZ, HORIZON, OBSERVATION_LIMIT, OBSERVATION_SIZE, make_reach

CARTESIAN_ID = "shoal/ArmReach-v0"
JOINT_ID = "shoal/ArmReachJoint-v0"


class ArmReachEnv(gymnasium.Env[npt.NDArray[np.float32], npt.NDArray[np.float32]]):
    """One lane of `ArmReach`, with its observation `policy` as a Box; info holds the lane's metrics.

    Args:
        control: "cartesian" or "joint".
        render_mode: None, or "rgb_array".
        width: of the pictures, pixels.
        height: of the pictures, pixels.
    """

    metadata: Dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": CONTROL_HZ}

    def __init__(
        self, control: str = "cartesian", render_mode: Optional[str] = None, width: int = 640, height: int = 480
    ) -> None:
        if render_mode not in (None, "rgb_array"):
            raise ValueError(f"render_mode is {render_mode!r}; it must be None or 'rgb_array'")
        self.render_mode = render_mode
        self._picture_size = (width, height)
        # It never ends an episode: gymnasium's own time limit does, and nobody resets behind its back.
        self._arm = make_reach(1, control, horizon=None)
        self.observation_space = gymnasium.spaces.Box(
            -OBSERVATION_LIMIT, OBSERVATION_LIMIT, (OBSERVATION_SIZE,), dtype=np.float32
        )
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, self._arm.action_spec.shape, dtype=np.float32)

    def reset(
        self, *, seed: Optional[int] = None, options: Optional[Dict[str, Any]] = None
    ) -> Tuple[npt.NDArray[np.float32], Dict[str, Any]]:
        """Begin an episode; its goal and start posture come from gymnasium's random numbers."""
        super().reset(seed=seed, options=options)
        observation = self._arm.reset(int(self.np_random.integers(2**63)))
        return observation["policy"][0], {}

    def step(
        self, action: npt.NDArray[np.float32]
    ) -> Tuple[npt.NDArray[np.float32], float, bool, bool, Dict[str, Any]]:
        """Move for 50 ms; see `ArmReach.step`."""
        step = self._arm.step(np.asarray(action)[None])
        info = {name: column[0].item() for name, column in step.metrics.items()}
        return step.observation["policy"][0], float(step.reward[0]), False, False, info

    def render(self) -> Optional[npt.NDArray[np.uint8]]:
        """The picture now, <uint8>[height, width, 3]; None without a render mode."""
        if self.render_mode is None:
            return None
        width, height = self._picture_size
        return self._arm.render(0, width, height)

    def close(self) -> None:
        """Free the simulator; harmless if called twice."""
        self._arm.close()


def _register(env_id: str, control: str) -> None:
    gymnasium.register(
        id=env_id,
        entry_point="services.actor.envs.arm_gymnasium:ArmReachEnv",
        max_episode_steps=HORIZON,
        kwargs={"control": control},
    )


_register(CARTESIAN_ID, "cartesian")
_register(JOINT_ID, "joint")
