"""Learning health: what tells a training that goes well from one that does not, gathered between two reports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, Dict, Optional, Tuple

if TYPE_CHECKING:
    import torch

REPORT_PERIOD = 50  # updates; a report waits for the device
PROBE_ITEMS = 256

_OPTIMIZER = {
    "gradient_norm": "mean norm of the {role} gradient before clipping, over the steps since the last report",
    "clipped_gradient_norm": "mean norm of the {role} gradient after clipping, which the optimizer was given",
    "clipped_share": "share of the {role} steps since the last report whose gradient was clipped",
    "update_ratio": "norm of one step of the {role} parameters over the norm of the parameters",
}
_VALUES = {
    "q_mean": "mean value that the critics give to the batch, in scaled rewards",
    "q_max": "largest value that the critics give to the batch, in scaled rewards",
    "q_drift": "mean change of the values of one fixed set of inputs since the last report, in scaled rewards",
}
TEXTS: Dict[str, str] = {
    **_VALUES,
    "critic_loss": "weighted loss of the critics on the batch",
    "policy_loss": "negative mean value of the policy's actions on the batch",
    "q_loss": "weighted Huber loss of the action values on the batch",
    "exploration_noise": "root mean square of executed actions less the policy's, in normalized actions",
    "policy_saturation": "share of the policy's actions on the batch that lie at their bounds",
    "exploration_share": "share of the batch's actions that the network would not choose",
    "gradient_contributors": "contributors whose gradients made the step",
    "gradient_cosine": "mean cosine similarity between the gradients of contributors",
    "greedy_entropy": "entropy of the best actions over the batch: 1 all alike often, 0 always the same",
}
for _role in ("critic", "policy", "q"):
    TEXTS.update({f"{_role}_{name}": text.format(role=_role) for name, text in _OPTIMIZER.items()})


class StepHealth:
    """Norms and clipping of one optimizer's gradients since the last report. Plain numbers: nothing is waited for."""

    def __init__(self, max_gradient_norm: float) -> None:
        self._max_gradient_norm = max_gradient_norm
        self._begin()

    @property
    def is_empty(self) -> bool:
        """Whether no step was taken since the last report."""
        return self._steps == 0

    def _begin(self) -> None:
        self._steps = self._clipped = 0
        self._norm = self._clipped_norm = 0.0

    def note(self, norm: float) -> None:
        """Count one step, whose gradient had this norm before it was clipped."""
        self._steps += 1
        self._clipped += norm > self._max_gradient_norm
        self._norm += norm
        self._clipped_norm += min(norm, self._max_gradient_norm)

    def report(self) -> Dict[str, float]:
        """The means since the last report; empty if no step was taken."""
        if self.is_empty:
            return {}
        report = {
            "gradient_norm": self._norm / self._steps,
            "clipped_gradient_norm": self._clipped_norm / self._steps,
            "clipped_share": self._clipped / self._steps,
        }
        self._begin()
        return report


class Probe:
    """The inputs of one batch, kept: how far their values move while training goes on.

    A mean over the batches themselves moves with what is drawn; the same inputs move with the critics alone.
    """

    def __init__(self) -> None:
        self._inputs: Optional[Tuple[torch.Tensor, ...]] = None
        self._values: Optional[torch.Tensor] = None

    def drift(self, inputs: Tuple[torch.Tensor, ...], values: Callable[..., torch.Tensor]) -> Optional[torch.Tensor]:
        """Mean |values now - values at the last call| of the inputs of the first call, a scalar; None at the first.

        Args:
            inputs: tensors [N, ...], of which the first PROBE_ITEMS rows are kept.
            values: computes values of such inputs without a gradient.
        """
        if self._inputs is None:
            self._inputs = tuple(tensor[:PROBE_ITEMS].detach().clone() for tensor in inputs)
        before, self._values = self._values, values(*self._inputs)
        return None if before is None else (self._values - before).abs().mean()
