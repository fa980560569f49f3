from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bench.gradients.recording import Recording, RecordingInfo, write


def test_what_was_recorded_comes_back(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    shapes = {"w": (3, 4), "b": (4,), "critics": (2, 3, 1)}
    pushes = [{n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()} for _ in range(3)]
    info = RecordingInfo(22, 4, 6, 3, 1, 0.5)
    write(tmp_path / "r.npy", pushes, info)
    recording = Recording(tmp_path / "r.npy")
    assert (len(recording), recording.info, recording.shapes) == (3, info, shapes)
    for index, push in enumerate(pushes):
        again = recording.push(index)
        assert list(again) == list(push)
        for name, gradient in push.items():
            np.testing.assert_array_equal(again[name], gradient)
            again[name][...] = 0.0  # a copy: a codec may write into what it is given


def test_the_arm_is_learned_and_its_gradients_kept(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("mujoco")
    from bench.gradients.recorder import record

    record(tmp_path / "arm.npy", 6_000, num_updates=12, num_pushes=4, seed=0)
    recording = Recording(tmp_path / "arm.npy")
    assert len(recording) == 4
    assert 5_000 < recording.info.num_parameters <= 6_000
    assert sum(np.prod(shape) for shape in recording.shapes.values()) == recording.info.num_parameters
    assert {name.split(".")[0] for name in recording.shapes} == {"policy", "critics"}
    for index in range(4):
        push = recording.push(index)
        assert all(np.isfinite(gradient).all() for gradient in push.values())
        assert any(gradient.any() for gradient in push.values())


def test_what_is_kept_is_the_gradient_before_it_was_clipped() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("mujoco")
    from bench.gradients.recorder import Tap
    from services.agent.optimizer import TrainedParameters

    trained = TrainedParameters(
        "policy", {"policy.w": np.zeros((2, 3), np.float32)}, learning_rate=0.1, max_gradient_norm=1.0, device="cpu"
    )
    tap = Tap(trained, 1.0)
    for factor in (10.0, 0.1):
        trained.minimize((factor * trained.leaves["policy.w"]).sum())
        np.testing.assert_allclose(tap.gradients()["policy.w"], factor, rtol=1e-5)
