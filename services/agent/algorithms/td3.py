"""TD3 in the manner of Ape-X DPG: twin critics, delayed policy, smoothed targets, n-step (Fujimoto et al. 2018).

For an n-step transition (s, a, R, discount, s') and normalized actions:

    y       = R + discount * min_j Q'_j(s', clip(pi'(s') + clip(noise)))
    delta_j = Q_j(s, a) - y
    critics minimize sum_j mean_i w_i delta_j^2
    policy  maximizes mean_i Q_1(s, pi(s)) over the items with w_i > 0, at every policy_period-th update

where s and s' are normalized and R is times reward_scale (`normalizer.py`). The TD error, and the critics' values that
a policy returns, are over reward_scale again: in the rewards of the environment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, Mapping, NamedTuple, Optional, Tuple

import numpy as np
import numpy.typing as npt

from services.agent.algorithm import Contribution, Decision, Observation, Parameters, Update
from services.agent.exploration import add_noise, annealed_scale, ladder_quantiles, noise_ladder
from services.agent.health import REPORT_PERIOD, Probe
from services.agent.networks import (
    ActionScaling,
    ObservationEncoder,
    concatenate,
    critic_values,
    initial_parameters,
    lowest,
    parameter_shapes,
    squashed_policy,
    to_tensor,
)
from services.agent.normalizer import Normalizer, reward_scale, statistics_shapes
from services.agent.optimizer import (
    FlatParameters,
    TrainedParameters,
    check_finite,
    check_state,
    checked_td_error,
    copied,
)
from services.common.batch import Batch
from services.common.config.algorithms import Td3Settings
from services.common.parameter_set import ParameterShapes
from services.common.schema import ActionSpec, Schema, SchemaError

if TYPE_CHECKING:
    import torch

SATURATED = 0.99  # of a normalized action: beyond it, the policy's tanh has hardly any slope


def check_action(action: ActionSpec) -> None:
    """Refuse discrete actions.

    Raises:
        SchemaError: they are.
    """
    if action.is_discrete:
        raise SchemaError(
            f"td3 needs continuous actions, this environment has {action.num_actions} discrete ones; choose dqn"
        )


def acting_shapes(schema: Schema, settings: Td3Settings) -> ParameterShapes:
    """What the set of role `act` holds: `policy.*`, a stack of two `critics.*`, and statistics."""
    encoder, hidden, num_dimensions = ObservationEncoder(schema), settings.hidden_sizes, schema.action.shape[0]
    policy = parameter_shapes("policy", (encoder.policy_size, *hidden, num_dimensions))
    critics = parameter_shapes("critics", (encoder.critic_size + num_dimensions, *hidden, 1), stack=2)
    return ParameterShapes({**policy, **critics}, statistics_shapes(schema))


class Policy:
    """Acts by the policy network and Gaussian noise of one standard deviation a lane."""

    def __init__(
        self, schema: Schema, settings: Td3Settings, *, num_lanes: int, actor_index: int, num_actors: int
    ) -> None:
        check_action(schema.action)
        self._encoder = ObservationEncoder(schema)
        self._scaling = ActionScaling(schema.action)
        quantiles = ladder_quantiles(num_lanes, actor_index, num_actors)
        self._ladder = noise_ladder(quantiles, settings.noise_min, settings.noise_max)
        self._anneal_updates, self._final_scale = settings.noise_anneal_updates, settings.noise_final_scale
        self.anneal(0)

    def act(self, parameters: Parameters, observation: Observation, rng: np.random.Generator) -> Decision:
        """Explore, and value what was done with the online critics."""
        policy_input, critic_input = self._encoder.encode(observation, parameters)
        greedy = squashed_policy(parameters, "policy", policy_input)
        action = self._scaling.denormalize(add_noise(greedy, self._stddev, rng))
        # Both questions to the critics in one pass: what was executed, and what the policy would do.
        values = critic_values(
            parameters,
            "critics",
            concatenate([critic_input, critic_input], axis=0),
            concatenate([self._scaling.normalize(action), greedy], axis=0),
        )
        values /= reward_scale(parameters)
        num_lanes = len(action)
        return Decision(action, q_taken=values[:, :num_lanes].mean(axis=0), value=lowest(values[:, num_lanes:], axis=0))

    def act_greedily(self, parameters: Parameters, observation: Observation) -> npt.NDArray[np.float32]:
        """Actions <float32>[B, A] of the policy network, without noise."""
        policy_input = self._encoder.encode_policy(observation, parameters)
        return self._scaling.denormalize(squashed_policy(parameters, "policy", policy_input))

    def value(self, parameters: Parameters, observation: Observation) -> npt.NDArray[np.float32]:
        """min_j Q_j(s, pi(s)), <float32>[B]."""
        policy_input, critic_input = self._encoder.encode(observation, parameters)
        greedy = squashed_policy(parameters, "policy", policy_input)
        values: npt.NDArray[np.float32] = lowest(critic_values(parameters, "critics", critic_input, greedy), axis=0)
        values /= reward_scale(parameters)
        return values

    def anneal(self, updates: int) -> None:
        """Scale the ladder for parameters with `updates` behind them."""
        scale = annealed_scale(updates, self._anneal_updates, self._final_scale)
        self._stddev = (self._ladder * np.float32(scale)).astype(np.float32, copy=False)

    def exploration(self) -> npt.NDArray[np.float32]:
        """Standard deviation of each lane's noise, in normalized actions, <float32>[num_lanes]."""
        return self._stddev.copy()


