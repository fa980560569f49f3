"""The default environment: a seven-joint arm moves its tool to a goal.

Each lane is a MuJoCo state of its own; lanes are stepped in chunks by threads, since MuJoCo releases the interpreter's
lock. Results depend on the seed and the actions alone, never on the number of threads or on the other lanes.

Task (20 Hz control, ten substeps of 5 ms): with d the distance from tool to goal in metres and a the action,

    reward = -d - 0.02 mean(a^2) + 0.2 [d < 0.05]

An episode never terminates and is truncated after `horizon` steps.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any, List, Optional, Tuple

import mujoco
import numpy as np
import numpy.typing as npt

from services.actor.envs.arm_model import HOME_POSTURE, NUM_JOINTS, TOOL_SITE, arm_xml
from services.actor.envs.contract import AutoReset, EnvStep, Observation
from services.common.schema import ActionSpec, TensorSpec

SUBSTEPS = 10
CONTROL_HZ = 20
HORIZON = 50
SUCCESS_DISTANCE_M = 0.05
OBSERVATION_SIZE = 2 * NUM_JOINTS + 9
OBSERVATION_LIMIT = 5.0

# Goals lie in this box in front of the arm; every point of it can be reached.
GOAL_LOW_M = (0.30, -0.35, 0.10)
GOAL_HIGH_M = (0.60, 0.35, 0.60)
_WORKSPACE_CENTRE_M = np.array([0.45, 0.0, 0.35])

_TOOL_STEP_M = 0.06  # the tool's largest move a control step, along each axis
_JOINT_STEP_RAD = 0.15  # a joint's largest move a control step
_DAMPING = 0.05  # of the least squares, m
_POSTURE_PULL = 0.1  # share of the way home that the null space goes in a control step
_START_NOISE_RAD = 0.05


class ArmReach:
    """A batch of arms that reach for goals. Implements `VectorEnv` and `Renderable`.

    Observation `policy`, <float32>[B, 23], clipped to +-5: joint positions (7, by range, -1 to 1), joint velocities (7,
    rad/s / 2), tool (3) and goal (3) from the workspace's centre (m / 0.25), goal minus tool (3, m / 0.25).

    Metrics of a step: `success` <bool>[B], whether the tool is within 5 cm of the goal now; `distance` <float32>[B], m.

    Args:
        num_lanes: number of arms.
        control: "cartesian" (three actions: the tool's move, by damped least squares) or "joint" (seven: joint moves).
        num_threads: threads that step the lanes; 1 steps them in the caller's thread.
        seed: of the goals and start postures until `reset` gives another.
        horizon: steps of an episode; None never ends one.

    Raises:
        ValueError: an argument is out of its range.
    """

    def __init__(
        self,
        num_lanes: int,
        control: str = "cartesian",
        num_threads: int = 1,
        seed: int = 0,
        horizon: Optional[int] = HORIZON,
    ) -> None:
        if num_lanes < 1:
            raise ValueError(f"num_lanes is {num_lanes}; an environment needs at least 1")
        if control not in ("cartesian", "joint"):
            raise ValueError(f"control is {control!r}; it must be 'cartesian' or 'joint'")
        if num_threads < 1:
            raise ValueError(f"num_threads is {num_threads}; it must be at least 1")
        if horizon is not None and horizon < 1:
            raise ValueError(f"horizon is {horizon}; an episode has at least 1 step")
        self._num_lanes = num_lanes
        self._cartesian = control == "cartesian"
        self._horizon = horizon
        self._action_size = 3 if self._cartesian else NUM_JOINTS

        self._model = mujoco.MjModel.from_xml_string(arm_xml())
        self._site = mujoco.mj_name2id(self._model, mujoco.mjtObj.mjOBJ_SITE, TOOL_SITE)
        self._states = [mujoco.MjData(self._model) for _ in range(num_lanes)]
        # Views of the simulator's own memory, taken once: asking for them anew would cost more than the arithmetic.
        self._qpos = [state.qpos for state in self._states]
        self._qvel = [state.qvel for state in self._states]
        self._ctrl = [state.ctrl for state in self._states]
        self._tool = [state.site_xpos[self._site] for state in self._states]
        self._joint_low, self._joint_high = self._model.jnt_range.T.copy()
        self._home = np.array(HOME_POSTURE)

        self._jacobian = np.zeros((num_lanes, 3, NUM_JOINTS))  # of the tool's position, m / rad
        self._joint_position = np.zeros((num_lanes, NUM_JOINTS))
        self._joint_velocity = np.zeros((num_lanes, NUM_JOINTS))
        self._tool_position = np.zeros((num_lanes, 3))
        self._goal = np.zeros((num_lanes, 3))
        self._steps = np.zeros(num_lanes, dtype=np.int64)

        num_chunks = min(num_threads, num_lanes)
        self._chunks = [lanes.tolist() for lanes in np.array_split(np.arange(num_lanes), num_chunks)]
        self._pool = ThreadPoolExecutor(num_chunks, thread_name_prefix="arm") if num_chunks > 1 else None
        self._renderer: Any = None  # made by the first `render`
        self.reset(seed)

    @property
    def num_lanes(self) -> int:
        return self._num_lanes

    @property
    def autoreset(self) -> AutoReset:
        return AutoReset.SAME_STEP

    @property
    def observation_spec(self) -> Tuple[TensorSpec, ...]:
        return (TensorSpec("policy", "float32", (OBSERVATION_SIZE,)),)

    @property
    def action_spec(self) -> ActionSpec:
        return ActionSpec(low=(-1.0,) * self._action_size, high=(1.0,) * self._action_size)

    @property
    def goal_m(self) -> npt.NDArray[np.float64]:
        """Each lane's goal now, <float64>[B, 3], m from the arm's base."""
        return self._goal.copy()

    @property
    def tool_m(self) -> npt.NDArray[np.float64]:
        """Each lane's tool now, <float64>[B, 3], m from the arm's base."""
        return self._tool_position.copy()

    def reset(self, seed: Optional[int] = None) -> Observation:
        """Begin a new episode in every lane.

        Args:
            seed: starts each lane's random numbers anew; a lane's goals follow from it and the lane's index alone, so
                that a set of seeds is a set of goals. None goes on with the numbers under way.
        """
        if seed is not None:
            self._random = [
                np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(lane,))))
                for lane in range(self._num_lanes)
            ]
        self._begin(range(self._num_lanes))
        self._read()
        return self._observe()

    def step(self, action: npt.NDArray[Any]) -> EnvStep:
        """Move each arm for 50 ms.

        Args:
            action: <float32>[B, 3] or [B, 7]; values beyond [-1, 1] are clipped.

        Raises:
            ValueError: the action has another shape, or a value that is not a number.
        """
        if action.shape != (self._num_lanes, self._action_size):
            raise ValueError(f"the action has shape {action.shape}; it must be {(self._num_lanes, self._action_size)}")
        if not np.isfinite(action).all():
            raise ValueError("the action holds a value that is not finite")
        action = np.clip(action.astype(np.float64), -1.0, 1.0)
        target = np.clip(self._joint_position + self._joint_move(action), self._joint_low, self._joint_high)
        for control, value in zip(self._ctrl, target):
            control[:] = value
        self._advance()
        self._read()

        self._steps += 1
        distance = np.sqrt(np.square(self._goal - self._tool_position).sum(axis=1))
        success = distance < SUCCESS_DISTANCE_M
        reward = -distance - 0.02 * np.square(action).mean(axis=1) + 0.2 * success
        truncated = self._steps >= (self._horizon or np.inf)
        true_next = self._observe()
        observation = true_next
        if truncated.any():
            self._begin(np.flatnonzero(truncated).tolist())
            self._read()
            observation = self._observe()
        return EnvStep(
            observation=observation,
            true_next_observation=true_next,
            reward=reward.astype(np.float32),
            terminated=np.zeros(self._num_lanes, dtype=np.bool_),
            truncated=truncated,
            valid=np.ones(self._num_lanes, dtype=np.bool_),
            metrics={"success": success, "distance": distance.astype(np.float32)},
        )

    def render(self, lane: int = 0, width: int = 640, height: int = 480) -> npt.NDArray[np.uint8]:
        """Draw one lane; see `Renderable.render`. Drawing changes nothing that is simulated."""
        if not 0 <= lane < self._num_lanes:
            raise ValueError(f"lane {lane} cannot be drawn; this environment has lanes 0 to {self._num_lanes - 1}")
        if self._renderer is None or self._renderer.size != (width, height):
            from services.actor.envs.arm_renderer import ArmRenderer

            self._close_renderer()
            self._renderer = ArmRenderer(self._model, width, height)
        picture: npt.NDArray[np.uint8] = self._renderer.draw(self._joint_position[lane], self._goal[lane])
        return picture

    def close(self) -> None:
        """Free threads and renderer; harmless if called twice."""
        if self._pool is not None:
            self._pool.shutdown()
        self._close_renderer()

    def _close_renderer(self) -> None:
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None

    def _joint_move(self, action: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """How far each joint is to move, rad, [B, 7].

        Cartesian: dq = z + J^T (J J^T + damping^2 I)^-1 (dx - J z), where z pulls the posture home; the tool sees
        little of z, since the second term takes its part out (Nakamura and Hanafusa 1986, Liegeois 1977).
        """
        if not self._cartesian:
            return action * _JOINT_STEP_RAD
        jacobian = self._jacobian
        transposed = jacobian.transpose(0, 2, 1)
        homeward = _POSTURE_PULL * (self._home - self._joint_position)
        missing = (action * _TOOL_STEP_M)[..., None] - jacobian @ homeward[..., None]
        damped = jacobian @ transposed + _DAMPING**2 * np.eye(3)
        move: npt.NDArray[np.float64] = homeward + (transposed @ np.linalg.solve(damped, missing))[..., 0]
        return move

    def _advance(self) -> None:
        if self._pool is None:
            self._advance_lanes(self._chunks[0])
            return
        others = [self._pool.submit(self._advance_lanes, lanes) for lanes in self._chunks[1:]]
        self._advance_lanes(self._chunks[0])
        for other in others:
            other.result()

    def _advance_lanes(self, lanes: List[int]) -> None:
        for lane in lanes:
            mujoco.mj_step(self._model, self._states[lane], nstep=SUBSTEPS)
            self._update_tool(lane)

    def _update_tool(self, lane: int) -> None:
        """Bring the tool's position and Jacobian up to date; `mj_step` leaves those of its last substep's start."""
        mujoco.mj_kinematics(self._model, self._states[lane])
        if self._cartesian:
            mujoco.mj_comPos(self._model, self._states[lane])
            mujoco.mj_jacSite(self._model, self._states[lane], self._jacobian[lane], None, self._site)

    def _begin(self, lanes: Any) -> None:
        for lane in lanes:
            draw = self._random[lane].random(NUM_JOINTS + 3)
            mujoco.mj_resetData(self._model, self._states[lane])
            self._qpos[lane][:] = self._home + _START_NOISE_RAD * (2.0 * draw[:NUM_JOINTS] - 1.0)
            self._goal[lane] = GOAL_LOW_M + draw[NUM_JOINTS:] * np.subtract(GOAL_HIGH_M, GOAL_LOW_M)
            self._steps[lane] = 0
            self._update_tool(lane)

    def _read(self) -> None:
        np.stack(self._qpos, out=self._joint_position)
        np.stack(self._qvel, out=self._joint_velocity)
        np.stack(self._tool, out=self._tool_position)

    def _observe(self) -> Observation:
        middle, half = (self._joint_low + self._joint_high) / 2, (self._joint_high - self._joint_low) / 2
        parts = (
            (self._joint_position - middle) / half,
            self._joint_velocity / 2.0,
            (self._tool_position - _WORKSPACE_CENTRE_M) / 0.25,
            (self._goal - _WORKSPACE_CENTRE_M) / 0.25,
            (self._goal - self._tool_position) / 0.25,
        )
        policy = np.concatenate(parts, axis=1).astype(np.float32)
        return {"policy": np.clip(policy, -OBSERVATION_LIMIT, OBSERVATION_LIMIT)}


def make_reach(
    num_lanes: int,
    control: str = "cartesian",
    num_threads: Optional[int] = 1,
    seed: int = 0,
    horizon: Optional[int] = HORIZON,
) -> ArmReach:
    """Build the arm's reaching task; see `ArmReach`.

    Args:
        num_lanes: number of arms.
        control: "cartesian" or "joint".
        num_threads: threads that step the lanes; None or 0 takes one for each processor.
        seed: of the goals and start postures.
        horizon: steps of an episode; None never ends one.
    """
    return ArmReach(num_lanes, control, num_threads or os.cpu_count() or 1, seed, horizon)
