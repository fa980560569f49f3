"""DQN in the manner of Ape-X: double, dueling, n-step returns (Mnih 2015; van Hasselt 2016; Wang 2016; Horgan 2018).

For an n-step transition (s, a, R, discount, s'):

    y     = R + discount * Q'(s', argmax_b Q(s', b))
    delta = Q(s, a) - y
    the network minimizes mean_i w_i huber(delta_i)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, Mapping, NamedTuple

import numpy as np
import numpy.typing as npt

from services.agent.algorithm import Contribution, Decision, Observation, Parameters, Update
from services.agent.exploration import choose_epsilon_greedily, epsilon_ladder, ladder_quantiles
from services.agent.networks import ObservationEncoder, dueling_values, initial_parameters, to_tensor
from services.agent.optimizer import FlatParameters, TrainedParameters, check_finite, check_state, checked_td_error
from services.common.batch import Batch
from services.common.config.algorithms import DqnSettings
from services.common.schema import ActionSpec, Schema, SchemaError

if TYPE_CHECKING:
    import torch

METRICS_PERIOD = 50  # updates; each report waits for the device


def check_action(action: ActionSpec) -> None:
    """Refuse continuous actions.

    Raises:
        SchemaError: they are.
    """
    if not action.is_discrete:
        raise SchemaError(f"dqn needs discrete actions, this environment's are {len(action.low)} reals; choose td3")


class Policy:
    """Acts epsilon-greedily on the action values, with one epsilon a lane."""

    def __init__(
        self, schema: Schema, settings: DqnSettings, *, num_lanes: int, actor_index: int, num_actors: int
    ) -> None:
        check_action(schema.action)
        self._encoder = ObservationEncoder(schema)
        quantiles = ladder_quantiles(num_lanes, actor_index, num_actors)
        self._epsilon = epsilon_ladder(quantiles, settings.epsilon_base, settings.epsilon_exponent)

    def act(self, parameters: Parameters, observation: Observation, rng: np.random.Generator) -> Decision:
        """Explore; the action values that decided are also the first TD errors' material."""
        values = self._values(parameters, observation)
        action = choose_epsilon_greedily(values, self._epsilon, rng)
        return Decision(action, q_taken=values[np.arange(len(action)), action], value=values.max(axis=1))

    def act_greedily(self, parameters: Parameters, observation: Observation) -> npt.NDArray[np.int64]:
        """The best actions, <int64>[B]."""
        best: npt.NDArray[np.int64] = self._values(parameters, observation).argmax(axis=1).astype(np.int64)
        return best

    def value(self, parameters: Parameters, observation: Observation) -> npt.NDArray[np.float32]:
        """max_a Q(s, a), <float32>[B]."""
        best: npt.NDArray[np.float32] = self._values(parameters, observation).max(axis=1)
        return best

    def exploration(self) -> npt.NDArray[np.float32]:
        """Chance of a random action of each lane, <float32>[num_lanes]."""
        return self._epsilon.copy()

    def _values(self, parameters: Parameters, observation: Observation) -> npt.NDArray[np.float32]:
        values: npt.NDArray[np.float32] = dueling_values(parameters, "q", self._encoder.encode_policy(observation))
        return values


