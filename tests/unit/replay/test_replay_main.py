from __future__ import annotations

import io
from pathlib import Path
from typing import Any, List, cast

import pytest

from services.common.config.load import load
from services.common.log import Log, make_log
from services.common.ring_layout import column_file
from services.common.waits import Waits
from services.replay.__main__ import Tables, make_dump, table_settings
from services.replay.rate_limiter import make_limiter
from services.replay.sampler_settings import SamplerSettings
from services.replay.waiting import REASONS
from tests.fakes import FakeLog

QUEUE = ["--replay.selector", "fifo", "--replay.max_times_sampled", "1"]


def test_the_tables_settings_are_those_of_the_run_file() -> None:
    flags = "--replay.priority_rule td_error_visits --replay.td_weight 0.3 --replay.max_times_sampled 8"
    flags += " --replay.freshness_half_life_updates 5000 --replay.priority_exponent 0.7 --actor.count 3 --env.lanes 5"
    settings = table_settings(load(None, flags.split()).config, 1000)
    assert settings.sampling == SamplerSettings("prioritized", 0.7, "td_error_visits", 0.3, 5000.0, 8)
    assert settings.max_open_steps == 3 * 5 * 3


@pytest.mark.parametrize("flags", [[], QUEUE, [*QUEUE, "--replay.samples_per_insert", "1"]])
def test_what_the_run_file_allows_the_limiter_allows(flags: List[str]) -> None:
    config = load(None, flags).config
    make_limiter(table_settings(config, config.replay.capacity_rows or 0))


def test_dumps_are_off_unless_there_is_a_folder(tmp_path: Path) -> None:
    log = make_log(io.StringIO())
    assert make_dump(load(None).config, log) is None
    flags = ["--replay.dump_dir", str(tmp_path)]
    assert make_dump(load(None, flags).config, log) is not None
    assert make_dump(load(None, [*flags, "--replay.max_dumps", "0"]).config, log) is None


def test_a_ring_that_came_back_damaged_is_told(
    tmp_path: Path, schema: Any, feed: Any, another_boot: Any, log: FakeLog
) -> None:
    flags = ["--replay.data_dir", str(tmp_path), "--run.name", "x"]
    config = load(None, flags).config
    tables = Tables(config, nonce="5", log=cast(Log, log), waits=Waits(REASONS))
    table = tables.make(schema)
    feed(table, 3)
    assert table.folder is not None
    table.folder.close()
    rewards = column_file(tmp_path / "x", "reward")
    data = bytearray(rewards.read_bytes())
    data[4] ^= 1  # of the first chunk, 8 steps
    rewards.write_bytes(data)
    another_boot()
    table = Tables(config, nonce="5", log=cast(Log, log), waits=Waits(REASONS)).reopen()
    assert table is not None
    (told,) = [values for level, _, values in log.lines if level == "warning"]
    assert (told["chunks"], told["log_segments"], told["reset_steps"]) == (1, 0, 8)
    assert table.folder is not None
    table.folder.close()
    log.lines.clear()
    assert Tables(config, nonce="5", log=cast(Log, log), waits=Waits(REASONS)).reopen() is not None
    assert log.events("warning") == []  # told once
