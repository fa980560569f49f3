import copy

import numpy as np
import pytest

from services.agent.algorithms import dqn
from services.agent.health import REPORT_PERIOD, TEXTS
from services.agent.networks import dueling_values, initial_parameters
from services.common.config.algorithms import DqnSettings
from services.common.schema import ActionSpec, Schema, SchemaError, TensorSpec

SCHEMA = Schema(
    (TensorSpec("image", "uint8", (2, 2)), TensorSpec("policy", "float32", (3,))), ActionSpec(num_actions=4)
)
SMALL = DqnSettings(hidden_sizes=(16, 16), target_update_period=7)


def _policy(schema=SCHEMA, settings=SMALL, num_lanes=8):
    return dqn.Policy(schema, settings, num_lanes=num_lanes, actor_index=0, num_actors=1)


def _learner(seed=0, settings=SMALL, schema=SCHEMA):
    pytest.importorskip("torch")
    return dqn.Learner(schema, settings, seed=seed)


def _inputs(observation):
    return np.concatenate([observation["image"].reshape(-1, 4) / 255, observation["policy"]], axis=1).astype(np.float32)


def test_q_taken_is_of_the_executed_action_and_value_is_the_best(make_batch) -> None:
    parameters = initial_parameters("q", (7, 16, 16, 5), np.random.default_rng(0))
    observation = make_batch(SCHEMA, 8).observation
    policy = _policy(settings=DqnSettings(epsilon_base=1.0, epsilon_exponent=0.0))
    decision = policy.act(parameters, observation, np.random.default_rng(1))
    values = dueling_values(parameters, "q", _inputs(observation))
    np.testing.assert_allclose(decision.q_taken, values[np.arange(8), decision.action], rtol=1e-5)
    np.testing.assert_allclose(decision.value, values.max(axis=1), rtol=1e-5)
    np.testing.assert_allclose(policy.value(parameters, observation), values.max(axis=1), rtol=1e-5)
    np.testing.assert_array_equal(policy.act_greedily(parameters, observation), values.argmax(axis=1))
    assert (decision.action != values.argmax(axis=1)).any()
    assert decision.action.dtype == np.int64


def test_the_ladder_is_that_of_ape_x() -> None:
    np.testing.assert_allclose(_policy().exploration(), 0.4 ** (1 + 7 * np.arange(8) / 7), rtol=1e-5)


def test_continuous_actions_are_refused() -> None:
    schema = Schema(SCHEMA.observation, ActionSpec((-1.0, -1.0), (1.0, 1.0)))
    with pytest.raises(SchemaError, match="2 reals; choose td3"):
        _policy(schema=schema)


def test_td_error_is_that_of_double_dqn_by_hand(make_batch) -> None:
    learner = _learner(settings=DqnSettings(hidden_sizes=(16, 16), target_update_period=100, learning_rate=0.05))
    target = learner.acting_parameters()
    for k in range(5):
        learner.update(make_batch(SCHEMA, 32, seed=k), np.ones(32, dtype=np.float32))
    online, batch = learner.acting_parameters(), make_batch(SCHEMA, 32, seed=9)
    following = _inputs(batch.next_observation)
    rows = np.arange(32)
    best = dueling_values(online, "q", following).argmax(axis=1)
    of_target = dueling_values(target, "q", following)
    bootstrap = of_target[rows, best]
    assert (bootstrap < of_target.max(axis=1)).any()
    q_taken = dueling_values(online, "q", _inputs(batch.observation))[rows, batch.action]
    expected = np.abs(q_taken - (batch.n_step_return + batch.discount * bootstrap))
    td_error = learner.update(batch, np.ones(32, dtype=np.float32)).td_error
    np.testing.assert_allclose(td_error, expected, rtol=1e-3, atol=1e-4)


