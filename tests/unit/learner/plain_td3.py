"""TD3 as a textbook writes it: modules of torch, Adam, gradient clipping; nothing of shoal's learner.

The twin critics are one module of batched layers, as ours are: a matrix product of another kernel rounds otherwise.
"""

from __future__ import annotations

import copy
from typing import Any, Dict, List, Mapping

from services.common.batch import Batch
from services.common.config.algorithms import Td3Settings


class PlainTd3:
    """Policy and twin critics, their targets and optimizers. Actions lie in [-1, 1], observations are one tensor."""

    def __init__(self, initial: Mapping[str, Any], settings: Td3Settings, seed: int) -> None:
        import torch

        layers: List[Any] = []
        for number in range(3):
            weight, bias = (initial[f"policy.{number}.{kind}"] for kind in ("weight", "bias"))
            linear = torch.nn.Linear(*weight.shape)
            linear.weight.data, linear.bias.data = torch.tensor(weight.T.copy()), torch.tensor(bias)
            layers += [linear, torch.nn.ReLU()]
        self._settings = settings
        self.policy = torch.nn.Sequential(*layers[:-1], torch.nn.Tanh())
        self.critics = torch.nn.ParameterDict(
            {
                f"{number}_{kind}": torch.nn.Parameter(torch.tensor(initial[f"critics.{number}.{kind}"]))
                for number in range(3)
                for kind in ("weight", "bias")
            }
        )
        self.target_policy, self.target_critics = copy.deepcopy(self.policy), copy.deepcopy(self.critics)
        self._policy_adam = torch.optim.Adam(self.policy.parameters(), settings.policy_learning_rate, fused=True)
        self._critic_adam = torch.optim.Adam(self.critics.parameters(), settings.critic_learning_rate, fused=True)
        self._generator = torch.Generator().manual_seed(seed)
        self.updates = 0

    def update(self, batch: Batch, weights: Any, *, simultaneous: bool = False) -> Any:
        """One update; returns |TD errors| [N].

        Args:
            batch: of the replay.
            weights: importance weights [N].
            simultaneous: take the policy's gradient before the critics' step instead of after it.
        """
        import torch

        settings = self._settings
        observation = torch.tensor(batch.observation["policy"])
        following = torch.tensor(batch.next_observation["policy"])
        with torch.no_grad():
            proposed = self.target_policy(following)
            noise = torch.randn(proposed.shape, generator=self._generator) * settings.smoothing_stddev
            noise = noise.clamp(-settings.smoothing_clip, settings.smoothing_clip)
            values = self._values(self.target_critics, following, (proposed + noise).clamp(-1, 1))
            lower = torch.minimum(values[0], values[1])
            target = torch.addcmul(torch.tensor(batch.n_step_return), torch.tensor(batch.discount), lower)
        delta = self._values(self.critics, observation, torch.tensor(batch.action)) - target
        loss = (delta.square() * torch.tensor(weights)).mean(dim=1).sum()
        self.updates += 1
        is_policy_due = self.updates % settings.policy_period == 0
        self._critic_adam.zero_grad()
        loss.backward()
        if is_policy_due and simultaneous:
            self._set_policy_gradient(observation)
        self._step(self._critic_adam, self.critics)
        if is_policy_due and not simultaneous:
            self._set_policy_gradient(observation)
        if is_policy_due:
            self._step(self._policy_adam, self.policy)
        with torch.no_grad():
            for online, follower in ((self.critics, self.target_critics), (self.policy, self.target_policy)):
                for source, goal in zip(online.parameters(), follower.parameters()):
                    goal.lerp_(source, settings.target_update_rate)
        return delta.detach().abs().mean(dim=0).numpy()

    def parameters(self) -> Dict[str, Any]:
        """As shoal's set of role `learn`."""
        found: Dict[str, Any] = {}
        for prefix, policy, critics in (
            ("", self.policy, self.critics),
            ("target.", self.target_policy, self.target_critics),
        ):
            for number in range(3):
                layer = policy[2 * number]
                found[f"{prefix}policy.{number}.weight"] = layer.weight.detach().numpy().T
                found[f"{prefix}policy.{number}.bias"] = layer.bias.detach().numpy()
                for kind in ("weight", "bias"):
                    found[f"{prefix}critics.{number}.{kind}"] = critics[f"{number}_{kind}"].detach().numpy()
        return found

    @staticmethod
    def _values(critics: Any, observation: Any, action: Any) -> Any:
        import torch

        hidden = torch.cat([observation, action], dim=1).expand(2, -1, -1)
        for number in range(3):
            hidden = torch.baddbmm(critics[f"{number}_bias"], hidden, critics[f"{number}_weight"])
            hidden = hidden.relu() if number < 2 else hidden
        return hidden[..., 0]

    def _set_policy_gradient(self, observation: Any) -> None:
        import torch

        self._policy_adam.zero_grad()
        loss = -self._values(self.critics, observation, self.policy(observation))[0].mean()
        parameters = list(self.policy.parameters())
        for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters)):
            parameter.grad = gradient

    def _step(self, adam: Any, module: Any) -> None:
        import torch

        torch.nn.utils.clip_grad_norm_(module.parameters(), self._settings.max_gradient_norm)
        adam.step()
