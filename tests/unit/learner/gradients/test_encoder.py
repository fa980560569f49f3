from __future__ import annotations

from typing import Any, Dict, List

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.learner.gradients import BadGradient, EncodedGradients, GradientEncoder, NonFinite
from services.learner.gradients import layout as layout_module
from tests.unit.learner.gradients.arrays import SHAPES, as_bytes, decoded, draw, patient, step_sizes, tensors

CODECS = ("int8", "fp16", "none")
PACKINGS = ("none", "zstd", "zlib")

each_codec = pytest.mark.parametrize("codec", CODECS)


def encoder(codec: str = "int8", *, feedback: bool = True, packing: str = "none", block_size: int = 1024) -> Any:
    return GradientEncoder(codec, block_size, feedback, packing)


def same_state(left: Dict[str, np.ndarray], right: Dict[str, np.ndarray]) -> bool:
    return left.keys() == right.keys() and all(left[k].tobytes() == right[k].tobytes() for k in left)


@pytest.mark.parametrize("feedback", [True, False])
@pytest.mark.parametrize("block_size", [1024, 1500, 2048])
@patient
@given(values=tensors())
def test_an_error_is_half_a_scale_step_at_most(values: np.ndarray, block_size: int, feedback: bool) -> None:
    gradients = {"a": values}
    encoded = encoder(block_size=block_size, feedback=feedback).encode(gradients)
    out = decoded(encoded, gradients)["a"]
    steps = step_sizes(encoded.segments[0], values.size).reshape(values.shape)
    assert out.shape == values.shape
    assert (np.abs(out.astype(np.float64) - values) <= steps * (0.5 + 127 * 2.0**-22)).all()
    np.testing.assert_array_equal(out[values == 0], 0.0)


@pytest.mark.parametrize("packing", PACKINGS)
@each_codec
@patient
@given(values=tensors())
def test_decoded_and_residual_make_the_gradient(values: np.ndarray, codec: str, packing: str) -> None:
    gradients = {"a": values, "b": values.reshape(-1)[::-1]}
    sender = encoder(codec, packing=packing)
    out = decoded(sender.encode(gradients), gradients)
    sender.commit()
    residual = sender.state()
    for name, gradient in gradients.items():
        left = residual[name].astype(np.float64) if codec != "none" else 0.0
        np.testing.assert_array_equal(out[name].astype(np.float64) + left, gradient.astype(np.float64))


@each_codec
def test_no_codec_at_all_changes_nothing(codec: str) -> None:
    gradients = draw(0)
    out = decoded(encoder(codec).encode(gradients), gradients)
    unchanged = all(out[name].tobytes() == gradient.tobytes() for name, gradient in gradients.items())
    assert unchanged == (codec == "none")


@pytest.mark.parametrize("codec", ["int8", "fp16"])
@patient
@given(st.lists(st.tuples(st.sampled_from(["all", "critics"]), st.booleans()), min_size=1, max_size=8))
def test_what_was_sent_and_the_residual_make_the_sum_of_the_gradients(codec: str, pushes: List[Any]) -> None:
    sender = encoder(codec)
    sums = {name: np.zeros(shape) for name, shape in SHAPES.items()}
    sent = {name: np.zeros(shape) for name, shape in SHAPES.items()}
    for seed, (which, taken) in enumerate(pushes):
        gradients = {name: g for name, g in draw(seed).items() if which == "all" or name.startswith("critics")}
        out = decoded(sender.encode(gradients), gradients)
        if not taken:
            sender.rollback()
            continue
        sender.commit()
        for name, gradient in gradients.items():
            sums[name] += gradient
            sent[name] += out[name]
    for name, residual in sender.state().items():
        # Each addition of gradient and residual rounds once, to a float32's last digit.
        np.testing.assert_allclose(sent[name] + residual, sums[name], atol=1e-7 * len(pushes), rtol=0)


@pytest.mark.parametrize("codec", ["int8", "fp16"])
def test_a_refused_push_leaves_the_residual_as_it_was(codec: str) -> None:
    sender = encoder(codec)
    sender.encode(draw(0))
    sender.commit()
    before, norm = sender.state(), sender.residual_norm
    assert norm > 0
    sender.encode(draw(1))
    sender.rollback()
    assert same_state(sender.state(), before)
    assert sender.residual_norm == norm


def test_refused_content_does_not_come_back() -> None:
    # Putting a refused gradient into the residual would send it with the next push, and again with each refusal.
    huge = {name: gradient * 1e3 for name, gradient in draw(1).items()}
    refused, untouched = encoder(), encoder()
    for _ in range(20):
        refused.encode(huge)
        refused.rollback()
    gradients = draw(2)
    assert as_bytes(refused.encode(gradients)) == as_bytes(untouched.encode(gradients))


