"""Parameters that a learner trains: one flat buffer each for values, gradients and Adam's moments.

A network of a few layers is a dozen small tensors; clipping, Adam and Polyak averaging over one buffer take one call
each instead of a dozen. The tensors that the forward pass sees are views of the buffer.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Dict, Mapping, Optional, Tuple

import numpy as np
import numpy.typing as npt

from services.agent.algorithm import NonFiniteUpdate
from services.agent.health import StepHealth

if TYPE_CHECKING:
    import torch


class FlatParameters:
    """Named tensors that are views of one flat buffer."""

    def __init__(self, initial: Mapping[str, npt.NDArray[np.float32]], device: str) -> None:
        import torch

        self._slices: Dict[str, slice] = {}
        start = 0
        for name, array in initial.items():
            self._slices[name] = slice(start, start + array.size)
            start += array.size
        self._shapes = {name: array.shape for name, array in initial.items()}
        self.flat: torch.Tensor = torch.empty(start, dtype=torch.float32, device=device)
        self.views: Dict[str, torch.Tensor] = self.split(self.flat)
        self.load(initial)

    @property
    def names(self) -> Tuple[str, ...]:
        """Of the tensors, in their order."""
        return tuple(self._slices)

    def split(self, flat: torch.Tensor) -> Dict[str, torch.Tensor]:
        """Views of a buffer <float32>[size] in these parameters' order and shapes."""
        return {name: flat[part].view(self._shapes[name]) for name, part in self._slices.items()}

    def to_numpy(self, prefix: str = "") -> Dict[str, npt.NDArray[np.float32]]:
        """A copy, each name behind `prefix`."""
        return copied(self.arrays(prefix))

    def arrays(self, prefix: str = "") -> Dict[str, npt.NDArray[np.float32]]:
        """As `to_numpy`, and where that can be without a copy: what changes with the parameters."""
        flat = self.flat.detach().cpu().numpy()
        return {prefix + name: flat[part].reshape(self._shapes[name]) for name, part in self._slices.items()}

    def load(self, arrays: Mapping[str, npt.NDArray[Any]], prefix: str = "") -> None:
        """Copy in what `to_numpy` gave."""
        import torch

        with torch.no_grad():
            for name, view in self.views.items():
                view.copy_(torch.tensor(np.asarray(arrays[prefix + name])))


