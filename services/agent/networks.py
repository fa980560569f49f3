"""The networks: one forward pass for numpy arrays (actors without torch) and torch tensors (learners) alike.

Parameters are flat mappings `name -> array`, named `<role>.<layer>.<weight|bias>`. A weight is [in, out] and a bias is
[out]; a stack of K networks of one shape is a weight of [K, in, out] and a bias of [K, 1, out], so that one batched
matrix product computes them all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Dict, Mapping, Sequence, Tuple, Union

import numpy as np
import numpy.typing as npt

from services.agent.normalizer import normalize
from services.common.schema import ActionSpec, Schema, SchemaError

if TYPE_CHECKING:
    import torch

STATES = "states"  # the observation tensor that critics see and policies do not


def parameter_shapes(role: str, sizes: Sequence[int], stack: int = 0) -> Dict[str, Tuple[int, ...]]:
    """Names and shapes of a perceptron's parameters.

    Args:
        role: first part of each name.
        sizes: widths of input, hidden layers and output.
        stack: number of networks in a stack; 0 for a single network without that dimension.

    Returns:
        `<role>.<layer>.<weight|bias>` -> (in, out) and (out,), or (stack, in, out) and (stack, 1, out).
    """
    shapes: Dict[str, Tuple[int, ...]] = {}
    for layer, (fan_in, fan_out) in enumerate(zip(sizes[:-1], sizes[1:])):
        shapes[f"{role}.{layer}.weight"] = (stack, fan_in, fan_out) if stack else (fan_in, fan_out)
        shapes[f"{role}.{layer}.bias"] = (stack, 1, fan_out) if stack else (fan_out,)
    return shapes


def initial_parameters(
    role: str, sizes: Sequence[int], rng: np.random.Generator, stack: int = 0
) -> Dict[str, npt.NDArray[np.float32]]:
    """Draw weights and biases uniformly from +-1/sqrt(fan in).

    Args:
        role: first part of each name.
        sizes: widths of input, hidden layers and output.
        rng: where the draws come from.
        stack: number of networks in a stack; 0 for a single network without that dimension.

    Returns:
        `<role>.<layer>.<weight|bias>` -> <float32>[in, out] and [out], or [stack, in, out] and [stack, 1, out].
    """
    parameters: Dict[str, npt.NDArray[np.float32]] = {}
    for name, shape in parameter_shapes(role, sizes, stack).items():
        fan_in = sizes[int(name.split(".")[-2])]
        bound = 1.0 / np.sqrt(fan_in)
        parameters[name] = rng.uniform(-bound, bound, shape).astype(np.float32)
    return parameters


def mlp(parameters: Mapping[str, Any], role: str, inputs: Any) -> Any:
    """Multilayer perceptron with rectified hidden layers and a linear output.

    Args:
        parameters: arrays or tensors; those of `role` are used, from layer 0 up to the last that there is.
        role: which network.
        inputs: <float32>[N, in], array or tensor as the parameters are; [1, N, in] for a stack.

    Returns:
        <float32>[N, out], or [K, N, out] of a stack of K networks.
    """
    hidden, layer = inputs, 0
    while True:
        hidden = _affine(hidden, parameters[f"{role}.{layer}.weight"], parameters[f"{role}.{layer}.bias"])
        layer += 1
        if f"{role}.{layer}.weight" not in parameters:
            return hidden
        # In place: the layer's output is nobody else's, and at 4,096 lanes fresh memory costs a third of the pass.
        hidden = np.maximum(hidden, 0, out=hidden) if isinstance(hidden, np.ndarray) else hidden.relu()


def _affine(inputs: Any, weight: Any, bias: Any) -> Any:
    """The layer inputs @ weight + bias; fused where torch can, which saves a tenth of an update."""
    if isinstance(inputs, np.ndarray):
        outputs = inputs @ weight
        outputs += bias
        return outputs
    if weight.dim() == 2:
        return bias.addmm(inputs, weight)
    return bias.baddbmm(inputs.expand(len(weight), -1, -1), weight)


def squashed_policy(parameters: Mapping[str, Any], role: str, inputs: Any) -> Any:
    """Deterministic policy: tanh of a perceptron.

    Args:
        parameters: as for `mlp`.
        role: which network.
        inputs: <float32>[N, in].

    Returns:
        Normalized actions <float32>[N, A] in [-1, 1].
    """
    output = mlp(parameters, role, inputs)
    return np.tanh(output) if isinstance(output, np.ndarray) else output.tanh()


def critic_values(parameters: Mapping[str, Any], role: str, inputs: Any, actions: Any) -> Any:
    """Values of state and action by a stack of critics.

    Args:
        parameters: as for `mlp`, each with a leading dimension of K critics.
        role: which stack.
        inputs: <float32>[N, in].
        actions: normalized, <float32>[N, A].

    Returns:
        <float32>[K, N].
    """
    return mlp(parameters, role, concatenate([inputs, actions], axis=-1)[None])[..., 0]


def dueling_values(parameters: Mapping[str, Any], role: str, inputs: Any) -> Any:
    """Dueling action values, Q = V + A - mean A (Wang et al. 2016, equation 9).

    The network's first output is V, the others are the advantages A.

    Args:
        parameters: as for `mlp`.
        role: which network.
        inputs: <float32>[N, in].

    Returns:
        <float32>[N, num_actions].
    """
    output = mlp(parameters, role, inputs)
    value, advantage = output[..., :1], output[..., 1:]
    return value + advantage - advantage.mean(-1)[..., None]


class ObservationEncoder:
    """Turns a dict of observation tensors into the flat input of policy and critics.

    Tensors are flattened and joined in the order of their names. `states`, where there is one, is for critics alone.
    uint8 tensors (images) are scaled to [0, 1]; all else is cast to float32, and normalized where the parameters hold
    statistics of it (`normalizer.py`).
    """

    def __init__(self, schema: Schema) -> None:
        self._policy_names = tuple(s.name for s in schema.observation if s.name != STATES)
        self._critic_names = tuple(s.name for s in schema.observation)
        if not self._policy_names:
            raise SchemaError(
                f"the only observation tensor is {STATES!r}, which critics alone see; add one for the policy"
            )
        sizes = {s.name: int(np.prod(s.shape, dtype=np.int64)) for s in schema.observation}
        self.policy_size: int = sum(sizes[name] for name in self._policy_names)
        self.critic_size: int = sum(sizes.values())

    def encode(
        self, observation: Mapping[str, npt.NDArray[Any]], parameters: Mapping[str, Any]
    ) -> Tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Inputs of policy and critics.

        Args:
            observation: name -> [N, ...], arrays or tensors.
            parameters: of these, the statistics of a normalizer.

        Returns:
            The same kind, <float32>[N, policy_size] and <float32>[N, critic_size]; one and the same where no tensor is
            for critics alone. They may share memory with `observation`.
        """
        policy = _join(observation, self._policy_names, parameters)
        if self._critic_names == self._policy_names:
            return policy, policy
        return policy, _join(observation, self._critic_names, parameters)

    def encode_policy(
        self, observation: Mapping[str, npt.NDArray[Any]], parameters: Mapping[str, Any]
    ) -> npt.NDArray[np.float32]:
        """Input of the policy alone, <float32>[N, policy_size]."""
        return _join(observation, self._policy_names, parameters)


