from __future__ import annotations

import sys

from hypothesis import given
from hypothesis import strategies as st

from services.cli.config_command import show, toml_value
from services.common.config.load import load

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# Surrogates are no text that a file can hold.
TEXT = st.text(st.characters(blacklist_categories=("Cs",)))
PLAIN = st.booleans() | st.integers(-(2**62), 2**62) | st.floats(allow_nan=False) | TEXT
VALUES = st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3))


@given(VALUES)
def test_a_value_is_written_as_toml_reads_it(value):
    line = f"value = {toml_value(value)}"
    assert "\n" not in line
    assert tomllib.loads(line)["value"] == value


def test_what_is_shown_is_a_run_file_of_the_same_settings(tmp_path):
    file = tmp_path / "reach.toml"
    file.write_text('[env]\nlanes = 4\n[env.kwargs]\nlevel = "hard"\nsizes = [1, 2]\n[td3]\nhidden_sizes = [64]\n')
    loaded = load(file, ["--run.name", "a"])
    shown = tmp_path / "shown.toml"
    shown.write_text(show(loaded))
    assert load(shown).config == loaded.config


def test_origins_are_aligned():
    columns = {line.index("  # ") for line in show(load(None)).splitlines() if "  # " in line and len(line) < 60}
    starts = {line.index("# default") for line in show(load(None)).splitlines() if "# default" in line}
    assert columns
    assert len(starts) == 1


def test_a_value_that_is_not_set_is_a_comment():
    assert any(line.startswith("# index is not set") for line in show(load(None)).splitlines())
