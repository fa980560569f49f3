from __future__ import annotations

from pathlib import Path
from typing import Any, Callable, Dict, Sequence

import pytest

from services.common.config.load import ConfigError, LoadedConfig, known_keys, load, to_toml
from services.common.config.run import RunConfig
from services.common.errors import EXIT_USER

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def make(text: str) -> Path:
        file = tmp_path / "arm.toml"
        file.write_text(text, encoding="utf-8")
        return file

    return make


def _sentence(file: Any = None, flags: Sequence[str] = (), environ: Any = None) -> str:
    with pytest.raises(ConfigError) as caught:
        load(file, flags, environ)
    assert caught.value.exit_code == EXIT_USER
    return str(caught.value)


def _origins(loaded: LoadedConfig) -> Dict[str, str]:
    return {key: origin for key, _value, origin in loaded.lines()}


def test_later_sources_win_and_each_value_knows_its_origin(write: Write) -> None:
    file = write("[learner]\nbatch_size = 10\nmax_updates = 10\npublish_period = 10\n")
    environ = {"SHOAL_LEARNER__MAX_UPDATES": "20", "SHOAL_LEARNER__PUBLISH_PERIOD": "20", "HOME": "/"}
    loaded = load(file, ["--learner.publish_period", "30"], environ)
    learner, origins = loaded.config.learner, _origins(loaded)
    assert (learner.batch_size, learner.max_updates, learner.publish_period) == (10, 20, 30)
    assert learner.batches_per_sample == RunConfig().learner.batches_per_sample
    assert origins["learner.batch_size"] == "arm.toml"
    assert origins["learner.max_updates"] == "variable SHOAL_LEARNER__MAX_UPDATES"
    assert origins["learner.publish_period"] == "flag --learner.publish_period"
    assert origins["learner.batches_per_sample"] == "default"
    assert loaded.is_set("learner.batch_size")
    assert not loaded.is_set("learner.batches_per_sample")


@pytest.mark.parametrize("flags", [["--replay.capacity", "1e5"], ["--replay.capacity=1e5"]])
def test_a_flag_is_written_with_a_blank_or_with_an_equals_sign(flags: Sequence[str]) -> None:
    capacity = load(None, flags).config.replay.capacity
    assert capacity == 100_000
    assert isinstance(capacity, int)


def test_dashes_in_a_flag_are_underscores() -> None:
    assert load(None, ["--learner.batch-size", "64"]).config.learner.batch_size == 64


@pytest.mark.parametrize("name", ["12", "1e6", "2026-01-31", "a-b", "07"])
def test_a_name_that_looks_like_a_number_or_a_date_stays_a_name(name: str) -> None:
    loaded = load(None, ["--run.name", name]).config.run.name
    assert isinstance(loaded, str)
    assert loaded in (name, "1000000.0")


def test_tables_lists_and_lone_names_can_be_given_as_flags() -> None:
    flags = ["--env.kwargs.size", "3", "--td3.hidden_sizes", "[8, 4]", "--replay.addresses", "127.0.0.1:1"]
    config = load(None, flags).config
    assert config.env.kwargs == {"size": 3}
    assert config.td3.hidden_sizes == (8, 4)
    assert config.replay.addresses == ("127.0.0.1:1",)


def test_the_resolved_run_file_reads_back_as_itself(write: Write) -> None:
    flags = ["--env.kwargs.name", "x", "--env.kwargs.nested.deep", "[1, 2.5]", "--actor.index", "1", "--run.name", "r"]
    first = load(None, flags)
    second = load(write(to_toml(first.config)))
    assert second.config == first.config
    assert to_toml(second.config) == to_toml(first.config)


def test_every_default_is_valid_and_every_key_is_known() -> None:
    loaded = load(None)
    assert {path[0] for path in known_keys()} == set(RunConfig.model_fields)
    assert {tuple(key.split(".")) for key, _, _ in loaded.lines()} <= set(known_keys())
    assert set(_origins(loaded).values()) == {"default"}


def test_an_unknown_key_is_named_with_its_origin_and_the_nearest_known_one(write: Write) -> None:
    sentence = _sentence(write("[learner]\nbatchsize = 3\n"))
    assert sentence == "arm.toml: unknown key 'learner.batchsize'; did you mean 'learner.batch_size'?"
    sentence = _sentence(None, ["--actor.batch_size", "3"])
    assert sentence == "flag --actor.batch_size: unknown key 'actor.batch_size'; did you mean 'learner.batch_size'?"
    assert "shoal config show" in _sentence(write("[zebra]\nqqq = 1\n"))


