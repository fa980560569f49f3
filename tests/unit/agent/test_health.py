from __future__ import annotations

import pytest

from services.agent.health import PROBE_ITEMS, TEXTS, Probe, StepHealth


def test_norms_are_means_since_the_last_report() -> None:
    health = StepHealth(max_gradient_norm=2.0)
    assert health.is_empty
    assert health.report() == {}
    for norm in (1.0, 2.0, 6.0):  # 2 itself is not clipped
        health.note(norm)
    assert not health.is_empty
    assert health.report() == {
        "gradient_norm": pytest.approx(3.0),
        "clipped_gradient_norm": pytest.approx(5 / 3),
        "clipped_share": pytest.approx(1 / 3),
    }
    health.note(1.5)
    assert health.report() == {"gradient_norm": 1.5, "clipped_gradient_norm": 1.5, "clipped_share": 0.0}


def test_every_metric_has_a_text_that_is_a_line() -> None:
    assert all(text and "\n" not in text and "{" not in text for text in TEXTS.values())


def test_drift_is_of_the_same_inputs_whatever_the_batch() -> None:
    torch = pytest.importorskip("torch")
    probe, weight = Probe(), torch.ones(1)

    def values(inputs: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        assert len(inputs) == PROBE_ITEMS
        return inputs * scale * weight

    first = torch.arange(PROBE_ITEMS + 5, dtype=torch.float32)
    twos = torch.full_like(first, 2.0)
    assert probe.drift((first, twos), values) is None
    first += 100  # what was kept is a copy
    assert probe.drift((first, twos), values).item() == 0
    weight += 0.5
    expected = (PROBE_ITEMS - 1) / 2  # mean of 0 .. PROBE_ITEMS - 1, times 2, times a half
    assert probe.drift((first * 0, twos), values).item() == pytest.approx(expected)
    assert probe.drift((first, twos), values).item() == 0
