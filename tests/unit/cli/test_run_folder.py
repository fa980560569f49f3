from __future__ import annotations

import os
import stat
import subprocess
import sys
import time

import pytest

from services.cli.run_folder import check_resume, config_text, lock_folder, may_change, open_run
from services.common.config.load import load
from services.common.errors import UserError

NOW = time.struct_time((2025, 4, 18, 14, 27, 1, 4, 108, 0))


@pytest.fixture
def run_file(tmp_path):
    file = tmp_path / "my reach.toml"
    file.write_text(f'[run]\nfolder = "{tmp_path}/runs"\n[env]\nlanes = 4\n')
    return file


def opened(target, *overrides, environ=None):
    run = open_run(str(target), overrides, environ or {}, NOW)
    run.close()
    return run


def test_a_run_without_a_name_is_called_after_its_file_and_the_time(run_file, tmp_path):
    run = opened(run_file)
    assert run.name == "my-reach-20250418-142701"
    assert run.folder == tmp_path / "runs" / run.name
    assert not run.resumed
    assert load(run.config_file).config.run.name == run.name


def test_a_run_file_with_a_long_name_makes_a_name_that_a_run_may_have(tmp_path):
    file = tmp_path / f"{'long' * 40}.toml"
    file.write_text(f'[run]\nfolder = "{tmp_path}/runs"\n')
    run = opened(file)
    assert load(run.config_file).config.run.name == run.name
    assert run.name.endswith("-20250418-142701")


def test_two_runs_of_one_second_have_two_folders(run_file):
    assert opened(run_file).folder != opened(run_file).folder


def test_the_config_is_resolved_and_leaves_out_what_is_chosen_at_each_start(run_file):
    run = opened(run_file, "--replay.n_step", "5", "--learner.metrics_port", "9555", environ={"SHOAL_RUN__SEED": "8"})
    written = load(run.config_file)
    assert written.config.replay.n_step == 5
    assert written.config.run.seed == 8
    assert written.config.learner.metrics_port == 9555
    assert not written.is_set("replay.addresses")
    assert not written.is_set("replay.metrics_port")
    assert written.is_set("td3.hidden_sizes")


def test_files_are_closed_to_strangers(run_file):
    run = opened(run_file)
    assert stat.S_IMODE(run.folder.stat().st_mode) & 0o007 == 0


@pytest.mark.parametrize("by_folder", [True, False])
def test_the_same_settings_resume(run_file, by_folder):
    first = opened(run_file, "--run.name", "a")
    again = opened(first.folder) if by_folder else opened(run_file, "--run.name", "a")
    assert again.resumed
    assert again.folder.resolve() == first.folder.resolve()
    assert again.loaded.config == first.loaded.config


def test_what_may_change_may_change(run_file):
    first = opened(run_file, "--run.name", "a")
    flags = [
        "--learner.max_updates",
        "9",
        "--actor.count",
        "1",
        "--report.episodes",
        "3",
        "--evaluator.enabled",
        "false",
    ]
    again = opened(first.folder, *flags)
    assert again.resumed
    assert load(again.config_file).config.learner.max_updates == 9


def test_other_settings_are_refused_each_with_both_values(run_file):
    first = opened(run_file, "--run.name", "a", "--env.kwargs.level", "easy")
    before = first.config_file.read_bytes()
    with pytest.raises(UserError) as refusal:
        opened(run_file, "--run.name", "a", "--env.lanes", "8", "--replay.n_step", "5", "--env.kwargs.gain", "2")
    sentence = str(refusal.value)
    assert "env.lanes = 8 (was 4)" in sentence
    assert "replay.n_step = 5 (was 3)" in sentence
    assert 'env.kwargs.level = not set (was "easy")' in sentence
    assert "env.kwargs.gain = 2 (was not set)" in sentence
    assert "choose a new run.name" in sentence
    assert "\n" not in sentence
    assert first.config_file.read_bytes() == before


def test_a_refused_resume_lets_go_of_the_lock(run_file):
    first = opened(run_file, "--run.name", "a")
    with pytest.raises(UserError):
        opened(first.folder, "--run.seed", "5")
    assert opened(first.folder).resumed