@pytest.mark.parametrize("packing", PACKINGS)
@each_codec
def test_a_resend_is_the_same_bytes(codec: str, packing: str) -> None:
    sender = encoder(codec, packing=packing)
    sender.encode(draw(0))
    sender.commit()
    gradients = draw(1)
    encoded = sender.encode(gradients)
    before, crc = as_bytes(encoded), encoded.crc32c
    for gradient in gradients.values():  # the learner's buffers are its own: they change while a push is in flight
        gradient[...] = 7.0
    assert as_bytes(encoded) == before
    sender.rollback()
    again = sender.encode(draw(1))
    assert (as_bytes(again), again.crc32c) == (before, crc)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("feedback", [True, False])
@each_codec
def test_what_is_not_finite_is_refused_before_it_enters_the_residual(codec: str, feedback: bool, bad: float) -> None:
    sender = encoder(codec, feedback=feedback)
    sender.encode(draw(0))
    sender.commit()
    before = sender.state()
    sick = draw(1)
    sick["critics.0.weight"][1, 3, 5] = bad
    with pytest.raises(NonFinite, match=r"'critics\.0\.weight' holds NaN or an infinity") as refused:
        sender.encode(sick)
    assert refused.value.tensor == "critics.0.weight"
    assert same_state(sender.state(), before)
    with pytest.raises(RuntimeError, match="no push in flight"):
        sender.commit()
    # Nothing of it is left in a buffer either.
    well = encoder(codec, feedback=feedback)
    well.load_state(before)
    gradients = draw(2)
    assert as_bytes(sender.encode(gradients)) == as_bytes(well.encode(gradients))


@pytest.mark.parametrize("magnitude", [1e38, 3e38])
def test_what_could_decode_to_infinity_is_refused(magnitude: float) -> None:
    gradients = {"a": np.full(5, magnitude, np.float32)}
    with pytest.raises(NonFinite, match="'a' with its residual is beyond"):
        encoder().encode(gradients)


@each_codec
def test_the_largest_and_the_least_travel(codec: str) -> None:
    for magnitude in (8.5e37, 1e-30, 1e-44):
        gradients = {"a": np.full(5, magnitude, np.float32)}
        out = decoded(encoder(codec).encode(gradients), gradients)["a"]
        np.testing.assert_allclose(out, gradients["a"], rtol=1e-3, atol=6e-39)


def test_one_push_is_in_flight_at_a_time() -> None:
    sender = encoder()
    for answer in (sender.commit, sender.rollback):
        with pytest.raises(RuntimeError, match="no push in flight"):
            answer()
    sender.encode(draw(0))
    with pytest.raises(RuntimeError, match="has no answer yet"):
        sender.encode(draw(1))
    with pytest.raises(RuntimeError, match="a push is in flight"):
        sender.load_state({})
    sender.commit()
    sender.encode(draw(1))


def test_tensors_may_come_one_by_one_and_in_any_order() -> None:
    gradients = draw(0)
    together, apart = encoder(), encoder()
    out = decoded(together.encode(gradients), gradients)
    together.commit()
    for name in reversed(list(gradients)):
        one = {name: gradients[name]}
        np.testing.assert_array_equal(decoded(apart.encode(one), one)[name], out[name])
        apart.commit()
    assert {name: r.tobytes() for name, r in apart.state().items()} == {
        name: r.tobytes() for name, r in together.state().items()
    }


def test_strips_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    gradients = draw(0, {"a": (3000,), "b": (70, 60), "c": (1,)})
    whole = as_bytes(encoder().encode(gradients))
    for module in ("layout", "encoder"):
        monkeypatch.setattr(f"services.learner.gradients.{module}.STRIP_VALUES", 1024)
    assert layout_module.STRIP_VALUES == 1024
    assert as_bytes(encoder().encode(gradients)) == whole


def test_strided_and_double_gradients_are_those_of_their_values() -> None:
    values = np.random.default_rng(0).standard_normal((40, 60)).astype(np.float32)
    plain = as_bytes(encoder().encode({"a": values}))
    wide = np.zeros((60, 80))
    wide[:, ::2] = values.T
    assert as_bytes(encoder().encode({"a": wide[:, ::2].T})) == plain


def test_sizes_are_those_of_the_wire() -> None:
    gradients = draw(0)
    encoded = encoder(packing="zstd").encode(gradients)
    assert encoded.raw_bytes == 4 * sum(gradient.size for gradient in gradients.values())
    assert encoded.num_bytes == sum(len(data) for data in as_bytes(encoded))
    assert isinstance(encoded, EncodedGradients)


def test_int8_with_packing_takes_less_than_a_fifth() -> None:
    gradients = draw(0, {"w": (200, 200), "critics": (2, 200, 200)})
    encoded = encoder(packing="zstd").encode(gradients)
    assert encoded.num_bytes < 0.2 * encoded.raw_bytes


# The checkpoint


