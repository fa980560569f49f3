from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Sequence

import pytest

from services.common.config.load import ConfigError, load, to_toml
from services.common.config.run import RunConfig
from services.common.config.values import PublishPeriod, check_address, is_loopback


def _sentence(*flags: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(None, flags)
    return str(caught.value)


def test_a_batch_larger_than_the_table_is_refused_and_both_origins_are_named() -> None:
    sentence = _sentence("--learner.batch_size", "300", "--replay.capacity", "200")
    assert "learner.batch_size = 300 is larger than replay.capacity = 200" in sentence
    assert "learner.batch_size: flag --learner.batch_size" in sentence
    assert "replay.capacity: flag --replay.capacity" in sentence


@pytest.mark.parametrize("min_size", [960, 961])
def test_a_minimum_size_that_the_table_never_reaches_is_refused(min_size: int) -> None:
    # 2 actors x 2 lanes x 10 steps = 40 steps of chunks that cannot wait in the table.
    flags = ["--replay.capacity", "1000", "--env.lanes", "2", "--replay.min_size_to_sample", str(min_size)]
    if min_size == 960:
        assert load(None, flags).config.replay.min_size_to_sample == 960
    else:
        assert "replay.min_size_to_sample = 961 can never be reached" in _sentence(*flags)


@pytest.mark.parametrize(
    ("samples_per_insert", "least"),
    [("0.5", 2048.0), ("16", 2560.0)],  # one Sample of 8 x 256; one chunk of 16 lanes x 10 steps x 16
)
def test_an_error_buffer_that_deadlocks_is_refused_with_the_arithmetic(samples_per_insert: str, least: float) -> None:
    flags = ["--replay.samples_per_insert", samples_per_insert, "--replay.error_buffer"]
    assert load(None, [*flags, str(least)]).config.error_buffer == least
    sentence = _sentence(*flags, str(least - 1))
    assert f"replay.error_buffer = {least - 1:g} deadlocks" in sentence
    assert f"set it to at least {least:g}" in sentence
    assert "replay.error_buffer: flag --replay.error_buffer" in sentence


def test_the_chosen_error_buffer_covers_the_largest_calls_of_both_sides() -> None:
    draws = RunConfig()
    assert draws.error_buffer == 2.0 * 256 * 8
    inserts = load(None, ["--replay.samples_per_insert", "32"]).config
    assert inserts.error_buffer == 2.0 * 32 * 10 * 16


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("replay.n_step", ["0", "-1", "1001", "1.5"]),
        ("replay.discount", ["0", "-0.1", "1.001", "nan", "inf"]),
        ("replay.priority_exponent", ["-0.1", "1.1", "nan"]),
        ("replay.samples_per_insert", ["-1", "inf", "nan"]),
        ("learner.checkpoint_period_s", ["0", "inf"]),
        ("learner.max_updates", ["0"]),
        ("actor.chunk_steps", ["0"]),
        ("actor.on_full", ["wait"]),
        ("actor.metrics_port", ["65536", "-1"]),
        ("env.lanes", ["0"]),
        ("run.name", ["a/b", "''"]),
        ("td3.hidden_sizes", ["[]"]),
        ("algorithm.name", ["ppo"]),
        ("run.folder", ["''"]),
        ("run.seed", ["-1", "2147483648"]),
        ("replay.capacity", ["1000000000001", "1e30"]),
        ("replay.samples_per_insert", ["1000001"]),
    ],
)
def test_impossible_values_are_refused_by_key_and_origin(key: str, values: Sequence[str]) -> None:
    for value in values:
        if (key, value) == ("run.name", "''"):
            continue
        assert re.match(rf"{re.escape(key)} = .* \(flag --{re.escape(key)}\): ", _sentence(f"--{key}", value)), value


@pytest.mark.parametrize("sizes", ["[0]", "[64, -1]", "[65537]", "[1.5]"])
@pytest.mark.parametrize("algorithm", ["td3", "dqn"])
def test_layers_have_a_width_that_a_network_can_have(algorithm: str, sizes: str) -> None:
    sentence = _sentence(f"--{algorithm}.hidden_sizes", sizes)
    assert re.match(rf"{algorithm}\.hidden_sizes\.\d = .* \(flag --{algorithm}\.hidden_sizes\): ", sentence)


@pytest.mark.parametrize("name", [".", "..", "a" * 101])
def test_a_name_is_one_of_a_folder(name: str) -> None:
    assert "run.name" in _sentence("--run.name", name)
    assert "flag --run.name" in _sentence("--run.name", name)


@pytest.mark.parametrize("device", ["3", "mps", "gpu", "cuda:", "cuda:x", "CUDA", "''", "cuda:0\n"])
def test_what_is_no_device_is_refused(device: str) -> None:
    assert "is no device; write cpu, cuda, or cuda:N" in _sentence("--learner.device", device)


@pytest.mark.parametrize("device", ["cpu", "cuda", "cuda:1"])
def test_devices_of_torch_are_taken(device: str) -> None:
    assert load(None, ["--learner.device", device]).config.learner.device == device


def test_noise_that_would_fall_along_the_ladder_is_refused() -> None:
    sentence = _sentence("--td3.noise_min", "0.9")
    assert "td3.noise_min = 0.9 is larger than td3.noise_max = 0.8" in sentence
    assert "(td3.noise_min: flag --td3.noise_min)" in sentence
    assert load(None, ["--td3.noise_min", "0.8"]).config.td3.noise_min == 0.8