class _Loss(NamedTuple):
    """The loss on a batch, and what it was made of."""

    loss: torch.Tensor  # scalar
    q_taken: torch.Tensor  # [N]
    delta: torch.Tensor  # [N]

    def td_error(self) -> npt.NDArray[np.float32]:
        """|delta|, <float32>[N]; raises NonFiniteUpdate."""
        return checked_td_error(self.delta.detach().abs())


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
        self._updates = 0

    @property
    def updates(self) -> int:
        return self._updates

    def update(self, batch: Batch, importance_weights: npt.NDArray[np.float32]) -> Update:
        """Take one step on the weighted Huber loss; at every `target_update_period`-th the target becomes a copy."""
        before = self._online.flat.clone() if self._reports else None
        made = self._loss(batch, importance_weights)
        td_error = made.td_error()
        norm = self._online.minimize(made.loss)
        self._follow()
        if before is None:
            return Update(td_error)
        scalars = {"q_loss": made.loss, "q_mean": made.q_taken.mean(), "q_max": made.q_taken.max()}
        return Update(td_error, self._metrics(scalars, norm, before))

    def compute(self, batch: Batch, importance_weights: npt.NDArray[np.float32]) -> Contribution:
        """The gradient of the weighted Huber loss."""
        made = self._loss(batch, importance_weights)
        td_error = made.td_error()
        self._online.backward(made.loss)
        gradients = self._online.gradient_to_numpy()
        check_finite(gradients)
        return Contribution(gradients, td_error)

    def apply(self, gradients: Mapping[str, npt.NDArray[np.float32]], rate_scale: float = 1.0) -> Dict[str, float]:
        """Take one step down `gradients`."""
        check_finite(gradients)
        before = self._online.flat.clone() if self._reports else None
        self._online.load_gradient(gradients)
        norm = self._online.step(rate_scale)
        self._follow()
        return {} if before is None else self._metrics({}, norm, before)

    @property
    def _reports(self) -> bool:
        """Whether the coming update has metrics."""
        return (self._updates + 1) % METRICS_PERIOD == 0

    def _loss(self, batch: Batch, importance_weights: npt.NDArray[np.float32]) -> _Loss:
        import torch

        target = self._bootstrapped(batch)
        values = dueling_values(self._online.leaves, "q", self._encode(batch.observation))
        q_taken = values.gather(1, to_tensor(batch.action, self._device)[:, None])[:, 0]
        losses = torch.nn.functional.huber_loss(q_taken, target, reduction="none")
        loss = (losses * to_tensor(importance_weights, self._device)).mean()
        return _Loss(loss, q_taken, q_taken - target)

    def _follow(self) -> None:
        """Count the update, and let the target follow the parameters."""
        self._updates += 1
        if self._updates % self._settings.target_update_period == 0:
            self._target.flat.copy_(self._online.flat)

    def _metrics(
        self, scalars: Dict[str, torch.Tensor], gradient_norm: torch.Tensor, before: torch.Tensor
    ) -> Dict[str, float]:
        scalars["q_gradient_norm"] = gradient_norm
        scalars["update_ratio"] = (self._online.flat - before).norm() / before.norm()
        return {name: scalar.item() for name, scalar in scalars.items()}

    def _encode(self, observation: Mapping[str, npt.NDArray[Any]]) -> torch.Tensor:
        return to_tensor(self._encoder.encode_policy(observation), self._device)

    def _bootstrapped(self, batch: Batch) -> torch.Tensor:
        """Targets y of the equation above, <float32>[N]."""
        import torch

        with torch.no_grad():
            inputs = self._encode(batch.next_observation)
            best = dueling_values(self._online.views, "q", inputs).argmax(dim=1, keepdim=True)
            bootstrap = dueling_values(self._target.views, "q", inputs).gather(1, best)[:, 0]
            n_step_return = to_tensor(batch.n_step_return, self._device)
            return torch.addcmul(n_step_return, to_tensor(batch.discount, self._device), bootstrap)

    def acting_parameters(self) -> Dict[str, npt.NDArray[np.float32]]:
        """A copy of `q.*`: policy and critic are one network."""
        return self._online.to_numpy()

    def learning_parameters(self) -> Dict[str, npt.NDArray[np.float32]]:
        """A copy of `q.*` and `target.q.*`."""
        return {**self._online.to_numpy(), **self._target.to_numpy("target.")}

    def load_learning_parameters(self, parameters: Parameters, updates: int) -> None:
        """The inverse of `learning_parameters`."""
        check_state(self.learning_parameters(), parameters)
        self._online.load(parameters)
        self._target.load(parameters, "target.")
        self._updates = updates

    def state(self) -> Dict[str, npt.NDArray[Any]]:
        """A copy of parameters, target, Adam's moments and `updates`."""
        return {
            **self._online.state(),
            **self._target.to_numpy("target."),
            "updates": np.array(self._updates, dtype=np.int64),
        }

    def load_state(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """The inverse of `state`.

        Raises:
            ValueError: names or shapes differ from this learner's.
        """
        check_state(self.state(), state)
        self._online.load_state(state)
        self._target.load(state, "target.")
        self._updates = int(state["updates"])
