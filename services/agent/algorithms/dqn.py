"""DQN in the manner of Ape-X: double, dueling, n-step returns (Mnih 2015; van Hasselt 2016; Wang 2016; Horgan 2018).

For an n-step transition (s, a, R, discount, s'):

    y     = R + discount * Q'(s', argmax_b Q(s', b))
    delta = Q(s, a) - y
    the network minimizes mean_i w_i huber(delta_i)

where s and s' are normalized and R is times reward_scale (`normalizer.py`). The TD error, and the values that a policy
returns, are over reward_scale again: in the rewards of the environment.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Dict, Mapping, NamedTuple, Optional

import numpy as np
import numpy.typing as npt

from services.agent.algorithm import Contribution, Decision, Observation, Parameters, Update
from services.agent.exploration import annealed_scale, choose_epsilon_greedily, epsilon_ladder, ladder_quantiles
from services.agent.health import REPORT_PERIOD, Probe
from services.agent.networks import (
    ObservationEncoder,
    dueling_values,
    highest,
    initial_parameters,
    parameter_shapes,
    pick,
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
from services.common.config.algorithms import DqnSettings
from services.common.parameter_set import ParameterShapes
from services.common.schema import ActionSpec, Schema, SchemaError

if TYPE_CHECKING:
    import torch


def check_action(action: ActionSpec) -> None:
    """Refuse continuous actions.

    Raises:
        SchemaError: they are.
    """
    if not action.is_discrete:
        raise SchemaError(f"dqn needs discrete actions, this environment's are {len(action.low)} reals; choose td3")


def acting_shapes(schema: Schema, settings: DqnSettings) -> ParameterShapes:
    """What the set of role `act` holds: `q.*`, and statistics."""
    sizes = (ObservationEncoder(schema).policy_size, *settings.hidden_sizes, 1 + schema.action.num_actions)
    return ParameterShapes(parameter_shapes("q", sizes), statistics_shapes(schema))


class Policy:
    """Acts epsilon-greedily on the action values, with one epsilon a lane."""

    def __init__(
        self, schema: Schema, settings: DqnSettings, *, num_lanes: int, actor_index: int, num_actors: int
    ) -> None:
        check_action(schema.action)
        self._encoder = ObservationEncoder(schema)
        quantiles = ladder_quantiles(num_lanes, actor_index, num_actors)
        self._ladder = epsilon_ladder(quantiles, settings.epsilon_base, settings.epsilon_exponent)
        self._anneal_updates, self._final_scale = settings.epsilon_anneal_updates, settings.epsilon_final_scale
        self.anneal(0)

    def act(self, parameters: Parameters, observation: Observation, rng: np.random.Generator) -> Decision:
        """Explore; the action values that decided are also the first TD errors' material."""
        values = self._values(parameters, observation)
        action = choose_epsilon_greedily(values, self._epsilon, rng)
        return Decision(action, q_taken=pick(values, action), value=highest(values, axis=1))

    def act_greedily(self, parameters: Parameters, observation: Observation) -> npt.NDArray[np.int64]:
        """The best actions, <int64>[B]."""
        best: npt.NDArray[np.int64] = self._values(parameters, observation).argmax(axis=1)
        return best

    def value(self, parameters: Parameters, observation: Observation) -> npt.NDArray[np.float32]:
        """max_a Q(s, a), <float32>[B]."""
        best: npt.NDArray[np.float32] = highest(self._values(parameters, observation), axis=1)
        return best

    def anneal(self, updates: int) -> None:
        """Scale the ladder for parameters with `updates` behind them."""
        scale = annealed_scale(updates, self._anneal_updates, self._final_scale)
        self._epsilon = (self._ladder * np.float32(scale)).astype(np.float32, copy=False)

    def exploration(self) -> npt.NDArray[np.float32]:
        """Chance of a random action of each lane, <float32>[num_lanes]."""
        return self._epsilon.copy()

    def _values(self, parameters: Parameters, observation: Observation) -> npt.NDArray[np.float32]:
        inputs = self._encoder.encode_policy(observation, parameters)
        values: npt.NDArray[np.float32] = dueling_values(parameters, "q", inputs)
        values /= reward_scale(parameters)
        return values


