from __future__ import annotations

import sys
from typing import Any, Dict

import numpy as np
import pytest

from services.actor import inference
from services.actor.inference import TorchPolicy, with_inference
from services.agent.networks import initial_parameters
from services.agent.registry import policy_class
from services.common.config.algorithms import DqnSettings, Td3Settings
from services.common.errors import UserError
from services.common.schema import ActionSpec, Schema, TensorSpec

LANES = 64
OBSERVATION = (
    TensorSpec("camera", "uint8", (2, 2)),
    TensorSpec("policy", "float32", (5,)),
    TensorSpec("states", "float16", (3,)),
)
CONTINUOUS = Schema(OBSERVATION, ActionSpec((-2.0, -1.0), (3.0, 1.0)))
DISCRETE = Schema(OBSERVATION, ActionSpec(num_actions=4))


def _observation(seed: int) -> Dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        "camera": rng.integers(0, 256, (LANES, 2, 2)).astype(np.uint8),
        "policy": rng.standard_normal((LANES, 5)).astype(np.float32),
        "states": rng.standard_normal((LANES, 3)).astype(np.float16),
    }


def _policy(algorithm: str) -> Any:
    schema, settings = (CONTINUOUS, Td3Settings()) if algorithm == "td3" else (DISCRETE, DqnSettings())
    return policy_class(algorithm)(schema, settings, num_lanes=LANES, actor_index=0, num_actors=1)


def _parameters(algorithm: str, seed: int = 0) -> Dict[str, Any]:
    rng = np.random.default_rng(seed)
    if algorithm == "dqn":
        return initial_parameters("q", (9, 32, 32, 5), rng)
    return {
        **initial_parameters("policy", (9, 32, 32, 2), rng),
        **initial_parameters("critics", (14, 32, 32, 1), rng, stack=2),
    }


@pytest.mark.parametrize("algorithm", ["td3", "dqn"])
def test_torch_and_numpy_give_the_same_numbers_in_all_heads(algorithm: str) -> None:
    pytest.importorskip("torch")
    policy, parameters = _policy(algorithm), _parameters(algorithm)
    by_torch = TorchPolicy(_policy(algorithm), "cpu")
    rngs = np.random.default_rng(3), np.random.default_rng(3)
    for seed in range(5):
        observation = _observation(seed)
        ours, theirs = policy.act(parameters, observation, rngs[0]), by_torch.act(parameters, observation, rngs[1])
        for head in ("action", "q_taken", "value"):
            one, other = getattr(ours, head), getattr(theirs, head)
            assert isinstance(other, np.ndarray)
            assert (one.dtype, one.shape) == (other.dtype, other.shape)
            np.testing.assert_allclose(other, one, rtol=1e-5, atol=1e-5)
        greedy = policy.act_greedily(parameters, observation), by_torch.act_greedily(parameters, observation)
        assert greedy[0].dtype == greedy[1].dtype
        np.testing.assert_allclose(greedy[1], greedy[0], rtol=1e-5, atol=1e-5)
        value = by_torch.value(parameters, observation)
        np.testing.assert_allclose(value, policy.value(parameters, observation), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("algorithm", ["td3", "dqn"])
def test_tensors_bring_tensors_back(algorithm: str) -> None:
    torch = pytest.importorskip("torch")
    policy, parameters = _policy(algorithm), _parameters(algorithm)
    by_torch = TorchPolicy(_policy(algorithm), "cpu")
    arrays = _observation(1)
    tensors: Any = {name: torch.from_numpy(array) for name, array in arrays.items()}
    ours = policy.act(parameters, arrays, np.random.default_rng(3))
    theirs: Any = by_torch.act(parameters, tensors, np.random.default_rng(3))
    for head in ("action", "q_taken", "value"):
        tensor = getattr(theirs, head)
        assert isinstance(tensor, torch.Tensor)
        np.testing.assert_allclose(tensor.numpy(), getattr(ours, head), rtol=1e-5, atol=1e-5)
    assert isinstance(by_torch.value(parameters, tensors), torch.Tensor)
    assert isinstance(by_torch.act_greedily(parameters, tensors), torch.Tensor)


def test_a_newer_set_is_the_one_that_acts() -> None:
    pytest.importorskip("torch")
    policy, by_torch, observation = _policy("td3"), TorchPolicy(_policy("td3"), "cpu"), _observation(0)
    for seed in (0, 1, 0):
        parameters = _parameters("td3", seed)
        np.testing.assert_allclose(
            by_torch.act_greedily(parameters, observation),
            policy.act_greedily(parameters, observation),
            rtol=1e-5,
            atol=1e-5,
        )


def test_a_read_only_observation_is_taken() -> None:
    pytest.importorskip("torch")
    observation = _observation(0)
    for array in observation.values():
        array.setflags(write=False)
    TorchPolicy(_policy("td3"), "cpu").act(_parameters("td3"), observation, np.random.default_rng(0))


def test_the_ladder_is_the_policys() -> None:
    pytest.importorskip("torch")
    settings = Td3Settings(noise_anneal_updates=10, noise_final_scale=0.5)
    inner = policy_class("td3")(CONTINUOUS, settings, num_lanes=3, actor_index=0, num_actors=1)
    policy = TorchPolicy(inner, "cpu")
    before = policy.exploration()
    policy.anneal(10)
    np.testing.assert_allclose(policy.exploration(), before / 2)


def test_on_the_cpu_numpy_infers_unless_torch_is_asked_for() -> None:
    policy = _policy("td3")
    assert with_inference(policy, "auto", device="cpu", num_threads=1) is policy
    assert with_inference(policy, "numpy", device="cpu", num_threads=1) is policy
    pytest.importorskip("torch")
    assert isinstance(with_inference(policy, "torch", device="cpu", num_threads=1), TorchPolicy)


def test_torch_gets_its_number_of_threads() -> None:
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    try:
        with_inference(_policy("td3"), "torch", device="cpu", num_threads=2)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_numpy_cannot_act_on_a_gpu() -> None:
    with pytest.raises(UserError, match=r"actor\.inference = 'numpy', but the .* lie on cuda:0: set it to 'auto'"):
        with_inference(_policy("td3"), "numpy", device="cuda:0", num_threads=1)


@pytest.mark.parametrize(
    ("asked", "device", "words"),
    [
        ("torch", "cpu", "actor.inference = 'torch', but torch is not installed here: install it, or set"),
        ("auto", "cuda:0", "observations lie on cuda:0, but torch is not installed"),
    ],
)
def test_a_missing_torch_is_said(asked: str, device: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference.importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(UserError, match=words):
        with_inference(_policy("td3"), asked, device=device, num_threads=1)


def test_an_actor_on_the_cpu_does_not_load_torch() -> None:
    import subprocess

    script = (
        "import sys\n"
        "from services.actor import actor, inference\n"
        "inference.with_inference(object(), 'auto', device='cpu', num_threads=1)\n"
        "sys.exit('torch' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
