from __future__ import annotations

import subprocess
import sys

import imageio_ffmpeg
import numpy as np
import pytest

from services.actor.envs.contract import AutoReset, EnvStep
from services.actor.envs.video import record
from services.common.schema import ActionSpec, TensorSpec


class Flashing:
    """Episodes of three steps, reward 1 each; pictures flash by step."""

    num_lanes, autoreset = 1, AutoReset.SAME_STEP
    observation_spec, action_spec = (TensorSpec("policy", "float32", (1,)),), ActionSpec(num_actions=2)

    def __init__(self, blind: bool = False) -> None:
        self.blind, self.steps, self.drawn = blind, 0, 0

    def reset(self, seed=None):
        return {"policy": np.zeros((1, 1), np.float32)}

    def step(self, action):
        self.steps += 1
        yes, no = np.ones(1, bool), np.zeros(1, bool)
        observation = self.reset()
        return EnvStep(observation, observation, np.ones(1, np.float32), no, yes if self.steps % 3 == 0 else no, yes)

    def render(self, lane=0, width=640, height=480):
        if self.blind:
            raise RuntimeError("no renderer; install libegl1")
        self.drawn += 1
        return np.full((height, width, 3), 255 * (self.drawn % 2), dtype=np.uint8)

    def close(self):
        pass


def act(observation):
    return np.zeros(1, dtype=np.int64)


def frames_of(path):
    """Decode by the encoder's own binary: its description of the file, and the frames."""
    ffmpeg = [imageio_ffmpeg.get_ffmpeg_exe(), "-i", str(path), "-f", "rawvideo", "-pix_fmt", "gray", "-"]
    done = subprocess.run(ffmpeg, check=True, capture_output=True)
    return done.stderr.decode(), np.frombuffer(done.stdout, dtype=np.uint8).reshape(-1, 48, 64)


def test_a_video_has_a_frame_a_step(tmp_path):
    returns = record(Flashing(), act, tmp_path / "a.mp4", episodes=2, width=64, height=48)
    assert returns == [3.0, 3.0]
    description, frames = frames_of(tmp_path / "a.mp4")
    assert "64x48" in description
    assert "20 fps" in description
    assert len(frames) == 6
    assert frames[0].mean() > 200
    assert frames[1].mean() < 50


def test_max_frames_ends_the_recording(tmp_path):
    env = Flashing()
    assert record(env, act, tmp_path / "a.mp4", episodes=9, width=64, height=48, max_frames=4) == [3.0]
    assert env.drawn == 4
    assert len(frames_of(tmp_path / "a.mp4")[1]) == 4


def test_without_a_renderer_no_file_is_left(tmp_path):
    with pytest.raises(RuntimeError, match="install libegl1"):
        record(Flashing(blind=True), act, tmp_path / "a.mp4", width=64, height=48)
    assert not (tmp_path / "a.mp4").exists()


def test_without_imageio_the_message_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(RuntimeError, match=r"install shoal\[sim\]"):
        record(Flashing(), act, tmp_path / "a.mp4")


@pytest.mark.parametrize(("kwargs", "words"), [({"width": 63}, "must be even"), ({"episodes": 0}, "at least 1")])
def test_bad_arguments_are_explained(tmp_path, kwargs, words):
    with pytest.raises(ValueError, match=words):
        record(Flashing(), act, tmp_path / "a.mp4", **kwargs)