def test_an_index_beyond_the_actors_is_refused() -> None:
    assert "the index runs from 0 to count - 1 (actor.index: flag --actor.index)" in _sentence("--actor.index", "2")
    assert load(None, ["--actor.index", "1"]).config.actor.index == 1


@pytest.mark.parametrize("section", ["replay", "learner", "evaluator", "actor"])
@pytest.mark.parametrize("address", ["replay.addresses", "learner.address"])
def test_metrics_on_the_port_of_an_address_are_refused(section: str, address: str) -> None:
    flags = [f"--{address}", "127.0.0.1:9500", f"--{section}.metrics_port"]
    sentence = _sentence(*flags, "9500")
    assert f"{section}.metrics_port = 9500 is the port of {address} = 127.0.0.1:9500 too" in sentence
    load(None, [*flags, "9501"])


def test_a_metrics_port_that_nobody_set_is_in_nobodys_way() -> None:
    load(None, ["--replay.addresses", "127.0.0.1:9401"])  # `shoal up` takes a free one for the metrics
    load(None, ["--replay.addresses", "127.0.0.1:0", "--replay.metrics_port", "0"])


def test_the_ends_of_the_ranges_are_allowed() -> None:
    load(None, ["--run.seed", "2147483647", "--run.name", "a" * 100, "--td3.hidden_sizes", "[1, 65536]"])
    config = load(None, ["--replay.n_step", "1", "--replay.discount", "1", "--replay.priority_exponent", "0"]).config
    assert (config.replay.n_step, config.replay.discount, config.replay.priority_exponent) == (1, 1.0, 0.0)


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.1:", ":7401", "127.0.0.1:70000", "127.0.0.1:http", ""])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"{address!r} is no address; write HOST:PORT")):
        check_address(address)


@pytest.mark.parametrize(
    ("address", "on_loopback"),
    [
        *((address, False) for address in ("0.0.0.0:7401", "10.0.0.1:7401", "example.org:7401", "[::]:7401")),
        *((address, True) for address in ("127.0.0.1:7401", "localhost:0", "[::1]:7401")),
    ],
)
def test_loopback_is_told_from_what_others_reach(address: str, on_loopback: bool) -> None:
    assert check_address(address) == address
    assert is_loopback(address) == on_loopback
    config = load(None, ["--learner.address", address, "--replay.listen", address]).config
    assert (config.learner.listens_at, config.replay.listens_at) == (address, address)
    assert config.replay.addresses == ("127.0.0.1:7401",)


@pytest.mark.parametrize("address", ["127.0.0.1:7401", "localhost:0", "[::1]:7401"])
def test_loopback_addresses_are_taken(address: str) -> None:
    assert check_address(address) == address


def test_one_replay_it_is() -> None:
    assert "give one" in _sentence("--replay.addresses", "127.0.0.1:1,127.0.0.1:2")


def test_a_name_is_given_once() -> None:
    named = RunConfig().named("first")
    assert named.run.name == "first"
    assert named.named("second") is named
    assert RunConfig().run.name == ""


@pytest.mark.parametrize("name", ["td3", "dqn"])
def test_the_settings_are_those_of_the_chosen_algorithm(name: str) -> None:
    config: Any = load(None, ["--algorithm.name", name, f"--{name}.hidden_sizes", "[7]"]).config
    assert config.algorithm_settings.hidden_sizes == (7,)
    assert type(config.algorithm_settings).__name__ == f"{name.capitalize()}Settings"


@pytest.mark.parametrize(
    ("text", "written", "period"),
    [
        ("20", 20, PublishPeriod(updates=20)),
        ("1e3", 1000, PublishPeriod(updates=1000)),
        ("2s", "2s", PublishPeriod(seconds=2.0)),
        ('"0.5s"', "0.5s", PublishPeriod(seconds=0.5)),
        ('"20"', 20, PublishPeriod(updates=20)),
    ],
)
def test_a_period_is_a_number_of_updates_or_seconds(text: str, written: Any, period: PublishPeriod) -> None:
    learner = load(None, ["--learner.publish_period", text]).config.learner
    assert learner.publish_period == written
    assert learner.publish_schedule == period


@pytest.mark.parametrize(
    "text", ["0", "-5", "2.5", "0s", "-2s", "2 s", "2m", "soon", "true", "[1]", "nan", "infs", "''"]
)
def test_another_period_is_refused_with_what_it_may_be(text: str) -> None:
    sentence = _sentence("--learner.publish_period", text)
    assert 'is no period; write a number of updates, as in 20, or seconds, as in "2s"' in sentence
    assert sentence.startswith("learner.publish_period (flag ")


def test_a_period_in_seconds_survives_the_resolved_run_file(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(to_toml(load(None, ["--learner.publish_period", "2s"]).config))
    assert load(file).config.learner.publish_schedule == PublishPeriod(seconds=2.0)


def test_an_evaluator_of_an_average_that_nobody_makes_is_refused() -> None:
    sentence = _sentence("--evaluator.parameters", "average")
    assert "evaluator.parameters = 'average' needs an averaged policy" in sentence
    flags = ["--evaluator.parameters", "average", "--learner.average_rate", "0.005"]
    assert load(None, flags).config.evaluator.parameters == "average"


@pytest.mark.parametrize(
    ("flag", "text", "reason"),
    [
        ("learner.average_rate", "1", "it must be less than 1"),
        ("learner.average_rate", "-0.1", "it must be at least 0"),
        ("learner.wire_dtype", "int8", "it must be 'float32', 'float16' or 'bfloat16'"),
    ],
)
def test_rates_and_dtypes_that_are_none_are_refused(flag: str, text: str, reason: str) -> None:
    assert reason in _sentence(f"--{flag}", text)
