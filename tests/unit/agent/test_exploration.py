import numpy as np
import pytest

from services.agent.exploration import (
    add_noise,
    annealed_scale,
    choose_epsilon_greedily,
    epsilon_ladder,
    ladder_quantiles,
    noise_ladder,
)


def test_each_actor_spans_the_ladder_and_no_rung_is_shared() -> None:
    parts = [ladder_quantiles(16, actor, 2) for actor in range(2)]
    np.testing.assert_allclose(np.sort(np.concatenate(parts)), np.linspace(0, 1, 32))
    for part in parts:
        assert part[0] < 0.05
        assert part[-1] > 0.95


def test_index_is_lane_times_actors_plus_actor() -> None:
    np.testing.assert_allclose(ladder_quantiles(3, 1, 2), np.array([1, 3, 5]) / 5)


def test_a_single_lane_stands_in_the_middle() -> None:
    assert ladder_quantiles(1, 0, 1).tolist() == [0.5]


@pytest.mark.parametrize(("lanes", "actor", "actors"), [(0, 0, 1), (1, 0, 0), (4, 2, 2), (4, -1, 2)])
def test_impossible_places_are_refused(lanes: int, actor: int, actors: int) -> None:
    with pytest.raises(ValueError, match=r"ladder needs|raise num_actors"):
        ladder_quantiles(lanes, actor, actors)


def test_ladder_values() -> None:
    quantiles = np.array([0.0, 0.5, 1.0])
    np.testing.assert_allclose(epsilon_ladder(quantiles, 0.4, 7.0), [0.4, 0.4**4.5, 0.4**8], rtol=1e-6)
    np.testing.assert_allclose(noise_ladder(quantiles, 0.05, 0.8), [0.05, 0.425, 0.8], rtol=1e-6)
    with pytest.raises(ValueError, match="noise_min"):
        noise_ladder(quantiles, 0.8, 0.05)


def test_noise_has_each_lanes_deviation_and_is_clipped() -> None:
    rng = np.random.default_rng(0)
    stddev = np.array([0.0, 0.05, 5.0], dtype=np.float32)
    draws = np.stack([add_noise(np.zeros((3, 4), dtype=np.float32), stddev, rng) for _ in range(2000)])
    assert draws.dtype == np.float32
    assert (draws[:, 0] == 0).all()
    assert draws[:, 1].std() == pytest.approx(0.05, rel=0.05)
    assert np.abs(draws).max() == 1


def test_epsilon_is_the_chance_of_a_uniform_action() -> None:
    rng = np.random.default_rng(0)
    values = np.tile(np.array([0.0, 1.0, 0.0, 0.0], dtype=np.float32), (3, 1))
    epsilon = np.array([0.0, 0.4, 1.0], dtype=np.float32)
    draws = np.stack([choose_epsilon_greedily(values, epsilon, rng) for _ in range(4000)])
    assert draws.dtype == np.int64
    np.testing.assert_allclose((draws != 1).mean(axis=0), [0.0, 0.4 * 0.75, 0.75], atol=0.03)


@pytest.mark.parametrize(("updates", "scale"), [(0, 1.0), (250, 0.775), (500, 0.55), (1000, 0.1), (5000, 0.1)])
def test_the_ladder_shrinks_linearly_to_what_is_left(updates: int, scale: float) -> None:
    assert annealed_scale(updates, 1000, 0.1) == pytest.approx(scale)


def test_a_fixed_ladder_keeps_its_scale() -> None:
    assert [annealed_scale(updates, 0, 0.1) for updates in (0, 10**9)] == [1.0, 1.0]