def test_updates_equal_a_plain_implementation(make_batch) -> None:
    torch = pytest.importorskip("torch")
    learner, initial = _learner(), _learner().acting_parameters()

    class Plain(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(*initial[f"q.{k}.weight"].shape) for k in range(3))
            for k, layer in enumerate(self.layers):
                layer.weight.data = torch.tensor(initial[f"q.{k}.weight"].T.copy())
                layer.bias.data = torch.tensor(initial[f"q.{k}.bias"])

        def forward(self, inputs):
            output = self.layers[2](torch.relu(self.layers[1](torch.relu(self.layers[0](inputs)))))
            return output[:, :1] + output[:, 1:] - output[:, 1:].mean(1, keepdim=True)

    online = Plain()
    target, adam = copy.deepcopy(online), torch.optim.Adam(online.parameters(), lr=SMALL.learning_rate)
    for k in range(30):
        batch, weights = make_batch(SCHEMA, 16, seed=k), np.random.default_rng(k).uniform(0.1, 1, 16).astype(np.float32)
        learner.update(batch, weights)
        following = torch.tensor(_inputs(batch.next_observation))
        with torch.no_grad():
            best = online(following).argmax(1)
            bootstrap = target(following)[torch.arange(16), best]
        y = torch.tensor(batch.n_step_return) + torch.tensor(batch.discount) * bootstrap
        delta = online(torch.tensor(_inputs(batch.observation)))[torch.arange(16), torch.tensor(batch.action)] - y
        huber = torch.where(delta.abs() < 1, delta**2 / 2, delta.abs() - 0.5)
        adam.zero_grad()
        (torch.tensor(weights) * huber).mean().backward()
        torch.nn.utils.clip_grad_norm_(online.parameters(), SMALL.max_gradient_norm)
        adam.step()
        if (k + 1) % SMALL.target_update_period == 0:
            target.load_state_dict(online.state_dict())
    state = learner.state()
    for prefix, network in (("online", online), ("target", target)):
        for k, layer in enumerate(network.layers):
            ours = state[f"{prefix}.q.{k}.weight"]
            np.testing.assert_allclose(ours, layer.weight.detach().numpy().T, rtol=2e-3, atol=1e-4)


def test_nothing_is_bootstrapped_beyond_a_terminal(make_batch) -> None:
    zeros = np.zeros(8, dtype=np.float32)
    followings = [make_batch(SCHEMA, 8, seed=seed).next_observation for seed in (5, 6)]

    def errors(discount):
        return [
            _learner().update(make_batch(SCHEMA, 8, discount=discount, next_observation=following), zeros + 1).td_error
            for following in followings
        ]

    np.testing.assert_array_equal(*errors(zeros))
    assert np.abs(np.subtract(*errors(zeros + 0.9))).max() > 1e-3


def test_importance_weights_scale_the_loss_and_not_the_priority(make_batch) -> None:
    half = np.array([1, 1, 1, 1, 0, 0, 0, 0], dtype=np.float32)
    batch = make_batch(SCHEMA, 8)
    others = batch.n_step_return + np.where(half, 0, 7).astype(np.float32)
    weighted, plain, changed = _learner(), _learner(), _learner()
    error = weighted.update(batch, half).td_error
    np.testing.assert_array_equal(plain.update(batch, np.ones(8, dtype=np.float32)).td_error, error)
    changed.update(make_batch(SCHEMA, 8, n_step_return=others), half)
    name = "q.1.weight"
    np.testing.assert_array_equal(weighted.acting_parameters()[name], changed.acting_parameters()[name])
    assert not np.array_equal(weighted.acting_parameters()[name], plain.acting_parameters()[name])


def test_a_resumed_learner_goes_on_bit_for_bit(make_batch) -> None:
    weights = np.linspace(0.1, 1, 16, dtype=np.float32)
    whole, first, second = _learner(seed=1), _learner(seed=1), _learner(seed=2)
    for k in range(20):
        whole.update(make_batch(SCHEMA, 16, seed=k), weights)
    for k in range(10):
        first.update(make_batch(SCHEMA, 16, seed=k), weights)
    second.load_state(first.state())
    assert second.updates == 10
    for k in range(10, 20):
        second.update(make_batch(SCHEMA, 16, seed=k), weights)
    resumed = second.state()
    for name, array in whole.state().items():
        np.testing.assert_array_equal(resumed[name], array, err_msg=name)
    with pytest.raises(ValueError, match="hidden_sizes"):
        second.load_state(_learner(settings=DqnSettings(hidden_sizes=(16, 8))).state())


