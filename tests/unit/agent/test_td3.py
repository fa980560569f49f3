import copy

import numpy as np
import pytest

from services.agent.algorithm import NonFiniteUpdate
from services.agent.algorithms import td3
from services.agent.health import REPORT_PERIOD, TEXTS
from services.agent.networks import critic_values, initial_parameters
from services.common.config.algorithms import Td3Settings
from services.common.schema import ActionSpec, Schema, SchemaError, TensorSpec

SCHEMA = Schema(
    (TensorSpec("policy", "float32", (5,)), TensorSpec("states", "float32", (2,))),
    ActionSpec(low=(-1.0, 0.0, -5.0), high=(1.0, 2.0, 5.0)),
)
SMALL = Td3Settings(hidden_sizes=(16, 16))


def _policy(schema=SCHEMA, settings=SMALL, num_lanes=8, actor_index=0, num_actors=1):
    return td3.Policy(schema, settings, num_lanes=num_lanes, actor_index=actor_index, num_actors=num_actors)


def _parameters():
    rng = np.random.default_rng(0)
    return {
        **initial_parameters("policy", (5, 16, 16, 3), rng),
        **initial_parameters("critics", (10, 16, 16, 1), rng, stack=2),
    }


def _observation(num_lanes=8):
    rng = np.random.default_rng(1)
    return {
        "policy": rng.standard_normal((num_lanes, 5)).astype(np.float32),
        "states": rng.standard_normal((num_lanes, 2)).astype(np.float32),
    }


def test_actions_lie_within_the_bounds_and_reach_them() -> None:
    policy, parameters = _policy(settings=Td3Settings(noise_min=3.0, noise_max=5.0)), _parameters()
    rng = np.random.default_rng(2)
    actions = np.stack([policy.act(parameters, _observation(), rng).action for _ in range(50)])
    assert actions.dtype == np.float32
    np.testing.assert_array_equal(actions.min(axis=(0, 1)), SCHEMA.action.low)
    np.testing.assert_array_equal(actions.max(axis=(0, 1)), SCHEMA.action.high)


