"""Draws the arm without a screen. Nothing here is imported until a picture is asked for."""

from __future__ import annotations

import atexit
import os
import sys
import weakref
from typing import Any, List, Tuple

import mujoco
import numpy as np
import numpy.typing as npt

from services.actor.envs.arm_model import CAMERA, MAX_PICTURE

_NO_RENDERER = (
    "cannot draw the arm: no OpenGL renderer was found; install Debian's libegl1 and libgl1-mesa-dri (MUJOCO_GL=egl)"
    " or libosmesa6 (MUJOCO_GL=osmesa)"
)


class ArmRenderer:
    """An off-screen OpenGL context and a scene for one model and one picture size.

    Args:
        model: the compiled arm, mujoco.MjModel.
        width: of the pictures, pixels.
        height: of the pictures, pixels.

    Raises:
        ValueError: the size is not within 1 and `MAX_PICTURE`.
        RuntimeError: this machine has no renderer; the message says what to install.
    """

    def __init__(self, model: Any, width: int, height: int) -> None:
        if not (1 <= width <= MAX_PICTURE[0] and 1 <= height <= MAX_PICTURE[1]):
            raise ValueError(
                f"a picture of {width}x{height} was asked for; sizes are 1x1 to {MAX_PICTURE[0]}x{MAX_PICTURE[1]}"
            )
        self.size: Tuple[int, int] = (width, height)
        self._model = model
        # A state of its own: drawing must never change what is simulated.
        self._data = mujoco.MjData(model)
        # The frame buffer is made as large as the picture; a larger one costs time with software rendering.
        model.vis.global_.offwidth, model.vis.global_.offheight = width, height
        self._context = _make_context(width, height)
        # Contexts must go before OpenGL does: exit handlers run last in, first out, and the context's is in.
        atexit.register(_close, weakref.ref(self))
        self._scene = mujoco.MjvScene(model, maxgeom=300)
        self._option = mujoco.MjvOption()
        self._camera = mujoco.MjvCamera()
        self._camera.type = mujoco.mjtCamera.mjCAMERA_FIXED
        self._camera.fixedcamid = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_CAMERA, CAMERA)
        self._drawer = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100.value)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN.value, self._drawer)

    def draw(self, joint_position: npt.NDArray[np.float64], goal: npt.NDArray[np.float64]) -> npt.NDArray[np.uint8]:
        """Draw one posture and goal.

        Args:
            joint_position: <float64>[7], rad.
            goal: <float64>[3], m.

        Returns:
            <uint8>[height, width, 3].
        """
        width, height = self.size
        self._context.make_current()
        self._data.qpos[:] = joint_position
        self._data.mocap_pos[0] = goal
        mujoco.mj_forward(self._model, self._data)
        mujoco.mjv_updateScene(
            self._model, self._data, self._option, None, self._camera, mujoco.mjtCatBit.mjCAT_ALL.value, self._scene
        )
        for flag, value in ((mujoco.mjtRndFlag.mjRND_HAZE, 1), (mujoco.mjtRndFlag.mjRND_REFLECTION, 0)):
            self._scene.flags[flag.value] = value
        picture = np.empty((height, width, 3), dtype=np.uint8)
        viewport = mujoco.MjrRect(0, 0, width, height)
        mujoco.mjr_render(viewport, self._scene, self._drawer)
        mujoco.mjr_readPixels(picture, None, viewport, self._drawer)
        return np.ascontiguousarray(picture[::-1])  # OpenGL's first row is the lowest

    def close(self) -> None:
        """Free the context; harmless if called twice."""
        if self._context is not None:
            self._drawer.free()
            self._context.free()
            self._context = None


def _close(renderer: weakref.ReferenceType[ArmRenderer]) -> None:
    alive = renderer()
    if alive is not None:
        alive.close()


def _make_context(width: int, height: int) -> Any:
    """The context that MUJOCO_GL names, or else the first that works: a screen if there is one, EGL, OSMesa."""
    failures: List[str] = []
    for name in _candidates():
        try:
            context = _context_class(name)(width, height)
            context.make_current()
        # Missing libraries surface as anything from ImportError to AttributeError inside the OpenGL bindings.
        except Exception as error:  # noqa: BLE001
            failures.append(f"{name}: {type(error).__name__}: {error}")
        else:
            return context
    raise RuntimeError(f"{_NO_RENDERER} ({'; '.join(failures) or 'MUJOCO_GL switches drawing off'})")


def _candidates() -> Tuple[str, ...]:
    wanted = os.environ.get("MUJOCO_GL", "").strip().lower()
    if wanted in ("egl", "osmesa", "glfw"):
        return (wanted,)
    if wanted in ("disable", "disabled", "off", "false", "0"):
        return ()
    if not sys.platform.startswith("linux"):
        return ("default",)
    return ("glfw", "egl", "osmesa") if os.environ.get("DISPLAY") else ("egl", "osmesa")


def _context_class(name: str) -> Any:
    if name == "egl":
        from mujoco.egl import GLContext
    elif name == "osmesa":
        from mujoco.osmesa import GLContext
    elif name == "glfw":
        from mujoco.glfw import GLContext
    else:
        from mujoco.gl_context import GLContext
    return GLContext
