"""DQN in the manner of Ape-X: double, dueling, n-step returns (Mnih 2015; van Hasselt 2016; Wang 2016; Horgan 2018).

For an n-step transition (s, a, R, discount, s'):

    y     = R + discount * Q'(s', argmax_b Q(s', b))
    delta = Q(s, a) - y
    the network minimizes mean_i w_i huber(delta_i)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, Mapping

import numpy as np
import numpy.typing as npt

from services.agent.algorithm import Decision, Observation, Parameters, Update
from services.agent.exploration import annealed_scale, choose_epsilon_greedily, epsilon_ladder, ladder_quantiles
from services.agent.networks import ObservationEncoder, dueling_values, highest, initial_parameters, pick, to_tensor
from services.agent.optimizer import FlatParameters, TrainedParameters, check_state
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
        values: npt.NDArray[np.float32] = dueling_values(parameters, "q", self._encoder.encode_policy(observation))
        return values


class Learner:
    """Learns action values with torch."""

    def __init__(
        self, schema: Schema, settings: DqnSettings, *, seed: int, device: str = "cpu", num_threads: int = 1
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
        import torch

        reports = (self._updates + 1) % METRICS_PERIOD == 0
        before = self._online.flat.clone() if reports else None
        target = self._bootstrapped(batch)
        values = dueling_values(self._online.leaves, "q", self._encode(batch.observation))
        q_taken = values.gather(1, to_tensor(batch.action, self._device)[:, None])[:, 0]
        losses = torch.nn.functional.huber_loss(q_taken, target, reduction="none")
        loss = (losses * to_tensor(importance_weights, self._device)).mean()
        norm = self._online.minimize(loss)
        self._updates += 1
        if self._updates % self._settings.target_update_period == 0:
            self._target.flat.copy_(self._online.flat)
        metrics: Dict[str, float] = {}
        if before is not None:
            metrics = {
                "q_loss": loss.item(),
                "q_gradient_norm": norm.item(),
                "q_mean": q_taken.mean().item(),
                "q_max": q_taken.max().item(),
                "update_ratio": ((self._online.flat - before).norm() / before.norm()).item(),
            }
        return Update((q_taken.detach() - target).abs().cpu().numpy(), metrics)

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
