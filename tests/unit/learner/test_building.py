from __future__ import annotations

import pytest

from services.common.config.load import load
from services.common.errors import EXIT_USER, UserError
from services.learner.building import build_learner, check_device
from tests.fakes import SCHEMA

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("device", ["cuda", "cuda:0"])
def test_a_machine_without_a_gpu_is_told_what_to_install(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(UserError, match=r"TORCH_SPEC=torch TORCH_INDEX=") as caught:
        check_device(device)
    assert caught.value.exit_code == EXIT_USER
    assert str(caught.value).startswith(f"learner.device = {device!r}, but torch ")
    assert "\n" not in str(caught.value)


def test_a_gpu_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    check_device("cuda")
    check_device("cuda:1")
    with pytest.raises(UserError, match=r"the GPUs here are cuda:0 to cuda:1"):
        check_device("cuda:2")


def test_the_cpu_is_always_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    check_device("cpu")


def test_a_learner_is_built_as_the_run_file_says() -> None:
    flags = ["--normalization.reward_scale", "0.25", "--normalization.observations", "true"]
    normalizer = build_learner(load(None, flags).config, SCHEMA, 1).normalizer
    assert normalizer.reward_scale == 0.25
    assert any(name.endswith(".mean") for name in normalizer.parameters)
    plain = build_learner(load(None).config, SCHEMA, 1).normalizer
    assert (plain.reward_scale, plain.parameters) == (1.0, {})
