"""Records a policy at work as an mp4."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any, Callable, Iterator, List, Protocol, Union

import numpy as np
import numpy.typing as npt

from services.actor.envs.contract import Observation, Renderable, VectorEnv


class RenderableEnv(VectorEnv, Renderable, Protocol):
    """An environment that can be stepped and drawn."""


def record(
    env: RenderableEnv,
    act: Callable[[Observation], npt.NDArray[Any]],
    path: Union[str, Path],
    *,
    episodes: int = 3,
    seed: int = 0,
    lane: int = 0,
    width: int = 640,
    height: int = 480,
    frames_per_second: int = 20,
    max_frames: int = 1000,
) -> List[float]:
    """Drive `env` by `act` and write what one lane does, one frame a step.

    Args:
        env: best of one lane, since all lanes are stepped; it resets its lanes itself.
        act: from an observation, name -> [B, ...], to actions, [B, ...].
        path: of the mp4; its folder must exist.
        episodes: of the lane to record.
        seed: of the first episode.
        lane: to draw.
        width: of the picture, pixels, even. Software drawing costs about as much as there are pixels.
        height: of the picture, pixels, even.
        frames_per_second: of the video; the arm's control rate makes it play in real time.
        max_frames: ends the recording, in the middle of an episode if need be.

    Returns:
        The sum of rewards of each episode that was recorded to its end.

    Raises:
        RuntimeError: there is no renderer, or imageio is not installed; the message says what to install.
        ValueError: a size is odd, or the number of episodes or frames is below 1.
    """
    if width % 2 or height % 2:
        raise ValueError(f"a video of {width}x{height} was asked for; width and height must be even")
    if episodes < 1 or max_frames < 1:
        raise ValueError(f"{episodes} episodes and {max_frames} frames were asked for; both must be at least 1")
    observation = env.reset(seed)
    # The first picture comes before the file, so that a machine without a renderer leaves no empty file behind.
    picture = env.render(lane, width, height)
    returns: List[float] = []
    episode_return = 0.0
    with _video_file(path, width, height, frames_per_second) as write:
        for frame in range(max_frames):
            write(picture)
            step = env.step(act(observation))
            observation = step.observation
            if step.valid[lane]:
                episode_return += float(step.reward[lane])
            if step.terminated[lane] or step.truncated[lane]:
                returns.append(episode_return)
                episode_return = 0.0
            if len(returns) == episodes or frame == max_frames - 1:
                break
            picture = env.render(lane, width, height)
    return returns


@contextlib.contextmanager
def _video_file(
    path: Union[str, Path], width: int, height: int, frames_per_second: int
) -> Iterator[Callable[[npt.NDArray[np.uint8]], None]]:
    """Open an mp4; what is given takes a picture, <uint8>[height, width, 3]."""
    try:
        import imageio_ffmpeg
    except ImportError as error:
        raise RuntimeError("cannot write a video: imageio-ffmpeg is not installed; install shoal[sim]") from error
    writer = imageio_ffmpeg.write_frames(
        str(path), (width, height), fps=frames_per_second, codec="libx264", quality=8, macro_block_size=2
    )
    writer.send(None)
    try:
        yield lambda picture: writer.send(np.ascontiguousarray(picture))
    finally:
        writer.close()