def _join(
    observation: Mapping[str, npt.NDArray[Any]], names: Tuple[str, ...], parameters: Mapping[str, Any]
) -> npt.NDArray[np.float32]:
    columns = [normalize(parameters, name, _as_rows(observation[name])) for name in names]
    rows: npt.NDArray[np.float32] = columns[0] if len(columns) == 1 else concatenate(columns, axis=1)
    return rows


def _as_rows(tensor: Any) -> Any:
    """<float32>[N, size] of an array or tensor [N, ...]."""
    rows = tensor.reshape(len(tensor), -1)
    if not isinstance(rows, np.ndarray):
        import torch

        return rows.float() / 255 if rows.dtype == torch.uint8 else rows.float()
    if rows.dtype == np.uint8:
        return rows.astype(np.float32) / np.float32(255)
    return rows.astype(np.float32, copy=False)


class ActionScaling:
    """The affine map between actions in the environment's units and normalized ones in [-1, 1]."""

    def __init__(self, action: ActionSpec) -> None:
        self.low: npt.NDArray[np.float32] = np.array(action.low, dtype=np.float32)
        self.high: npt.NDArray[np.float32] = np.array(action.high, dtype=np.float32)
        self._centre = (self.low + self.high) / 2
        self._half_range = (self.high - self.low) / 2

    def normalize(self, action: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """[N, A] in the environment's units -> <float32>[N, A] in [-1, 1]; arrays or tensors."""
        normalized: npt.NDArray[np.float32] = (action - like(self._centre, action)) / like(self._half_range, action)
        return normalized

    def denormalize(self, action: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """[N, A] normalized -> <float32>[N, A] in the environment's units, clipped; arrays or tensors."""
        scaled = like(self._centre, action) + action * like(self._half_range, action)
        clipped: npt.NDArray[np.float32] = clip(scaled, self.low, self.high)
        return clipped


def like(array: npt.NDArray[Any], reference: Any) -> Any:
    """`array` as what `reference` is: itself, or a tensor on the device of that tensor."""
    return array if isinstance(reference, np.ndarray) else to_tensor(array, reference.device)


def concatenate(parts: Sequence[Any], axis: int) -> Any:
    """Join arrays, or tensors, along an axis."""
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts, axis=axis)
    import torch

    return torch.cat(list(parts), dim=axis)


def clip(values: Any, low: Any, high: Any) -> Any:
    """Values of an array or tensor brought into [low, high], which are numbers or arrays."""
    if isinstance(values, np.ndarray):
        return np.clip(values, low, high)
    if isinstance(low, np.ndarray):
        return values.clamp(like(low, values), like(high, values))
    return values.clamp(low, high)


def lowest(values: Any, axis: int) -> Any:
    """The least value along an axis of an array or tensor."""
    return values.min(axis=axis) if isinstance(values, np.ndarray) else values.amin(dim=axis)


def highest(values: Any, axis: int) -> Any:
    """The greatest value along an axis of an array or tensor."""
    return values.max(axis=axis) if isinstance(values, np.ndarray) else values.amax(dim=axis)


def pick(values: Any, index: Any) -> Any:
    """values[i, index[i]] of an array or tensor [N, K] and indices <int64>[N]."""
    if isinstance(values, np.ndarray):
        return np.take_along_axis(values, index[:, None], axis=1)[:, 0]
    return values.gather(1, index[:, None])[:, 0]


def to_tensor(array: npt.NDArray[Any], device: Union[str, torch.device]) -> torch.Tensor:
    """The array as a tensor on `device`, without a copy where memory can be shared."""
    import torch

    # torch shares only what it could write to; arrays that lie in received bytes are read-only.
    shareable = np.require(array, requirements=("C", "W"))
    return torch.from_numpy(shareable).to(device)
