"""`make deploy-check`: what it lacks it says, and what is wrong it does not let pass."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Callable

import pytest

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
pytestmark = pytest.mark.skipif(
    not (BIN / "check-jsonschema").exists() or not (BIN / "shoal").exists(),
    reason="NOT TESTED: deploy_check.sh; shoal and check-jsonschema are not installed beside this Python",
)


def needs(tool: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(tool) is None, reason=f"NOT TESTED: there is no {tool}")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "deploy", tmp_path / "deploy")
    # One alert's test is enough here, and takes a second; all of them are what `make deploy-check` runs.
    file = tmp_path / "deploy" / "prometheus" / "alerts_test.yml"
    all_tests = yaml.safe_load(file.read_text(encoding="utf-8"))
    kept = [test for test in all_tests["tests"] if test["name"] == "ShoalConservationBroken"]
    assert kept
    file.write_text(yaml.safe_dump({**all_tests, "tests": kept}), encoding="utf-8")
    return tmp_path


def check(checkout: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/bin/bash", "deploy/make/deploy_check.sh", str(BIN)],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'proto'}", **environ},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new), encoding="utf-8")


def test_the_shipped_files_pass(checkout: Path) -> None:
    done = check(checkout)
    assert done.returncode == 0, done.stderr
    assert "compose: deploy/compose.yaml" in done.stdout


def test_a_tool_that_is_missing_is_said_and_fails_where_it_is_required(checkout: Path) -> None:
    tools = checkout / "tools"
    tools.mkdir()
    for name in ("mktemp", "rm", "cat", "sed", "basename", "grep", "cp", "mkdir"):
        (tools / name).symlink_to(str(shutil.which(name)))
    done = check(checkout, PATH=str(tools))
    assert done.returncode == 0, done.stderr
    for tool in ("promtool", "amtool", "systemd-analyze"):
        assert f"there is no {tool}" in done.stderr
    assert done.stderr.count("NOT TESTED") == 3
    assert check(checkout, PATH=str(tools), SHOAL_REQUIRE_DEPLOY_TOOLS="1").returncode == 1


def _misspell_an_expression(deploy: Path) -> None:
    edit(deploy / "prometheus" / "alerts.yml", "shoal_replay_conservation_error_steps != 0", "sum(")


def _make_an_alert_deaf(deploy: Path) -> None:
    edit(deploy / "prometheus" / "alerts.yml", "shoal_replay_conservation_error_steps != 0", "vector(0) > 1")


def _misspell_a_key_of_prometheus(deploy: Path) -> None:
    edit(deploy / "prometheus" / "prometheus.yml", "scrape_interval", "scrape_interwal")


def _misspell_a_key_of_alertmanager(deploy: Path) -> None:
    edit(deploy / "prometheus" / "alertmanager.example.yml", "group_wait", "group_weight")


def _misspell_a_key_of_a_unit(deploy: Path) -> None:
    edit(deploy / "systemd" / "shoal-learner.service", "RestartSec=", "RestartSek=")


def _open_a_unit(deploy: Path) -> None:
    unit = deploy / "systemd" / "shoal-learner.service"
    kept = [line for line in unit.read_text(encoding="utf-8").splitlines() if not line.startswith(("Protect", "Syst"))]
    unit.write_text("\n".join(kept) + "\n", encoding="utf-8")


def _misspell_a_key_of_compose(deploy: Path) -> None:
    edit(deploy / "compose.yaml", "stop_grace_period", "stop_grace_perio")


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        pytest.param(_misspell_an_expression, "alerts.yml", marks=needs("promtool")),
        pytest.param(_make_an_alert_deaf, "do not fire", marks=needs("promtool")),
        pytest.param(_misspell_a_key_of_prometheus, "prometheus.yml", marks=needs("promtool")),
        pytest.param(_misspell_a_key_of_alertmanager, "alertmanager.example.yml", marks=needs("amtool")),
        pytest.param(_misspell_a_key_of_a_unit, "verify complains", marks=needs("systemd-analyze")),
        pytest.param(_open_a_unit, "is exposed", marks=needs("systemd-analyze")),
        pytest.param(_misspell_a_key_of_compose, "compose.yaml is no compose file"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_what_is_wrong_fails(spoil: Callable[[Path], None], complaint: str, checkout: Path) -> None:
    spoil(checkout / "deploy")
    done = check(checkout)
    assert done.returncode == 1
    assert complaint in done.stderr
