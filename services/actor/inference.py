"""Policy inference: which library runs the forward pass, and a policy that runs it with torch."""

from __future__ import annotations

import importlib.util
from typing import Any, Dict, Mapping, Optional

import numpy as np
import numpy.typing as npt

from services.agent.algorithm import Decision, Observation, Parameters, Policy
from services.agent.networks import to_tensor
from services.common.errors import UserError


def with_inference(policy: Policy, inference: str, *, device: str, num_threads: int) -> Policy:
    """The policy itself, which computes with numpy, or one that runs it with torch.

    On the CPU numpy is as fast or faster for any number of lanes (docs/benchmarks.md), and an actor without torch
    starts sooner and takes a tenth of the memory. Tensors of a GPU stay there: only torch can act on them.

    Args:
        policy: of an algorithm.
        inference: "auto", "numpy" or "torch".
        device: where the environment keeps its observations: "cpu", or a torch device.
        num_threads: of torch on the CPU.

    Raises:
        UserError: torch is asked for, or needed, and not installed; or numpy is asked for where only torch can act.
    """
    on_cpu = device == "cpu"
    if inference == "numpy" and not on_cpu:
        raise UserError(
            f"actor.inference = 'numpy', but the environment's observations lie on {device}: set it to 'auto'"
        )
    if inference == "numpy" or (inference == "auto" and on_cpu):
        return policy
    if importlib.util.find_spec("torch") is None:
        why = "actor.inference = 'torch'" if on_cpu else f"the environment's observations lie on {device}"
        raise UserError(f"{why}, but torch is not installed here: install it, or set actor.inference = 'numpy'")
    return TorchPolicy(policy, device, num_threads)


class TorchPolicy:
    """Runs a policy's forward pass with torch, on one device.

    Observations that come as arrays bring arrays back; tensors bring tensors of the same device, so that nothing of a
    simulator on a GPU crosses to the host on the way to its next step. Not tested on a GPU.
    """

    def __init__(self, policy: Policy, device: str, num_threads: int = 1) -> None:
        import torch

        torch.set_num_threads(num_threads)
        self._policy = policy
        self._device = torch.device(device)
        self._source: Optional[Parameters] = None  # the set that `_tensors` was made of
        self._tensors: Dict[str, Any] = {}

    def act(self, parameters: Parameters, observation: Observation, rng: np.random.Generator) -> Decision:
        """As the policy."""
        import torch

        with torch.inference_mode():
            decision = self._policy.act(self._upload(parameters), self._inputs(observation), rng)
        if not _is_host(observation):
            return decision
        return Decision(_to_array(decision.action), _to_array(decision.q_taken), _to_array(decision.value))

    def act_greedily(self, parameters: Parameters, observation: Observation) -> npt.NDArray[Any]:
        """As the policy."""
        import torch

        with torch.inference_mode():
            action = self._policy.act_greedily(self._upload(parameters), self._inputs(observation))
        return _to_array(action) if _is_host(observation) else action

    def value(self, parameters: Parameters, observation: Observation) -> npt.NDArray[np.float32]:
        """As the policy."""
        import torch

        with torch.inference_mode():
            value = self._policy.value(self._upload(parameters), self._inputs(observation))
        return _to_array(value) if _is_host(observation) else value

    def anneal(self, updates: int) -> None:
        """As the policy."""
        self._policy.anneal(updates)

    def exploration(self) -> npt.NDArray[np.float32]:
        """As the policy."""
        return self._policy.exploration()

    def _upload(self, parameters: Parameters) -> Mapping[str, Any]:
        """The set as tensors of the device; once for each set, which is never changed after it was made."""
        if parameters is not self._source:
            self._tensors = {name: to_tensor(array, self._device) for name, array in parameters.items()}
            self._source = parameters
        return self._tensors

    def _inputs(self, observation: Observation) -> Dict[str, Any]:
        return {
            name: to_tensor(tensor, self._device) if isinstance(tensor, np.ndarray) else tensor
            for name, tensor in observation.items()
        }


def _is_host(observation: Observation) -> bool:
    return all(isinstance(tensor, np.ndarray) for tensor in observation.values())


def _to_array(tensor: Any) -> npt.NDArray[Any]:
    array: npt.NDArray[Any] = tensor.cpu().numpy()
    return array