def test_critics_value_the_action_that_was_executed() -> None:
    policy, parameters, observation = _policy(), _parameters(), _observation()
    decision = policy.act(parameters, observation, np.random.default_rng(3))
    joined = np.concatenate([observation["policy"], observation["states"]], axis=1)
    normalized = (decision.action - np.array([0, 1, 0])) / np.array([1, 1, 5])
    expected = critic_values(parameters, "critics", joined, normalized.astype(np.float32)).mean(axis=0)
    np.testing.assert_allclose(decision.q_taken, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(decision.value, policy.value(parameters, observation), rtol=1e-5, atol=1e-6)
    greedy = (policy.act_greedily(parameters, observation) - np.array([0, 1, 0])) / np.array([1, 1, 5])
    of_greedy = critic_values(parameters, "critics", joined, greedy.astype(np.float32)).min(axis=0)
    np.testing.assert_allclose(decision.value, of_greedy, rtol=1e-4, atol=1e-5)


def test_ladder_and_greedy_actions() -> None:
    policy, parameters = _policy(settings=Td3Settings(noise_min=0.0, noise_max=0.7)), _parameters()
    np.testing.assert_allclose(policy.exploration(), np.linspace(0, 0.7, 8), rtol=1e-6)
    noisy = policy.act(parameters, _observation(), np.random.default_rng(4)).action
    greedy = policy.act_greedily(parameters, _observation())
    np.testing.assert_array_equal(noisy[0], greedy[0])
    assert np.abs(noisy[-1] - greedy[-1]).max() > 0.1


def test_discrete_actions_are_refused() -> None:
    schema = Schema(SCHEMA.observation, ActionSpec(num_actions=4))
    with pytest.raises(SchemaError, match="4 discrete ones; choose dqn"):
        _policy(schema=schema)
    pytest.importorskip("torch")
    with pytest.raises(SchemaError, match="choose dqn"):
        td3.Learner(schema, SMALL, seed=0)


def _learner(seed=0, settings=SMALL, schema=SCHEMA):
    pytest.importorskip("torch")
    return td3.Learner(schema, settings, seed=seed)


class _PlainTd3:
    """The same update written with modules, one critic at a time and an optimizer of many tensors."""

    def __init__(self, learner, settings) -> None:
        import torch

        state = learner.state()

        def module(prefix, role, tanh, part=None):
            layers = []
            for layer in range(3):
                weight, bias = (state[f"{prefix}.{role}.{layer}.{kind}"] for kind in ("weight", "bias"))
                if part is not None:
                    weight, bias = weight[part], bias[part][0]
                linear = torch.nn.Linear(*weight.shape)
                linear.weight.data = torch.tensor(weight.T.copy())
                linear.bias.data = torch.tensor(bias)
                layers += [linear, torch.nn.ReLU()]
            return torch.nn.Sequential(*layers[:-1], *([torch.nn.Tanh()] if tanh else []))

        self.settings = settings
        self.policy = module("online", "policy", tanh=True)
        self.critics = torch.nn.ModuleList(module("online", "critics", tanh=False, part=j) for j in range(2))
        self.target_policy, self.target_critics = copy.deepcopy(self.policy), copy.deepcopy(self.critics)
        self.policy_adam = torch.optim.Adam(self.policy.parameters(), lr=settings.policy_learning_rate)
        self.critic_adam = torch.optim.Adam(self.critics.parameters(), lr=settings.critic_learning_rate)
        self.generator = torch.Generator().manual_seed(0)
        self.updates = 0

    def update(self, batch, weights):
        import torch

        settings = self.settings
        centre, half = torch.tensor([0.0, 1.0, 0.0]), torch.tensor([1.0, 1.0, 5.0])
        tensors = {name: torch.tensor(values) for name, values in batch.observation.items()}
        following = {name: torch.tensor(values) for name, values in batch.next_observation.items()}
        with torch.no_grad():
            proposed = self.target_policy(following["policy"])
            noise = settings.smoothing_stddev * torch.randn(proposed.shape, generator=self.generator)
            smoothed = (proposed + noise.clamp(-settings.smoothing_clip, settings.smoothing_clip)).clamp(-1, 1)
            joined = torch.cat([following["policy"], following["states"], smoothed], 1)
            lower = torch.minimum(self.target_critics[0](joined), self.target_critics[1](joined))[:, 0]
            target = torch.tensor(batch.n_step_return) + torch.tensor(batch.discount) * lower
        joined = torch.cat([tensors["policy"], tensors["states"], (torch.tensor(batch.action) - centre) / half], 1)
        deltas = [critic(joined)[:, 0] - target for critic in self.critics]
        loss = sum((torch.tensor(weights) * delta**2).mean() for delta in deltas)
        self._step(self.critic_adam, self.critics, loss)
        self.updates += 1
        if self.updates % settings.policy_period == 0:
            actions = self.policy(tensors["policy"])
            loss = -self.critics[0](torch.cat([tensors["policy"], tensors["states"], actions], 1)).mean()
            self._step(self.policy_adam, self.policy, loss)
        for online, average in ((self.critics, self.target_critics), (self.policy, self.target_policy)):
            for source, destination in zip(online.parameters(), average.parameters()):
                destination.data += settings.target_update_rate * (source.data - destination.data)
        return (deltas[0].abs() + deltas[1].abs()).detach().numpy() / 2

    def _step(self, adam, module, loss) -> None:
        import torch

        adam.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), self.settings.max_gradient_norm)
        adam.step()


def test_updates_equal_a_plain_implementation(make_batch) -> None:
    settings = Td3Settings(hidden_sizes=(16, 16), target_update_rate=0.05, max_gradient_norm=0.5)
    learner = _learner(settings=settings)
    plain = _PlainTd3(learner, settings)
    for k in range(30):
        batch = make_batch(SCHEMA, 32, seed=k)
        weights = np.random.default_rng(k).uniform(0.1, 1, 32).astype(np.float32)
        td_error = learner.update(batch, weights).td_error
        np.testing.assert_allclose(td_error, plain.update(batch, weights), rtol=1e-3, atol=1e-4)
    state = learner.state()
    for prefix, policy, critics in (
        ("online", plain.policy, plain.critics),
        ("target", plain.target_policy, plain.target_critics),
    ):
        for layer in range(3):
            ours = state[f"{prefix}.policy.{layer}.weight"]
            np.testing.assert_allclose(ours, policy[2 * layer].weight.detach().numpy().T, rtol=2e-3, atol=2e-4)
            for j in range(2):
                ours = state[f"{prefix}.critics.{layer}.weight"][j]
                theirs = critics[j][2 * layer].weight.detach().numpy().T
                np.testing.assert_allclose(ours, theirs, rtol=2e-3, atol=2e-4)


def test_td_error_by_hand_without_smoothing(make_batch) -> None:
    learner = _learner(settings=Td3Settings(hidden_sizes=(16, 16), smoothing_stddev=0.0))
    parameters = learner.acting_parameters()
    batch = make_batch(SCHEMA, 8)
    bootstrap = _policy().value(parameters, batch.next_observation)
    joined = np.concatenate([batch.observation["policy"], batch.observation["states"]], axis=1)
    normalized = ((batch.action - np.array([0, 1, 0])) / np.array([1, 1, 5])).astype(np.float32)
    q_values = critic_values(parameters, "critics", joined, normalized)
    expected = np.abs(q_values - (batch.n_step_return + batch.discount * bootstrap)).mean(axis=0)
    td_error = learner.update(batch, np.full(8, 0.01, dtype=np.float32)).td_error
    assert td_error.dtype == np.float32
    np.testing.assert_allclose(td_error, expected, rtol=1e-4, atol=1e-5)


