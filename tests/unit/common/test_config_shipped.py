from __future__ import annotations

from pathlib import Path

import pytest

from services.common.config.load import ConfigError, load
from services.common.config.shipped import find_run_file, shipped_folders


def test_a_name_finds_the_file_that_comes_with_shoal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("cartpole", "cartpole.toml"):
        assert load(Path(name)).config.algorithm.name == "dqn"
    with pytest.raises(
        ConfigError, match=r"no run file 'nothing'; .* comes with shoal \(arm_joint, arm_reach, cartpole"
    ):
        load(Path("nothing"))


def test_the_users_own_file_comes_first_and_a_path_is_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
        (folder / "arm.toml").touch()
    folders = [first, second]
    assert find_run_file(Path("arm"), folders) == first / "arm.toml"
    (first / "arm.toml").unlink()
    assert find_run_file(Path("arm.toml"), folders) == second / "arm.toml"
    assert find_run_file(Path("other/arm.toml"), folders) == Path("other/arm.toml")
    (tmp_path / "arm").touch()
    assert find_run_file(Path("arm"), folders) == Path("arm")


def test_every_shipped_file_is_sound() -> None:
    files = sorted(shipped_folders()[0].glob("*.toml"))
    assert len(files) >= 3
    for file in files:
        load(file)