def test_the_rules_name_known_keys_alone():
    keys = [key for key, _value, _origin in load(None).lines()]
    free = {"learner.max_updates", "learner.transport", "replay.data_dir", "replay.metrics_port", "report.video"}
    assert free <= {key for key in keys if may_change(key)}
    assert not any(may_change(key) for key in ("env.lanes", "replay.capacity", "td3.hidden_sizes", "run.seed"))


def test_every_fixed_setting_is_compared():
    before = load(None, ["--run.name", "a"])
    with pytest.raises(UserError, match=r"td3\.noise_max = 0\.5 \(was 0\.8\); set it back"):
        check_resume(before, load(None, ["--run.name", "a", "--td3.noise_max", "0.5"]))


def test_a_folder_of_something_else_is_refused_and_untouched(run_file, tmp_path):
    other = tmp_path / "runs" / "a"
    other.mkdir(parents=True)
    (other / "thesis.tex").write_text("x")
    with pytest.raises(UserError, match=r"is not empty and holds no config\.toml \(there is 'thesis\.tex'\)"):
        opened(run_file, "--run.name", "a")
    assert [entry.name for entry in other.iterdir()] == ["thesis.tex"]


def test_an_empty_folder_is_taken(run_file, tmp_path):
    (tmp_path / "runs" / "a").mkdir(parents=True)
    assert not opened(run_file, "--run.name", "a").resumed


def test_a_folder_without_a_config_is_no_run(tmp_path):
    with pytest.raises(UserError, match=r"a folder without a config\.toml"):
        opened(tmp_path)


def test_a_moved_runs_folder_is_found_where_it_is(run_file, tmp_path):
    first = opened(run_file, "--run.name", "a")
    (tmp_path / "elsewhere").mkdir()
    moved = first.folder.rename(tmp_path / "elsewhere" / "a")
    assert load(opened(moved).config_file).config.run.folder == str(tmp_path / "elsewhere")


def test_a_renamed_folder_is_refused(run_file):
    first = opened(run_file, "--run.name", "a")
    with pytest.raises(UserError, match="rename the folder back"):
        opened(first.folder.rename(first.folder.with_name("b")))


@pytest.mark.parametrize("name", [".", ".."])
def test_names_that_are_no_folders_are_refused(run_file, name):
    with pytest.raises(UserError, match="is no name of a folder"):
        opened(run_file, "--run.name", name)


def test_a_file_in_the_way_is_a_sentence(run_file, tmp_path):
    (tmp_path / "runs").write_text("x")
    with pytest.raises(UserError, match="cannot write"):
        opened(run_file)


def test_a_full_disk_is_a_sentence(run_file, monkeypatch):
    def no_room(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_room)
    with pytest.raises(UserError, match="No space left on device"):
        opened(run_file)


def test_a_second_launcher_is_refused_at_once(run_file, monkeypatch):
    run = open_run(str(run_file), ["--run.name", "a"], {}, NOW)
    monkeypatch.setattr("services.cli.run_folder.time.sleep", lambda _seconds: pytest.fail("it waits"))
    with pytest.raises(UserError, match=f"running already, watched by process {os.getpid()}"):
        open_run(str(run_file), ["--run.name", "a"], {}, NOW)
    run.close()


def test_processes_of_a_dead_launcher_are_waited_for(tmp_path):
    # The launcher dies at once; the child that inherited the lock lives a little longer.
    script = (
        "import subprocess, sys\nfrom pathlib import Path\nfrom services.cli.run_folder import lock_folder\n"
        "lock = lock_folder(Path(sys.argv[1]))\n"
        "subprocess.Popen([sys.executable, '-c', 'input()'], pass_fds=[lock])\n"
    )
    read, write = os.pipe()
    with os.fdopen(read, "rb") as stdin:
        subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True, stdin=stdin)
    with pytest.raises(UserError, match="processes of an earlier start"):
        lock_folder(tmp_path, patience_s=0.1)
    os.write(write, b"\n")
    os.close(write)
    os.close(lock_folder(tmp_path))


def test_the_config_says_who_wrote_it():
    assert config_text(load(None)).startswith("# Written by `shoal up`")