class _CriticLoss(NamedTuple):
    """The critics' loss on a batch, and what it was made of."""

    loss: torch.Tensor  # scalar
    q_values: torch.Tensor  # [2, N]
    delta: torch.Tensor  # [2, N]
    policy_input: torch.Tensor  # [N, policy_size]
    critic_input: torch.Tensor  # [N, critic_size]
    action: torch.Tensor  # [N, A] executed, normalized
    counted: Optional[torch.Tensor]  # [M], places of the items that have a weight; None: all have


class Learner:
    """Learns critics and policy with torch."""

    def __init__(
        self,
        schema: Schema,
        settings: Td3Settings,
        *,
        seed: int,
        device: str = "cpu",
        num_threads: int = 1,
        normalize_observations: bool = False,
        reward_scale: float = 1.0,
    ) -> None:
        import torch

        check_action(schema.action)
        torch.set_num_threads(num_threads)
        self._settings = settings
        self._device = device
        self._encoder = ObservationEncoder(schema)
        self._scaling = ActionScaling(schema.action)
        num_dimensions = schema.action.shape[0]
        rng = np.random.default_rng(seed)
        policy_sizes = (self._encoder.policy_size, *settings.hidden_sizes, num_dimensions)
        critic_sizes = (self._encoder.critic_size + num_dimensions, *settings.hidden_sizes, 1)
        policy = initial_parameters("policy", policy_sizes, rng)
        critics = initial_parameters("critics", critic_sizes, rng, stack=2)
        self._policy = TrainedParameters(
            "policy",
            policy,
            learning_rate=settings.policy_learning_rate,
            max_gradient_norm=settings.max_gradient_norm,
            device=device,
        )
        self._critics = TrainedParameters(
            "critics",
            critics,
            learning_rate=settings.critic_learning_rate,
            max_gradient_norm=settings.max_gradient_norm,
            device=device,
        )
        self._first_critic = {name: view[:1] for name, view in self._critics.views.items()}
        self._target_policy = FlatParameters(policy, device)
        self._target_critics = FlatParameters(critics, device)
        self._generator = torch.Generator(device=device)
        self._generator.manual_seed(seed)
        self.normalizer = Normalizer(schema, observations=normalize_observations, reward_scale=reward_scale)
        self._probe = Probe()
        # Of the last `compute`, where its update reports.
        self._computed: Tuple[Optional[_CriticLoss], Dict[str, torch.Tensor]] = (None, {})
        self._updates = 0

    @property
    def updates(self) -> int:
        return self._updates

    def update(self, batch: Batch, importance_weights: npt.NDArray[np.float32]) -> Update:
        """Take one critic step, and at every `policy_period`-th update a policy step behind it."""
        reports = self._reports
        critic = self._critic_loss(batch, importance_weights)
        td_error = self._td_error(critic)
        self._critics.minimize(critic.loss)
        is_due = self._is_policy_due
        self._updates += 1
        losses = {"critic_loss": critic.loss}
        try:
            if is_due:
                losses["policy_loss"] = self._policy_loss(critic)
                self._policy.minimize(losses["policy_loss"])
        finally:  # a policy step that is stopped leaves a critic step that was taken
            self._follow()
        return Update(td_error, self._report(critic, losses) if reports else {})

    def compute(self, batch: Batch, importance_weights: npt.NDArray[np.float32]) -> Contribution:
        """Gradients of critics and, where a policy step is due, policy: both of the present parameters."""
        critic = self._critic_loss(batch, importance_weights)
        td_error = self._td_error(critic)
        self._critics.backward(critic.loss)
        gradients = self._critics.gradient_to_numpy()
        losses = {"critic_loss": critic.loss}
        if self._is_policy_due:
            losses["policy_loss"] = self._policy_loss(critic)
            self._policy.backward(losses["policy_loss"])
            gradients.update(self._policy.gradient_to_numpy())
        check_finite(gradients)
        self._computed = (critic, losses) if self._reports else (None, {})
        return Contribution(gradients, td_error)

    def apply(self, gradients: Mapping[str, npt.NDArray[np.float32]], rate_scale: float = 1.0) -> Dict[str, float]:
        """Take a critic step, and a policy step if one is due and its gradients are there."""
        check_finite(gradients)
        reports = self._reports
        self._critics.load_gradient(gradients)
        self._critics.step(rate_scale)
        is_due = self._is_policy_due
        self._updates += 1
        if is_due and any(name.startswith("policy.") for name in gradients):
            self._policy.load_gradient(gradients)
            self._policy.step(rate_scale)
        self._follow()
        computed, self._computed = self._computed, (None, {})
        return self._report(*computed) if reports else {}

    @property
    def _reports(self) -> bool:
        """Whether the coming update has metrics."""
        return (self._updates + 1) % REPORT_PERIOD == 0

    @property
    def _is_policy_due(self) -> bool:
        """Whether the coming update moves the policy."""
        return (self._updates + 1) % self._settings.policy_period == 0

    def _critic_loss(self, batch: Batch, importance_weights: npt.NDArray[np.float32]) -> _CriticLoss:
        policy_input, critic_input = self._encode(batch.observation)
        action = to_tensor(self._scaling.normalize(batch.action), self._device)
        target = self._target(batch)
        q_values = critic_values(self._critics.leaves, "critics", critic_input, action)
        delta = q_values - target
        loss = (delta.square() * to_tensor(importance_weights, self._device)).mean(dim=1).sum()
        counts = importance_weights > 0.0  # what is too old to train on has no weight, and moves the policy neither
        counted = None if counts.all() else to_tensor(np.flatnonzero(counts), self._device)
        return _CriticLoss(loss, q_values, delta, policy_input, critic_input, action, counted)

    def _td_error(self, critic: _CriticLoss) -> npt.NDArray[np.float32]:
        """Mean |delta| of the critics in the environment's rewards, <float32>[N]; raises NonFiniteUpdate."""
        magnitude = checked_td_error(critic.delta.detach().abs().mean(dim=0))
        return magnitude if self.normalizer.reward_scale == 1.0 else magnitude / self.normalizer.reward_scale

    def _policy_loss(self, critic: _CriticLoss) -> torch.Tensor:
        policy_input, critic_input = critic.policy_input, critic.critic_input
        if critic.counted is not None:
            policy_input, critic_input = policy_input[critic.counted], critic_input[critic.counted]
        actions = squashed_policy(self._policy.leaves, "policy", policy_input)
        loss: torch.Tensor = -critic_values(self._first_critic, "critics", critic_input, actions).mean()
        return loss

    def _follow(self) -> None:
        """Let the targets follow the parameters."""
        rate = self._settings.target_update_rate
        self._target_critics.flat.lerp_(self._critics.flat, rate)
        self._target_policy.flat.lerp_(self._policy.flat, rate)

    def _report(self, critic: Optional[_CriticLoss], losses: Dict[str, torch.Tensor]) -> Dict[str, float]:
        """The metrics of an update, by the names of `health.TEXTS`; those of a batch only where there is one."""
        scalars = dict(losses)
        if critic is not None:
            scalars.update(self._batch_scalars(critic))
        report = {name: scalar.item() for name, scalar in scalars.items()}
        for role, trained in (("critic", self._critics), ("policy", self._policy)):
            report.update({f"{role}_{name}": value for name, value in trained.health().items()})
        return report

    def _batch_scalars(self, critic: _CriticLoss) -> Dict[str, torch.Tensor]:
        import torch

        with torch.no_grad():
            greedy = squashed_policy(self._policy.views, "policy", critic.policy_input)
            scalars = {
                "q_mean": critic.q_values.mean(),
                "q_max": critic.q_values.max(),
                "exploration_noise": (critic.action - greedy).square().mean().sqrt(),
                "policy_saturation": (greedy.abs() > SATURATED).float().mean(),
            }
            drift = self._probe.drift(
                (critic.critic_input, critic.action),
                lambda inputs, action: critic_values(self._critics.views, "critics", inputs, action),
            )
        return scalars if drift is None else {**scalars, "q_drift": drift}

    def _encode(self, observation: Mapping[str, npt.NDArray[Any]]) -> Tuple[torch.Tensor, torch.Tensor]:
        """Inputs of policy and critics on the device; one tensor for both where they are the same."""
        policy_input, critic_input = self._encoder.encode(observation, self.normalizer.parameters)
        policy_tensor = to_tensor(policy_input, self._device)
        if critic_input is policy_input:
            return policy_tensor, policy_tensor
        return policy_tensor, to_tensor(critic_input, self._device)

    def _target(self, batch: Batch) -> torch.Tensor:
        """Targets y of the equation above, <float32>[N]."""
        import torch

        settings = self._settings
        with torch.no_grad():
            policy_input, critic_input = self._encode(batch.next_observation)
            action = squashed_policy(self._target_policy.views, "policy", policy_input)
            noise = torch.randn(action.shape, generator=self._generator, device=self._device)
            noise.mul_(settings.smoothing_stddev).clamp_(-settings.smoothing_clip, settings.smoothing_clip)
            smoothed = (action + noise).clamp_(-1.0, 1.0)
            bootstrap = critic_values(self._target_critics.views, "critics", critic_input, smoothed).amin(dim=0)
            n_step_return = to_tensor(batch.n_step_return, self._device)
            if self.normalizer.reward_scale != 1.0:
                n_step_return = n_step_return * self.normalizer.reward_scale
            return torch.addcmul(n_step_return, to_tensor(batch.discount, self._device), bootstrap)

    def learning_parameters(self) -> Dict[str, npt.NDArray[np.float32]]:
        """A copy of `policy.*`, `critics.*`, `target.policy.*`, `target.critics.*` and `normalizer.*`."""
        targets = {**self._target_policy.to_numpy("target."), **self._target_critics.to_numpy("target.")}
        return {**self.acting_parameters(), **targets}

    def load_learning_parameters(self, parameters: Parameters, updates: int) -> None:
        """The inverse of `learning_parameters`."""
        check_state(self.learning_parameters(), parameters)
        self._policy.load(parameters)
        self._critics.load(parameters)
        self._target_policy.load(parameters, "target.")
        self._target_critics.load(parameters, "target.")
        self.normalizer.load(parameters)
        self._updates = updates

    def acting_parameters(self) -> Dict[str, npt.NDArray[np.float32]]:
        """A copy of `policy.*`, `critics.*` and `normalizer.*`."""
        return {**self._policy.to_numpy(), **self._critics.to_numpy(), **self.normalizer.copy()}

    def state(self, into: Optional[Mapping[str, npt.NDArray[Any]]] = None) -> Dict[str, npt.NDArray[Any]]:
        """A copy of parameters, targets, Adam's moments, statistics, the generator and `updates`."""
        arrays = {
            **self._policy.state(),
            **self._critics.state(),
            **self._target_policy.arrays("target."),
            **self._target_critics.arrays("target."),
            **self.normalizer.state(),
            "generator": self._generator.get_state().numpy(),
            "updates": np.array(self._updates, dtype=np.int64),
        }
        return copied(arrays, into)

    def load_state(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """The inverse of `state`.

        Raises:
            ValueError: names or shapes differ from this learner's.
        """
        check_state(self.state(), state)
        self._policy.load_state(state)
        self._critics.load_state(state)
        self._target_policy.load(state, "target.")
        self._target_critics.load(state, "target.")
        self.normalizer.load_state(state)
        self._generator.set_state(to_tensor(np.array(state["generator"], dtype=np.uint8), "cpu"))
        self._updates = int(state["updates"])