def test_a_wrong_type_names_key_value_and_origin(write: Write) -> None:
    assert _sentence(write('[learner]\nbatch_size = "many"\n')).startswith(
        "learner.batch_size = 'many' (arm.toml): a whole number is needed"
    )
    sentence = _sentence(None, (), {"SHOAL_REPLAY__CAPACITY": "1.5"})
    assert sentence.startswith("replay.capacity = 1.5 (variable SHOAL_REPLAY__CAPACITY):")


def test_all_mistakes_are_told_at_once(write: Write) -> None:
    lines = _sentence(write("[learner]\nbatch_size = 0\n"), ["--env.lanes", "0"]).split("\n")
    assert len(lines) == 2
    assert any(line.startswith("learner.batch_size = 0 (arm.toml): ") for line in lines)
    assert any(line.startswith("env.lanes = 0 (flag --env.lanes): ") for line in lines)


def test_a_key_under_a_value_is_refused() -> None:
    sentence = _sentence(None, ["--run.name", "x", "--run.name.deep", "1"])
    assert "run.name.deep (flag --run.name.deep)" in sentence
    assert "'name' is a value, not a section" in sentence


def test_toml_that_is_none_is_told_with_its_line(write: Write) -> None:
    sentence = _sentence(write("[run]\nname = \n"))
    assert "arm.toml' is not TOML" in sentence
    assert "line 2" in sentence


def test_a_missing_or_unreadable_file_is_told(tmp_path: Path) -> None:
    missing = tmp_path / "none.toml"
    assert f"there is no run file {str(missing)!r}" in _sentence(missing)
    assert _sentence(tmp_path) == f"{str(tmp_path)!r} is a folder; give the path of a .toml file, see configs/"
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe")
    assert f"the run file {str(binary)!r} is not a text file" in _sentence(binary)
    looping = tmp_path / "looping.toml"
    looping.symlink_to(looping)
    sentence = _sentence(looping)
    assert sentence.startswith(f"the run file {str(looping)!r} cannot be read: ")
    assert sentence.count("looping") == 1


def test_a_byte_order_mark_is_no_part_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "arm.toml"
    file.write_bytes(b"\xef\xbb\xbf[run]\nseed = 4\n")
    assert load(file).config.run.seed == 4


@pytest.mark.parametrize("second", [["--run.seed", "1"], ["--run.seed=1"], ["--run.seed=2"]])
def test_a_flag_that_stands_twice_is_refused(second: Sequence[str]) -> None:
    assert _sentence(None, ["--run.seed", "1", *second]) == "flag --run.seed is given twice; leave one of them out"
    assert "given twice" in _sentence(None, ["--learner.batch-size", "64", "--learner.batch_size", "64"])


@pytest.mark.parametrize(
    ("flag", "value", "why"),
    [
        ("learner.batch_size", "{ a = 1 }", "a table stands where one value must be: a whole number is needed"),
        ("learner.address", "{}", "a table stands where one value must be: a string is needed"),
        ("replay.addresses", "[]", "the list is empty; at least one value is needed"),
        ("td3.hidden_sizes", "7", "a list is needed, as in [64, 64]"),
        ("run.name", "a b", "it may hold letters from A to Z, digits, '.', '_' and '-' alone"),
        ("replay.memory", "lots", 'a size in bytes is needed, as in "8GiB"'),
        ("report.video", "maybe", "true or false is needed"),
        ("env.kwargs", "3", "a table is needed, as in { name = 1 }"),
        ("actor.on_full", "wait", "it must be 'block' or 'drop_oldest'"),
        ("replay.discount", "2", "it must be at most 1"),
        ("td3.policy_learning_rate", "0", "it must be greater than 0"),
    ],
)
def test_the_reason_is_in_words_of_the_run_file(flag: str, value: str, why: str) -> None:
    sentence = _sentence(None, [f"--{flag}", value])
    assert sentence.startswith(f"{flag} = ")
    assert sentence.endswith(f" (flag --{flag}): {why}")


def test_a_value_where_a_section_stands_is_told(write: Write) -> None:
    assert _sentence(write("learner = 3\n")) == (
        "learner = 3 (arm.toml): it is a section, not a value: set the keys in it"
    )


def test_a_wrong_entry_of_a_list_is_told_once() -> None:
    assert _sentence(None, ["--td3.hidden_sizes", '["a"]']) == (
        "td3.hidden_sizes.0 = 'a' (flag --td3.hidden_sizes): a whole number is needed"
    )


@pytest.mark.parametrize("flag", ["run.seed", "--seed", "--seed=run.seed", "-x"])
def test_what_is_no_flag_is_told(flag: str) -> None:
    assert f"{flag!r} is no flag of the run file" in _sentence(None, [flag, "1"])


def test_a_flag_without_a_value_is_told() -> None:
    assert "flag --run.seed has no value" in _sentence(None, ["--run.seed"])
