import numpy as np
import pytest

torch = pytest.importorskip("torch")

from services.agent.optimizer import FlatParameters, TrainedParameters, check_state  # noqa: E402

INITIAL = {
    "p.0.weight": np.arange(6, dtype=np.float32).reshape(2, 3) / 10,
    "p.0.bias": np.full(3, 0.5, dtype=np.float32),
}


def _trained(max_gradient_norm: float = 1.0) -> TrainedParameters:
    return TrainedParameters("p", INITIAL, learning_rate=0.01, max_gradient_norm=max_gradient_norm, device="cpu")


def _loss(leaves, target: float):
    return (leaves["p.0.weight"] - target).square().sum() + (3 * leaves["p.0.bias"] + target).square().sum()


def test_views_share_the_buffer_and_copies_do_not() -> None:
    parameters = FlatParameters(INITIAL, "cpu")
    copy = parameters.to_numpy("x.")
    parameters.flat.mul_(2)
    np.testing.assert_array_equal(parameters.views["p.0.weight"].numpy(), 2 * INITIAL["p.0.weight"])
    np.testing.assert_array_equal(copy["x.p.0.weight"], INITIAL["p.0.weight"])


@pytest.mark.parametrize("max_gradient_norm", [0.1, 1.0, 1e6])
def test_steps_equal_torchs_adam_and_clipping_by_tensor(max_gradient_norm: float) -> None:
    ours = _trained(max_gradient_norm)
    plain = {name: torch.nn.Parameter(torch.tensor(array)) for name, array in INITIAL.items()}
    adam = torch.optim.Adam(plain.values(), lr=0.01)
    for k in range(20):
        norm = ours.minimize(_loss(ours.leaves, 0.1 * k))
        adam.zero_grad()
        _loss(plain, 0.1 * k).backward()
        expected_norm = torch.nn.utils.clip_grad_norm_(plain.values(), max_gradient_norm)
        adam.step()
        torch.testing.assert_close(norm, expected_norm)
    for name, tensor in plain.items():
        np.testing.assert_allclose(ours.to_numpy()[name], tensor.detach().numpy(), rtol=1e-5, atol=1e-6)


def test_a_resumed_optimizer_goes_on_bit_for_bit() -> None:
    whole, first, second = _trained(), _trained(), _trained()
    for k in range(10):
        whole.minimize(_loss(whole.leaves, 0.3 * k))
    for k in range(5):
        first.minimize(_loss(first.leaves, 0.3 * k))
    second.load_state(first.state())
    for k in range(5, 10):
        second.minimize(_loss(second.leaves, 0.3 * k))
    for name, array in whole.state().items():
        np.testing.assert_array_equal(second.state()[name], array, err_msg=name)


def test_check_state_names_the_first_difference() -> None:
    expected = _trained().state()
    check_state(expected, dict(expected))
    with pytest.raises(ValueError, match=r"lacks 'online\.p\.0\.bias'"):
        check_state(expected, {name: array for name, array in expected.items() if name != "online.p.0.bias"})
    with pytest.raises(ValueError, match="unknown 'extra'"):
        check_state(expected, {**expected, "extra": np.zeros(1)})
    with pytest.raises(ValueError, match=r"'online\.p\.0\.bias' .* has shape \(4,\)"):
        check_state(expected, {**expected, "online.p.0.bias": np.zeros(4)})