class TrainedParameters(FlatParameters):
    """Flat parameters with gradients, clipped by their norm, and Adam (Kingma and Ba 2015)."""

    def __init__(
        self,
        role: str,
        initial: Mapping[str, npt.NDArray[np.float32]],
        *,
        learning_rate: float,
        max_gradient_norm: float,
        device: str,
    ) -> None:
        super().__init__(initial, device)
        import torch

        self._role = role
        self._learning_rate = learning_rate
        self._max_gradient_norm = max_gradient_norm
        self._gradient = torch.zeros_like(self.flat)
        self.leaves: Dict[str, torch.Tensor] = {}  # what a loss is computed from, for gradients to arrive
        for name, gradient in self.split(self._gradient).items():
            leaf = self.views[name].detach().requires_grad_()
            leaf.grad = gradient
            self.leaves[name] = leaf
        buffer = torch.nn.Parameter(self.flat, requires_grad=True)
        buffer.grad = self._gradient
        self._adam = torch.optim.Adam([buffer], lr=learning_rate, fused=True)
        # Adam makes its moments at the first step; made here, a learner that has taken none has the same state names.
        self._moments: Dict[str, torch.Tensor] = {
            "step": torch.zeros((), dtype=torch.float32, device=device),
            "exp_avg": torch.zeros_like(self.flat),
            "exp_avg_sq": torch.zeros_like(self.flat),
        }
        self._adam.state[buffer].update(self._moments)
        self._health = StepHealth(max_gradient_norm)
        self._update_ratio: Optional[torch.Tensor] = None  # of the first step since the last report

    def minimize(self, loss: torch.Tensor) -> torch.Tensor:
        """Take one optimizer step down the gradient of `loss`, a scalar made from `leaves`.

        Returns:
            Norm of the gradient before it was clipped, a scalar tensor.

        Raises:
            NonFiniteUpdate: the gradient is not finite; nothing was changed.
        """
        self.backward(loss)
        return self.step()

    def backward(self, loss: torch.Tensor) -> None:
        """Compute the gradient of `loss`, a scalar made from `leaves`, in place of the last one."""
        import torch

        self._gradient.zero_()
        torch.autograd.backward(loss)

    def gradient_to_numpy(self) -> Dict[str, npt.NDArray[np.float32]]:
        """A copy of the gradient, by the parameters' names."""
        flat = self._gradient.cpu().numpy().copy()
        return {name: flat[part].reshape(self._shapes[name]) for name, part in self._slices.items()}

    def load_gradient(self, gradients: Mapping[str, npt.NDArray[np.float32]]) -> None:
        """Copy in a gradient, by the parameters' names; others are ignored."""
        import torch

        for name, view in self.split(self._gradient).items():
            view.copy_(torch.from_numpy(gradients[name]))

    def step(self, rate_scale: float = 1.0) -> torch.Tensor:
        """Clip the gradient that is there, and take one step of Adam.

        Args:
            rate_scale: times the learning rate, for this step alone. (Scaling the gradient does nothing under Adam.)

        Returns:
            Norm of the gradient before it was clipped, a scalar tensor.

        Raises:
            NonFiniteUpdate: the gradient is not finite; nothing was changed.
        """
        import torch

        norm: torch.Tensor = torch.linalg.vector_norm(self._gradient)
        length = norm.item()
        if not math.isfinite(length):
            raise NonFiniteUpdate(f"the gradient of {self._role} is not finite")
        before = self.flat.clone() if self._health.is_empty else None
        self._health.note(length)
        self._gradient.mul_((self._max_gradient_norm / (norm + 1e-6)).clamp_(max=1.0))
        self._adam.param_groups[0]["lr"] = self._learning_rate * rate_scale
        self._adam.step()
        if before is not None:
            self._update_ratio = (self.flat - before).norm() / before.norm()
        return norm

    def health(self) -> Dict[str, float]:
        """Gradient norms, clipping and size of a step since the last call (`health.TEXTS`); empty without a step."""
        report = self._health.report()
        if report and self._update_ratio is not None:
            report["update_ratio"] = self._update_ratio.item()
        return report

    def state(self) -> Dict[str, npt.NDArray[Any]]:
        """Parameters (`online.<name>`), Adam's moments and step (`adam.<role>.<name>`); like `arrays`, no copy."""
        moments = {f"adam.{self._role}.{name}": tensor.cpu().numpy() for name, tensor in self._moments.items()}
        return {**self.arrays("online."), **moments}

    def load_state(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """The inverse of `state`; other names are ignored, and shapes are the caller's to check."""
        import torch

        self.load(state, "online.")
        for name, tensor in self._moments.items():
            tensor.copy_(torch.tensor(np.asarray(state[f"adam.{self._role}.{name}"])))


def copied(
    arrays: Mapping[str, npt.NDArray[Any]], into: Optional[Mapping[str, npt.NDArray[Any]]] = None
) -> Dict[str, npt.NDArray[Any]]:
    """A copy of each array; those of `into`, of the same name and shape, are filled again.

    Memory that is new to the process costs several times the copy itself: its pages come one by one.
    """
    copies: Dict[str, npt.NDArray[Any]] = {}
    for name, array in arrays.items():
        known = None if into is None else into.get(name)
        if known is not None and (known.shape, known.dtype) == (array.shape, array.dtype):
            np.copyto(known, array)
            copies[name] = known
        else:
            copies[name] = array.copy()
    return copies


def check_finite(gradients: Mapping[str, npt.NDArray[np.float32]]) -> None:
    """Refuse gradients that would harm parameters.

    Raises:
        NonFiniteUpdate: one of them holds NaN or an infinity.
    """
    for name, gradient in gradients.items():
        if not np.isfinite(gradient).all():
            raise NonFiniteUpdate(f"the gradient of {name} is not finite")


def checked_td_error(magnitude: torch.Tensor) -> npt.NDArray[np.float32]:
    """TD errors as an array, on their way to priorities.

    Asked for before the step: a loss that clips its gradient, as Huber's does, makes a harmless looking one of an error
    that is infinite.

    Args:
        magnitude: |delta|, <float32>[N], without gradient.

    Raises:
        NonFiniteUpdate: one of them is not finite.
    """
    td_error: npt.NDArray[np.float32] = magnitude.cpu().numpy()
    if not np.isfinite(td_error).all():
        raise NonFiniteUpdate(f"{np.count_nonzero(~np.isfinite(td_error))} TD errors of the batch are not finite")
    return td_error


def check_state(expected: Mapping[str, npt.NDArray[Any]], state: Mapping[str, npt.NDArray[Any]]) -> None:
    """Compare names and shapes of a state with those of a learner.

    Args:
        expected: what the learner's own `state` gives.
        state: what is to be loaded.

    Raises:
        ValueError: they differ; the message names the first that does.
    """
    for name in sorted(set(expected) | set(state)):
        if name not in state:
            raise ValueError(f"the learner's state lacks {name!r}; it was saved by another algorithm")
        if name not in expected:
            raise ValueError(f"the learner's state has an unknown {name!r}; it was saved by another algorithm")
        ours, theirs = np.shape(expected[name]), np.shape(state[name])
        if ours != theirs:
            raise ValueError(
                f"{name!r} of the learner's state has shape {theirs}, this learner's has {ours}; "
                "hidden_sizes or the environment changed since it was saved"
            )