def test_nothing_is_bootstrapped_beyond_a_terminal(make_batch) -> None:
    terminal = np.zeros(8, dtype=np.float32)
    errors = [
        _learner()
        .update(make_batch(SCHEMA, 8, discount=discount, next_observation=following), np.ones(8, "f"))
        .td_error
        for discount in (terminal, terminal + 0.9)
        for following in (
            make_batch(SCHEMA, 8, seed=5).next_observation,
            {name: 100 * values for name, values in make_batch(SCHEMA, 8, seed=5).next_observation.items()},
        )
    ]
    np.testing.assert_array_equal(errors[0], errors[1])
    assert np.abs(errors[2] - errors[3]).max() > 0.1


def test_importance_weights_scale_the_loss_and_not_the_priority(make_batch) -> None:
    batch = make_batch(SCHEMA, 8)
    half = np.array([1, 1, 1, 1, 0, 0, 0, 0], dtype=np.float32)
    weighted, plain, changed = _learner(), _learner(), _learner()
    error = weighted.update(batch, half).td_error
    np.testing.assert_array_equal(plain.update(batch, np.ones(8, dtype=np.float32)).td_error, error)
    # What has no weight has no influence: other returns in the second half change nothing.
    others = batch.n_step_return + np.where(half, 0, 7).astype(np.float32)
    changed.update(make_batch(SCHEMA, 8, n_step_return=others), half)
    name = "critics.1.weight"
    np.testing.assert_array_equal(weighted.acting_parameters()[name], changed.acting_parameters()[name])
    assert not np.array_equal(weighted.acting_parameters()[name], plain.acting_parameters()[name])


def test_what_has_no_weight_moves_the_policy_neither(make_batch) -> None:
    half = np.array([1, 1, 1, 1, 0, 0, 0, 0], dtype=np.float32)
    settings = Td3Settings(hidden_sizes=(16, 16), policy_period=1)
    policies = {}
    for name, other in (("masked", 1.0), ("changed", 40.0), ("all", 40.0)):
        learner, batch = _learner(settings=settings), make_batch(SCHEMA, 8)
        for tensor in batch.observation.values():
            tensor[4:] *= np.float32(other)
        learner.update(batch, np.ones(8, np.float32) if name == "all" else half)
        policies[name] = learner.acting_parameters()["policy.1.weight"]
    np.testing.assert_array_equal(policies["masked"], policies["changed"])
    assert not np.array_equal(policies["changed"], policies["all"])


def test_policy_moves_at_its_period_only(make_batch) -> None:
    learner = _learner(settings=Td3Settings(hidden_sizes=(16, 16), policy_period=3))
    seen = [learner.acting_parameters()["policy.0.weight"]]
    for k in range(6):
        learner.update(make_batch(SCHEMA, 8, seed=k), np.ones(8, dtype=np.float32))
        seen.append(learner.acting_parameters()["policy.0.weight"])
    moved = [not np.array_equal(before, after) for before, after in zip(seen[:-1], seen[1:])]
    assert moved == [False, False, True, False, False, True]


def test_a_resumed_learner_goes_on_bit_for_bit(make_batch) -> None:
    weights = np.linspace(0.1, 1, 16, dtype=np.float32)
    whole, first, second = _learner(seed=1), _learner(seed=1), _learner(seed=2)
    for k in range(21):
        whole.update(make_batch(SCHEMA, 16, seed=k), weights)
    for k in range(11):
        first.update(make_batch(SCHEMA, 16, seed=k), weights)
    saved = first.state()
    first.update(make_batch(SCHEMA, 16, seed=99), weights)  # what was saved is a copy
    second.load_state(saved)
    assert second.updates == 11
    for k in range(11, 21):
        second.update(make_batch(SCHEMA, 16, seed=k), weights)
    resumed = second.state()
    for name, array in whole.state().items():
        np.testing.assert_array_equal(resumed[name], array, err_msg=name)


def test_the_state_of_another_network_is_refused() -> None:
    with pytest.raises(ValueError, match="hidden_sizes"):
        _learner().load_state(_learner(settings=Td3Settings(hidden_sizes=(8, 16))).state())


