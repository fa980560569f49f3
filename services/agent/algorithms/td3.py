"""TD3 in the manner of Ape-X DPG: twin critics, delayed policy, smoothed targets, n-step (Fujimoto et al. 2018).

For an n-step transition (s, a, R, discount, s') and normalized actions:

    y       = R + discount * min_j Q'_j(s', clip(pi'(s') + clip(noise)))
    delta_j = Q_j(s, a) - y
    critics minimize sum_j mean_i w_i delta_j^2
    policy  maximizes mean_i Q_1(s, pi(s)), at every policy_period-th update
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, Mapping, Tuple

import numpy as np
import numpy.typing as npt

from services.agent.algorithm import Decision, Observation, Parameters, Update
from services.agent.exploration import add_noise, annealed_scale, ladder_quantiles, noise_ladder
from services.agent.networks import (
    ActionScaling,
    ObservationEncoder,
    concatenate,
    critic_values,
    initial_parameters,
    lowest,
    squashed_policy,
    to_tensor,
)
from services.agent.optimizer import FlatParameters, TrainedParameters, check_state
from services.common.batch import Batch
from services.common.config.algorithms import Td3Settings
from services.common.schema import ActionSpec, Schema, SchemaError

if TYPE_CHECKING:
    import torch

METRICS_PERIOD = 50  # updates; each report waits for the device


def check_action(action: ActionSpec) -> None:
    """Refuse discrete actions.

    Raises:
        SchemaError: they are.
    """
    if action.is_discrete:
        raise SchemaError(
            f"td3 needs continuous actions, this environment has {action.num_actions} discrete ones; choose dqn"
        )


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
        policy_input, critic_input = self._encoder.encode(observation)
        greedy = squashed_policy(parameters, "policy", policy_input)
        action = self._scaling.denormalize(add_noise(greedy, self._stddev, rng))
        # Both questions to the critics in one pass: what was executed, and what the policy would do.
        values = critic_values(
            parameters,
            "critics",
            concatenate([critic_input, critic_input], axis=0),
            concatenate([self._scaling.normalize(action), greedy], axis=0),
        )
        num_lanes = len(action)
        return Decision(action, q_taken=values[:, :num_lanes].mean(axis=0), value=lowest(values[:, num_lanes:], axis=0))

    def act_greedily(self, parameters: Parameters, observation: Observation) -> npt.NDArray[np.float32]:
        """Actions <float32>[B, A] of the policy network, without noise."""
        policy_input = self._encoder.encode_policy(observation)
        return self._scaling.denormalize(squashed_policy(parameters, "policy", policy_input))

    def value(self, parameters: Parameters, observation: Observation) -> npt.NDArray[np.float32]:
        """min_j Q_j(s, pi(s)), <float32>[B]."""
        policy_input, critic_input = self._encoder.encode(observation)
        greedy = squashed_policy(parameters, "policy", policy_input)
        values: npt.NDArray[np.float32] = lowest(critic_values(parameters, "critics", critic_input, greedy), axis=0)
        return values

    def anneal(self, updates: int) -> None:
        """Scale the ladder for parameters with `updates` behind them."""
        scale = annealed_scale(updates, self._anneal_updates, self._final_scale)
        self._stddev = (self._ladder * np.float32(scale)).astype(np.float32, copy=False)

    def exploration(self) -> npt.NDArray[np.float32]:
        """Standard deviation of each lane's noise, in normalized actions, <float32>[num_lanes]."""
        return self._stddev.copy()


class Learner:
    """Learns critics and policy with torch."""

    def __init__(
        self, schema: Schema, settings: Td3Settings, *, seed: int, device: str = "cpu", num_threads: int = 1
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
        self._updates = 0

    @property
    def updates(self) -> int:
        return self._updates

    def update(self, batch: Batch, importance_weights: npt.NDArray[np.float32]) -> Update:
        """Take one critic step, and at every `policy_period`-th update a policy step."""
        settings = self._settings
        reports = (self._updates + 1) % METRICS_PERIOD == 0
        before = self._critics.flat.clone() if reports else None
        policy_input, critic_input = self._encode(batch.observation)
        action = to_tensor(self._scaling.normalize(batch.action), self._device)
        target = self._target(batch)
        q_values = critic_values(self._critics.leaves, "critics", critic_input, action)
        delta = q_values - target
        weights = to_tensor(importance_weights, self._device)
        critic_loss = (delta.square() * weights).mean(dim=1).sum()
        scalars: Dict[str, torch.Tensor] = {"critic_gradient_norm": self._critics.minimize(critic_loss)}
        self._updates += 1
        if self._updates % settings.policy_period == 0:
            actions = squashed_policy(self._policy.leaves, "policy", policy_input)
            policy_loss = -critic_values(self._first_critic, "critics", critic_input, actions).mean()
            scalars["policy_gradient_norm"] = self._policy.minimize(policy_loss)
            scalars["policy_loss"] = policy_loss
        self._target_critics.flat.lerp_(self._critics.flat, settings.target_update_rate)
        self._target_policy.flat.lerp_(self._policy.flat, settings.target_update_rate)
        if before is not None:
            scalars["critic_loss"] = critic_loss
            scalars["q_mean"], scalars["q_max"] = q_values.mean(), q_values.max()
            scalars["update_ratio"] = (self._critics.flat - before).norm() / before.norm()
        td_error = delta.detach().abs().mean(dim=0).cpu().numpy()
        return Update(td_error, {name: scalar.item() for name, scalar in scalars.items()} if reports else {})

    def _encode(self, observation: Mapping[str, npt.NDArray[Any]]) -> Tuple[torch.Tensor, torch.Tensor]:
        """Inputs of policy and critics on the device; one tensor for both where they are the same."""
        policy_input, critic_input = self._encoder.encode(observation)
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
            return torch.addcmul(n_step_return, to_tensor(batch.discount, self._device), bootstrap)

    def acting_parameters(self) -> Dict[str, npt.NDArray[np.float32]]:
        """A copy of `policy.*` and `critics.*`."""
        return {**self._policy.to_numpy(), **self._critics.to_numpy()}

    def state(self) -> Dict[str, npt.NDArray[Any]]:
        """A copy of parameters, targets, Adam's moments, the generator and `updates`."""
        return {
            **self._policy.state(),
            **self._critics.state(),
            **self._target_policy.to_numpy("target."),
            **self._target_critics.to_numpy("target."),
            "generator": self._generator.get_state().numpy().copy(),
            "updates": np.array(self._updates, dtype=np.int64),
        }

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
        self._generator.set_state(to_tensor(np.array(state["generator"], dtype=np.uint8), "cpu"))
        self._updates = int(state["updates"])
