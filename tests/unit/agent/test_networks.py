import subprocess
import sys

import numpy as np
import pytest

from services.agent.networks import (
    ActionScaling,
    ObservationEncoder,
    critic_values,
    dueling_values,
    initial_parameters,
    mlp,
    squashed_policy,
    to_tensor,
)
from services.common.schema import ActionSpec, Schema, SchemaError, TensorSpec

REACH = ActionSpec(low=(-1.0, 0.0), high=(1.0, 10.0))


def test_mlp_equals_the_sums_written_out() -> None:
    parameters = {
        "p.0.weight": np.array([[1.0, -1.0]], dtype=np.float32),
        "p.0.bias": np.array([0.0, 0.5], dtype=np.float32),
        "p.1.weight": np.array([[2.0], [3.0]], dtype=np.float32),
        "p.1.bias": np.array([1.0], dtype=np.float32),
    }
    output = mlp(parameters, "p", np.array([[2.0], [-2.0]], dtype=np.float32))
    np.testing.assert_allclose(output, [[2 * 2 + 0 + 1], [0 + 3 * 2.5 + 1]])


def test_initial_parameters_have_the_bounds_and_shapes_they_state() -> None:
    parameters = initial_parameters("c", (100, 8, 1), np.random.default_rng(0), stack=2)
    assert {name: array.shape for name, array in parameters.items()} == {
        "c.0.weight": (2, 100, 8),
        "c.0.bias": (2, 1, 8),
        "c.1.weight": (2, 8, 1),
        "c.1.bias": (2, 1, 1),
    }
    assert all(array.dtype == np.float32 for array in parameters.values())
    assert 0.09 < np.abs(parameters["c.0.weight"]).max() <= 0.1
    assert not np.array_equal(parameters["c.0.weight"][0], parameters["c.0.weight"][1])


def test_stacked_critics_equal_each_critic_alone() -> None:
    rng = np.random.default_rng(1)
    stacked = initial_parameters("c", (5, 16, 16, 1), rng, stack=2)
    inputs = rng.standard_normal((7, 3)).astype(np.float32)
    actions = rng.standard_normal((7, 2)).astype(np.float32)
    values = critic_values(stacked, "c", inputs, actions)
    assert values.shape == (2, 7)
    for j in range(2):
        alone = {name: array[j] for name, array in stacked.items()}
        expected = mlp(alone, "c", np.concatenate([inputs, actions], axis=1))[:, 0]
        np.testing.assert_allclose(values[j], expected, rtol=1e-5, atol=1e-6)


def test_numpy_and_torch_agree() -> None:
    pytest.importorskip("torch")
    rng = np.random.default_rng(2)
    parameters = {
        **initial_parameters("policy", (9, 32, 32, 4), rng),
        **initial_parameters("critics", (13, 32, 32, 1), rng, stack=2),
        **initial_parameters("q", (9, 32, 32, 6), rng),
    }
    tensors = {name: to_tensor(array, "cpu") for name, array in parameters.items()}
    inputs = (10 * rng.standard_normal((50, 9))).astype(np.float32)
    actions = squashed_policy(parameters, "policy", inputs)
    torch_inputs = to_tensor(inputs, "cpu")
    torch_actions = squashed_policy(tensors, "policy", torch_inputs)
    for ours, theirs in (
        (actions, torch_actions),
        (
            critic_values(parameters, "critics", inputs, actions),
            critic_values(tensors, "critics", torch_inputs, torch_actions),
        ),
        (dueling_values(parameters, "q", inputs), dueling_values(tensors, "q", torch_inputs)),
    ):
        assert ours.dtype == np.float32
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-4, atol=1e-5)


def test_dueling_values_put_their_mean_at_v() -> None:
    rng = np.random.default_rng(3)
    parameters = initial_parameters("q", (4, 8, 6), rng)
    inputs = rng.standard_normal((10, 4)).astype(np.float32)
    output, values = mlp(parameters, "q", inputs), dueling_values(parameters, "q", inputs)
    np.testing.assert_allclose(values.mean(axis=1), output[:, 0], atol=1e-6)
    np.testing.assert_allclose(values[:, 1] - values[:, 0], output[:, 2] - output[:, 1], atol=1e-6)


def test_encoder_joins_by_name_scales_images_and_keeps_states_from_the_policy() -> None:
    schema = Schema(
        (
            TensorSpec("states", "float32", (1,)),
            TensorSpec("image", "uint8", (1, 2)),
            TensorSpec("arm", "float64", (2,)),
        ),
        REACH,
    )
    encoder = ObservationEncoder(schema)
    observation = {
        "states": np.array([[7.0]], dtype=np.float32),
        "image": np.array([[[0, 255]]], dtype=np.uint8),
        "arm": np.array([[3.0, 4.0]]),
    }
    policy, critic = encoder.encode(observation, {})
    assert policy.dtype == critic.dtype == np.float32
    np.testing.assert_array_equal(policy, [[3, 4, 0, 1]])
    np.testing.assert_array_equal(critic, [[3, 4, 0, 1, 7]])
    np.testing.assert_array_equal(encoder.encode_policy(observation, {}), policy)
    assert (encoder.policy_size, encoder.critic_size) == (4, 5)


def test_states_alone_are_refused() -> None:
    with pytest.raises(SchemaError, match="critics alone"):
        ObservationEncoder(Schema((TensorSpec("states", "float32", (3,)),), REACH))


def test_action_scaling_maps_the_bounds_to_one_and_clips() -> None:
    scaling = ActionScaling(REACH)
    bounds = np.array([[-1.0, 0.0], [1.0, 10.0], [0.0, 5.0]], dtype=np.float32)
    np.testing.assert_allclose(scaling.normalize(bounds), [[-1, -1], [1, 1], [0, 0]])
    np.testing.assert_allclose(scaling.denormalize(scaling.normalize(bounds)), bounds)
    np.testing.assert_array_equal(scaling.denormalize(np.array([[-3.0, 3.0]], dtype=np.float32)), [[-1, 10]])


def test_to_tensor_takes_read_only_memory() -> None:
    pytest.importorskip("torch")
    received = np.frombuffer(np.arange(3, dtype=np.float32).tobytes(), dtype=np.float32)
    assert to_tensor(received, "cpu").tolist() == [0, 1, 2]


def test_acting_needs_no_torch() -> None:
    script = (
        "import sys; sys.modules['torch'] = None\n"
        "import services.agent.registry as registry\n"
        "from services.common.schema import ActionSpec, Schema, TensorSpec\n"
        "from services.common.config.algorithms import DqnSettings, Td3Settings\n"
        "import services.agent.networks as networks, numpy as np\n"
        "rng = np.random.default_rng(0)\n"
        "schema = Schema((TensorSpec('policy', 'float32', (3,)),), ActionSpec((-1.0,), (1.0,)))\n"
        "policy = registry.policy_class('td3')(schema, Td3Settings(), num_lanes=2, actor_index=0, num_actors=1)\n"
        "parameters = {**networks.initial_parameters('policy', (3, 8, 1), rng),\n"
        "              **networks.initial_parameters('critics', (4, 8, 1), rng, stack=2)}\n"
        "decision = policy.act(parameters, {'policy': np.zeros((2, 3), np.float32)}, rng)\n"
        "assert decision.action.shape == (2, 1) and decision.value.shape == (2,)\n"
        "registry.policy_class('dqn')\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
