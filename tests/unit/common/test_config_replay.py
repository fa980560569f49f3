from __future__ import annotations

from pathlib import Path

import pytest

from services.common.config.load import ConfigError, load, to_toml


def test_the_size_of_the_table_is_chosen_once(tmp_path: Path) -> None:
    assert load(None).config.replay.capacity_rows == 1_000_000
    assert load(None, ["--replay.capacity", "1e5"]).config.replay.capacity_rows == 100_000
    loaded = load(None, ["--replay.memory", "8GiB"])
    assert loaded.config.replay.memory == 8 << 30
    assert loaded.config.replay.capacity_rows is None
    with pytest.raises(ConfigError, match=r"capacity = 5000 and replay\.memory = 1\.0GiB both say how large"):
        load(None, ["--replay.memory", "1GiB", "--replay.capacity", "5000"])
    # What was resolved can be read again: neither of the two comes in by a default.
    for flags in ([], ["--replay.memory", "8GiB"], ["--replay.capacity", "5000"]):
        file = tmp_path / "config.toml"
        first = load(None, flags)
        file.write_text(to_toml(first.config))
        assert load(file).config == first.config


def test_a_size_that_holds_no_batch_is_refused_where_it_is_known() -> None:
    with pytest.raises(ConfigError, match=r"learner\.batch_size = 256 is larger than replay\.capacity = 100"):
        load(None, ["--replay.capacity", "100"])
    with pytest.raises(
        ConfigError, match=r"min_size_to_sample = 1000000 can never be reached: replay\.capacity = 1000000"
    ):
        load(None, ["--replay.min_size_to_sample", "1e6"])
    assert load(None, ["--replay.min_size_to_sample", "1e6", "--replay.memory", "1GiB"]).config.replay.memory == 1 << 30