def test_metrics_come_at_their_period(make_batch) -> None:
    learner = _learner()
    expected = {"q_loss", "q_gradient_norm", "q_clipped_gradient_norm", "q_clipped_share", "q_update_ratio"}
    expected |= {"q_mean", "q_max", "exploration_share", "greedy_entropy"}
    for k in range(2 * REPORT_PERIOD):
        metrics = learner.update(make_batch(SCHEMA, 8, seed=k), np.ones(8, dtype=np.float32)).metrics
        assert bool(metrics) == ((k + 1) % REPORT_PERIOD == 0)
        if k == REPORT_PERIOD - 1:
            assert set(metrics) == expected
    assert set(metrics) == expected | {"q_drift"} <= set(TEXTS)
    assert np.isfinite(list(metrics.values())).all()
    assert 0 <= metrics["greedy_entropy"] <= 1


def test_exploration_and_entropy_are_those_of_the_batch(make_batch) -> None:
    learner = _learner()
    batch = make_batch(SCHEMA, 8)
    ones = np.ones(8, dtype=np.float32)
    batch.action = _policy().act_greedily(learner.acting_parameters(), batch.observation)
    batch.action[:2] = (batch.action[:2] + 1) % 4
    assert learner._batch_scalars(learner._loss(batch, ones))["exploration_share"].item() == 0.25
    learner._online.views["q.2.bias"].copy_(learner._online.views["q.2.bias"].new_tensor([0, 0, 0, 1e3, 0]))
    assert learner._batch_scalars(learner._loss(batch, ones))["greedy_entropy"].item() == 0


def test_a_chain_of_two_steps_is_learned(make_batch) -> None:
    """The right first action pays nothing and leads to 1, the wrong one pays 0.5: only bootstrapping tells."""
    schema = Schema((TensorSpec("policy", "float32", (2,)),), ActionSpec(num_actions=2))
    learner = _learner(
        schema=schema, settings=DqnSettings(hidden_sizes=(32,), learning_rate=3e-3, target_update_period=20)
    )
    rng = np.random.default_rng(0)
    start, later = np.array([1, 0], dtype=np.float32), np.array([0, 1], dtype=np.float32)
    for _ in range(300):
        first, action = rng.random(32) < 0.5, rng.integers(2, size=32)
        waits = first & (action == 1)
        batch = make_batch(
            schema,
            32,
            observation={"policy": np.where(first[:, None], start, later)},
            next_observation={"policy": np.tile(later, (32, 1))},
            action=action,
            n_step_return=np.where(first, 0.5 * (action == 0), 1.0 * (action == 0)).astype(np.float32),
            discount=(0.9 * waits).astype(np.float32),
        )
        learner.update(batch, np.ones(32, dtype=np.float32))
    parameters, seen = learner.acting_parameters(), {"policy": np.stack([start, later])}
    np.testing.assert_array_equal(_policy(schema=schema).act_greedily(parameters, seen), [1, 0])
    np.testing.assert_allclose(_policy(schema=schema).value(parameters, seen), [0.9, 1.0], atol=0.1)


def test_an_annealed_ladder_shrinks_by_the_updates_that_act():
    settings = DqnSettings(epsilon_anneal_updates=100, epsilon_final_scale=0.5)
    policy = dqn.Policy(SCHEMA, settings, num_lanes=8, actor_index=0, num_actors=1)
    before = policy.exploration()
    for updates, scale in ((0, 1.0), (50, 0.75), (1000, 0.5)):
        policy.anneal(updates)
        np.testing.assert_allclose(policy.exploration(), before * scale, rtol=1e-6)