def test_metrics_come_at_their_period(make_batch) -> None:
    learner = _learner()
    ones = np.ones(8, dtype=np.float32)
    updates = [learner.update(make_batch(SCHEMA, 8, seed=k), ones) for k in range(2 * REPORT_PERIOD)]
    reported = [k for k, update in enumerate(updates) if update.metrics]
    assert reported == [REPORT_PERIOD - 1, 2 * REPORT_PERIOD - 1]
    roles = ("critic", "policy")
    steps = ("gradient_norm", "clipped_gradient_norm", "clipped_share", "update_ratio")
    expected = {f"{role}_{name}" for role in roles for name in steps}
    expected |= {"critic_loss", "policy_loss", "q_mean", "q_max", "exploration_noise", "policy_saturation"}
    assert set(updates[reported[0]].metrics) == expected
    metrics = updates[reported[1]].metrics  # the drift is a difference of two reports
    assert set(metrics) == expected | {"q_drift"} <= set(TEXTS)
    assert np.isfinite(list(metrics.values())).all()
    assert 0 < metrics["critic_update_ratio"] < 0.1
    assert 0 < metrics["policy_update_ratio"] < 0.1
    assert 0 < metrics["q_drift"] < 1


def test_exploration_and_saturation_are_those_of_the_batch(make_batch) -> None:
    learner = _learner()
    batch = make_batch(SCHEMA, 8)
    greedy = _policy().act_greedily(learner.acting_parameters(), batch.observation)
    batch.action = greedy + np.array([0.1, 0.1, 0.5], dtype=np.float32)  # of half ranges 1, 1 and 5
    scalars = learner._batch_scalars(learner._critic_loss(batch, np.ones(8, dtype=np.float32)))
    assert scalars["exploration_noise"].item() == pytest.approx(0.1, rel=1e-4)
    assert scalars["policy_saturation"].item() == 0
    learner._policy.views["policy.2.bias"].fill_(20)
    scalars = learner._batch_scalars(learner._critic_loss(batch, np.ones(8, dtype=np.float32)))
    assert scalars["policy_saturation"].item() == 1


def test_a_policy_gradient_that_is_not_finite_leaves_the_critic_step(make_batch) -> None:
    learner, plain = _learner(), _learner()
    ones = np.ones(8, dtype=np.float32)
    for k in range(3):
        for each in (learner, plain):
            each.update(make_batch(SCHEMA, 8, seed=k), ones)
    # As if the gradient overflowed: the policy's loss is infinite, the critics' is not.
    learner._policy_loss = lambda critic: type(plain)._policy_loss(learner, critic) * float("inf")
    before = learner.state()
    with pytest.raises(NonFiniteUpdate, match="the gradient of policy is not finite"):
        learner.update(make_batch(SCHEMA, 8, seed=3), ones)
    plain.update(make_batch(SCHEMA, 8, seed=3), ones)
    assert learner.updates == plain.updates == 4
    after, expected = learner.state(), plain.state()
    for name, array in after.items():
        if name.startswith(("online.policy", "adam.policy")):
            np.testing.assert_array_equal(array, before[name], err_msg=name)
        elif not name.startswith("target.policy"):  # it follows the policy where that stands
            np.testing.assert_array_equal(array, expected[name], err_msg=name)


def test_a_one_step_task_is_learned(make_batch) -> None:
    """Reward -(a - goal)^2 of a one-step episode, where the goal is what is seen."""
    schema = Schema((TensorSpec("policy", "float32", (1,)),), ActionSpec((-2.0,), (2.0,)))
    settings = Td3Settings(hidden_sizes=(64, 64), policy_learning_rate=3e-3, critic_learning_rate=3e-3)
    learner = _learner(settings=settings, schema=schema)
    rng = np.random.default_rng(0)
    ones, zeros = np.ones(64, dtype=np.float32), np.zeros(64, dtype=np.float32)
    for _ in range(800):
        goal, action = (rng.uniform(-1.5, 1.5, (64, 1)).astype(np.float32) for _ in range(2))
        batch = make_batch(
            schema,
            64,
            observation={"policy": goal},
            action=action,
            n_step_return=-np.square(action - goal)[:, 0],
            discount=zeros,
        )
        learner.update(batch, ones)
    goals = np.linspace(-1.2, 1.2, 13, dtype=np.float32)[:, None]
    actions = _policy(schema=schema).act_greedily(learner.acting_parameters(), {"policy": goals})
    assert np.abs(actions - goals).mean() < 0.2


def test_an_annealed_ladder_shrinks_by_the_updates_that_act_and_the_noise_with_it():
    settings = Td3Settings(hidden_sizes=(16, 16), noise_anneal_updates=100, noise_final_scale=0.0)
    policy, parameters, observation = _policy(settings=settings), _parameters(), _observation()
    fixed = _policy().exploration()
    greedy = policy.act_greedily(parameters, observation)
    for updates, scale in ((0, 1.0), (50, 0.5), (100, 0.0), (20, 0.8)):
        policy.anneal(updates)
        np.testing.assert_allclose(policy.exploration(), fixed * scale, rtol=1e-6)
        action = policy.act(parameters, observation, np.random.default_rng(0)).action
        assert np.allclose(action, greedy) == (scale == 0.0)