@pytest.mark.parametrize("codec", ["int8", "fp16"])
def test_the_residual_is_in_the_checkpoint(codec: str) -> None:
    # pytorch#75666: a compression whose residual a checkpoint lacks goes on from another point than it stopped at.
    sender = encoder(codec)
    for seed in range(3):
        sender.encode(draw(seed))
        sender.commit()
    resumed = encoder(codec)
    resumed.load_state({name: residual.copy() for name, residual in sender.state().items()})
    assert resumed.residual_norm == pytest.approx(sender.residual_norm, rel=1e-6)
    gradients = draw(9)
    assert as_bytes(resumed.encode(gradients)) == as_bytes(sender.encode(gradients))
    assert resumed.take_notices() == []


def test_a_checkpoint_in_flight_has_the_residual_before_the_push() -> None:
    sender = encoder()
    sender.encode(draw(0))
    sender.commit()
    before = sender.state()
    sender.encode(draw(1))
    assert same_state(sender.state(), before)


def test_a_checkpoint_keeps_what_has_not_come_yet() -> None:
    # A helper that stops right after its start, before its first policy step, must not lose the policy's residual.
    sender = encoder()
    sender.encode(draw(0))
    sender.commit()
    saved = sender.state()
    resumed = encoder()
    resumed.load_state(saved)
    assert same_state(dict(sorted(resumed.state().items())), dict(sorted(saved.items())))
    critics = {name: gradient for name, gradient in draw(1).items() if name.startswith("critics")}
    resumed.encode(critics)
    resumed.commit()
    np.testing.assert_array_equal(resumed.state()["policy.0.weight"], saved["policy.0.weight"])


def test_a_state_is_a_copy() -> None:
    sender = encoder()
    sender.encode(draw(0))
    sender.commit()
    for residual in sender.state().values():
        residual[...] = 0.0
    assert sender.residual_norm > 0


def test_another_shape_starts_at_zero_and_is_said() -> None:
    old = encoder()
    old.encode(draw(0))
    old.commit()
    state = old.state()
    state["policy.0.bias"] = state["policy.0.bias"][:30]
    del state["critics.0.bias"]
    resumed, fresh = encoder(), encoder()
    resumed.load_state(state)
    assert resumed.take_notices() == []
    gradients = {name: g for name, g in draw(1).items() if name.endswith("bias")}
    assert as_bytes(resumed.encode(gradients)) == as_bytes(fresh.encode(gradients))
    (notice,) = resumed.take_notices()
    assert "'policy.0.bias' was saved with shape [30], the gradient has [60]: it starts at zero" in notice
    assert resumed.take_notices() == []


def test_loading_replaces_every_residual() -> None:
    sender = encoder()
    sender.encode(draw(0))
    sender.commit()
    kept = sender.state()["policy.0.bias"]
    sender.load_state({"policy.0.bias": kept})
    fresh = encoder()
    fresh.load_state({"policy.0.bias": kept})
    gradients = draw(1)
    assert as_bytes(sender.encode(gradients)) == as_bytes(fresh.encode(gradients))


def test_a_sick_residual_is_refused_and_changes_nothing() -> None:
    sender = encoder()
    sender.encode(draw(0))
    sender.commit()
    before = sender.state()
    with pytest.raises(NonFinite, match="saved residual of 'b' is not finite"):
        sender.load_state({"a": np.zeros(3, np.float32), "b": np.array([np.nan], np.float32)})
    assert same_state(sender.state(), before)


@pytest.mark.parametrize(("codec", "feedback"), [("int8", False), ("none", True)])
def test_without_feedback_there_is_no_residual(codec: str, feedback: bool) -> None:
    sender = encoder(codec, feedback=feedback)
    sender.load_state({"policy.0.bias": np.ones(60, np.float32)})
    first = as_bytes(sender.encode(draw(0)))
    sender.commit()
    assert as_bytes(sender.encode(draw(0))) == first
    assert (sender.state(), sender.residual_norm) == ({}, 0.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("int4", 1024, True, "zstd"), "codec is 'int4'; known are int8, fp16, none"),
        (("int8", 1023, True, "zstd"), "block_size is 1023; it must be 1024 to 2048"),
        (("int8", 2049, True, "zstd"), "block_size is 2049"),
        (("int8", 1024, True, "rar"), "packing is 'rar'"),
    ],
)
def test_arguments_out_of_range_are_refused(arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GradientEncoder(*arguments)


def test_nothing_to_encode_and_another_shape_are_refused() -> None:
    sender = encoder()
    with pytest.raises(ValueError, match="no gradients"):
        sender.encode({})
    sender.encode({"a": np.ones(3, np.float32)})
    sender.commit()
    with pytest.raises(BadGradient, match="keep their shapes"):
        sender.encode({"new": np.ones(5, np.float32), "a": np.ones(4, np.float32)})
    well = {"new": np.ones(5, np.float32), "a": np.ones(3, np.float32)}
    np.testing.assert_allclose(decoded(sender.encode(well), well)["new"], 1.0, rtol=0.01)