class _Loss(NamedTuple):
    """The loss on a batch, and what it was made of."""

    loss: torch.Tensor  # scalar
    values: torch.Tensor  # [N, num_actions]
    q_taken: torch.Tensor  # [N]
    delta: torch.Tensor  # [N]
    inputs: torch.Tensor  # [N, policy_size]
    action: torch.Tensor  # <int64>[N] executed


class Learner:
    """Learns action values with torch."""

    def __init__(
        self,
        schema: Schema,
        settings: DqnSettings,
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
        sizes = (self._encoder.policy_size, *settings.hidden_sizes, 1 + schema.action.num_actions)
        network = initial_parameters("q", sizes, np.random.default_rng(seed))
        self._online = TrainedParameters(
            "q",
            network,
            learning_rate=settings.learning_rate,
            max_gradient_norm=settings.max_gradient_norm,
            device=device,
        )
        self._target = FlatParameters(network, device)
        self.normalizer = Normalizer(schema, observations=normalize_observations, reward_scale=reward_scale)
        self._probe = Probe()
        self._computed: Optional[_Loss] = None  # at the last `compute` of an update that reports
        self._updates = 0

    @property
    def updates(self) -> int:
        return self._updates

    def update(self, batch: Batch, importance_weights: npt.NDArray[np.float32]) -> Update:
        """Take one step on the weighted Huber loss; at every `target_update_period`-th the target becomes a copy."""
        reports = self._reports
        made = self._loss(batch, importance_weights)
        td_error = self._td_error(made)
        self._online.minimize(made.loss)
        self._follow()
        return Update(td_error, self._report(made) if reports else {})

    def compute(self, batch: Batch, importance_weights: npt.NDArray[np.float32]) -> Contribution:
        """The gradient of the weighted Huber loss."""
        made = self._loss(batch, importance_weights)
        td_error = self._td_error(made)
        self._online.backward(made.loss)
        gradients = self._online.gradient_to_numpy()
        check_finite(gradients)
        self._computed = made if self._reports else None
        return Contribution(gradients, td_error)

    def apply(self, gradients: Mapping[str, npt.NDArray[np.float32]], rate_scale: float = 1.0) -> Dict[str, float]:
        """Take one step down `gradients`."""
        check_finite(gradients)
        reports = self._reports
        self._online.load_gradient(gradients)
        self._online.step(rate_scale)
        self._follow()
        computed, self._computed = self._computed, None
        return self._report(computed) if reports else {}

    @property
    def _reports(self) -> bool:
        """Whether the coming update has metrics."""
        return (self._updates + 1) % REPORT_PERIOD == 0

    def _loss(self, batch: Batch, importance_weights: npt.NDArray[np.float32]) -> _Loss:
        import torch

        target = self._bootstrapped(batch)
        inputs, action = self._encode(batch.observation), to_tensor(batch.action, self._device)
        values = dueling_values(self._online.leaves, "q", inputs)
        q_taken = values.gather(1, action[:, None])[:, 0]
        losses = torch.nn.functional.huber_loss(q_taken, target, reduction="none")
        loss = (losses * to_tensor(importance_weights, self._device)).mean()
        return _Loss(loss, values, q_taken, q_taken - target, inputs, action)

    def _td_error(self, made: _Loss) -> npt.NDArray[np.float32]:
        """|delta| in the environment's rewards, <float32>[N]; raises NonFiniteUpdate."""
        magnitude = checked_td_error(made.delta.detach().abs())
        return magnitude if self.normalizer.reward_scale == 1.0 else magnitude / self.normalizer.reward_scale

    def _follow(self) -> None:
        """Count the update, and let the target follow the parameters."""
        self._updates += 1
        if self._updates % self._settings.target_update_period == 0:
            self._target.flat.copy_(self._online.flat)

    def _report(self, made: Optional[_Loss]) -> Dict[str, float]:
        """The metrics of an update, by the names of `health.TEXTS`; those of a batch only where there is one."""
        scalars = {} if made is None else {"q_loss": made.loss, **self._batch_scalars(made)}
        report = {name: scalar.item() for name, scalar in scalars.items()}
        report.update({f"q_{name}": value for name, value in self._online.health().items()})
        return report

    def _batch_scalars(self, made: _Loss) -> Dict[str, torch.Tensor]:
        import torch

        with torch.no_grad():
            num_actions = made.values.shape[1]
            best = made.values.argmax(dim=1)
            share = torch.bincount(best, minlength=num_actions) / len(best)
            scalars = {
                "q_mean": made.q_taken.mean(),
                "q_max": made.q_taken.max(),
                "exploration_share": (best != made.action).float().mean(),
                "greedy_entropy": torch.special.entr(share).sum() / math.log(max(2, num_actions)),
            }
            drift = self._probe.drift(
                (made.inputs, made.action),
                lambda inputs, action: dueling_values(self._online.views, "q", inputs).gather(1, action[:, None]),
            )
        return scalars if drift is None else {**scalars, "q_drift": drift}

    def _encode(self, observation: Mapping[str, npt.NDArray[Any]]) -> torch.Tensor:
        return to_tensor(self._encoder.encode_policy(observation, self.normalizer.parameters), self._device)

    def _bootstrapped(self, batch: Batch) -> torch.Tensor:
        """Targets y of the equation above, <float32>[N]."""
        import torch

        with torch.no_grad():
            inputs = self._encode(batch.next_observation)
            best = dueling_values(self._online.views, "q", inputs).argmax(dim=1, keepdim=True)
            bootstrap = dueling_values(self._target.views, "q", inputs).gather(1, best)[:, 0]
            n_step_return = to_tensor(batch.n_step_return, self._device)
            if self.normalizer.reward_scale != 1.0:
                n_step_return = n_step_return * self.normalizer.reward_scale
            return torch.addcmul(n_step_return, to_tensor(batch.discount, self._device), bootstrap)

    def acting_parameters(self) -> Dict[str, npt.NDArray[np.float32]]:
        """A copy of `q.*`, policy and critic in one network, and of `normalizer.*`."""
        return {**self._online.to_numpy(), **self.normalizer.copy()}

    def learning_parameters(self) -> Dict[str, npt.NDArray[np.float32]]:
        """A copy of `q.*`, `target.q.*` and `normalizer.*`."""
        return {**self.acting_parameters(), **self._target.to_numpy("target.")}

    def load_learning_parameters(self, parameters: Parameters, updates: int) -> None:
        """The inverse of `learning_parameters`."""
        check_state(self.learning_parameters(), parameters)
        self._online.load(parameters)
        self._target.load(parameters, "target.")
        self.normalizer.load(parameters)
        self._updates = updates

    def state(self, into: Optional[Mapping[str, npt.NDArray[Any]]] = None) -> Dict[str, npt.NDArray[Any]]:
        """A copy of parameters, target, Adam's moments, statistics and `updates`."""
        arrays = {
            **self._online.state(),
            **self._target.arrays("target."),
            **self.normalizer.state(),
            "updates": np.array(self._updates, dtype=np.int64),
        }
        return copied(arrays, into)

    def load_state(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """The inverse of `state`.

        Raises:
            ValueError: names or shapes differ from this learner's.
        """
        check_state(self.state(), state)
        self._online.load_state(state)
        self._target.load(state, "target.")
        self.normalizer.load_state(state)
        self._updates = int(state["updates"])
