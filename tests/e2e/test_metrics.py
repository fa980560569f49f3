"""docs/metrics.md and the metrics of real runs: each is what the other says."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Callable, Dict, List, Optional, Set

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from services.common.metrics import Metrics
from services.common.security.certificate_files import CertificateFiles
from tests.e2e.launcher import Launcher, wait_for
from tests.e2e.metrics_page import (
    ALWAYS,
    PROCESS,
    SERVICES,
    Row,
    documented,
    documented_waits,
    scrape,
    scraped,
    waits_of,
)

Up = Callable[..., Launcher]

# What the page says of when a metric is there.
TABLE = "once an actor has come"
ITEMS = "once there are items"
TRAINING = "once training begins"
ACTING = "once acting begins"
EVALUATED = "after the first evaluation"
SUCCESS = "after the first evaluation, where the environment reports success"
RATIO = "with `replay.samples_per_insert`"
BOUND = "with `staleness.max_lag_updates`"
FOLDER = "with `replay.data_dir`, as under `shoal up`"
HELPERS = "with helpers"
TD3, DQN = "with `td3`", "with `dqn`"
TLS = "with a certificate"
BOTH_RUNS = {ALWAYS, TABLE, ITEMS, TRAINING, ACTING, EVALUATED, RATIO, FOLDER}
CONTINUOUS = BOTH_RUNS | {SUCCESS, BOUND, HELPERS, TD3}
DISCRETE = BOTH_RUNS | {DQN}


def endpoints(folder: Path, names: List[str]) -> Dict[str, str]:
    """Where each process of a run serves its metrics, by its log."""

    def look() -> Optional[Dict[str, str]]:
        found = {}
        for name in names:
            log = folder / "logs" / f"{name}.log"
            port = re.search(r"metrics_port=(\d+)", log.read_text()) if log.exists() else None
            if port is None:
                return None
            found[name] = f"127.0.0.1:{port.group(1)}"
        return found

    return wait_for(look, f"metrics of {', '.join(names)}", 90)


def service_of(name: str) -> str:
    return re.sub(r"-\d+$", "", name)


def expected(service: str, conditions: Set[str]) -> Dict[str, Row]:
    return {
        name: row for name, row in documented().items() if row.section in (service, PROCESS) and row.there in conditions
    }


def compare(address: str, service: str, conditions: Set[str]) -> None:
    """Wait until all that the page promises is served, then nothing else may be, and all must be as described."""
    promised = expected(service, conditions)

    def look() -> Optional[Dict[str, Row]]:
        rows = scraped(scrape(address))
        return rows if not promised.keys() - rows.keys() else None

    try:
        rows = wait_for(look, f"all metrics of {service}", 120)
    except AssertionError:
        missing = promised.keys() - scraped(scrape(address)).keys()
        raise AssertionError(f"documented, and not served by {service}: {sorted(missing)}") from None
    assert not rows.keys() - promised.keys(), "served, and not documented"
    for name, row in rows.items():
        assert (row.kind, row.meaning) == (promised[name].kind, promised[name].meaning), name
        if row.labels:  # a family without a sample has none
            assert row.labels == promised[name].labels, name
    assert set(waits_of(scrape(address), service)) == set(documented_waits()[service])


def values(text: str) -> Dict[str, float]:
    """Samples by name and labels, without the run."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = [value for name, value in sorted(sample.labels.items()) if name != "run"]
            found[" ".join([sample.name, *labels])] = sample.value
    return found


def _between_updates(address: str) -> Optional[Dict[str, float]]:
    """The learner's page, if no update ended while it was made."""
    found = values(scrape(address))
    items, updates = (found[f"shoal_learner_{name}_total"] for name in ("trained_items", "updates"))
    return found if items == 128 * updates > 0 else None


@pytest.mark.timeout(400)
def test_a_run_with_a_helper_and_a_bound_serves_what_the_page_says(up: Up, tmp_path: Path) -> None:
    up(
        *("configs/arm_reach.toml", "--run.name", "told", "--helper.count", "1", "--actor.count", "2"),
        *("--staleness.max_lag_updates", "2000", "--learner.max_updates", "1000000", "--evaluator.episodes", "10"),
        *("--learner.checkpoint_period_s", "1", "--log.level", "debug", "--gradients.lease_s", "5"),
    )
    names = ["replay", "learner", "helper-0", "evaluator", "actor-0", "actor-1"]
    found = endpoints(tmp_path / "runs" / "told", names)
    for name, address in found.items():
        compare(address, service_of(name), CONTINUOUS)

    replay, learner = (
        values(scrape(found["replay"])),
        wait_for(partial(_between_updates, found["learner"]), "a page on which items and updates agree", 20),
    )
    helper, actor = values(scrape(found["helper-0"])), values(scrape(found["actor-0"]))
    assert replay["shoal_replay_conservation_error_steps"] == 0
    assert replay["shoal_replay_samples_per_insert_target"] == 32
    assert replay["shoal_replay_limiter_bound_samples sample"] < 0 < replay["shoal_replay_limiter_bound_samples insert"]
    assert abs(replay["shoal_replay_limiter_surplus_samples"]) <= replay["shoal_replay_limiter_bound_samples insert"]
    assert 0 < replay["shoal_replay_fill_ratio"] <= 1
    assert 1 <= replay["shoal_replay_effective_items"] <= replay["shoal_replay_items"] * 1.05
    assert replay["shoal_replay_priority p50"] <= replay["shoal_replay_priority max"]
    assert replay["shoal_replay_actor_acknowledged_steps_total actor-1"] > 0
    assert replay["shoal_replay_actor_silent_seconds actor-0"] < 30
    assert replay["shoal_replay_living_actors"] == 2
    assert replay["shoal_replay_inserted_bytes_total"] > 100 * replay["shoal_replay_acknowledged_steps_total"] / 10
    assert replay["shoal_replay_chunk_log_bytes"] > 0
    assert replay["shoal_replay_disk_free_bytes"] > 0
    assert learner["shoal_learner_lag_bound_updates"] == 2000
    assert learner["shoal_learner_bound_breaches_total"] == 0
    assert learner["shoal_learner_run_state training"] == 1
    assert learner["shoal_learner_checkpoint_age_seconds"] < 60
    assert learner["shoal_learner_published_versions_total"] > 0
    assert learner["shoal_learner_parameters_bytes"] > 1000
    assert learner["shoal_learner_waited_seconds_total schema"] > 0
    assert learner["shoal_learner_waited_seconds_total gradients"] > 0
    assert helper["shoal_helper_waited_seconds_total parameters"] > 0
    assert helper["shoal_helper_waited_seconds_total chief"] > 0
    assert actor["shoal_actor_waited_seconds_total env"] > 0
    assert actor["shoal_actor_waited_seconds_total parked"] > 0  # for the first parameters
    assert actor["shoal_actor_sent_steps_total"] > 0
    assert actor["shoal_actor_sent_bytes_total"] > actor["shoal_actor_sent_steps_total"]
    assert actor["shoal_actor_parked"] == 0
    assert actor["shoal_actor_lanes"] == 16

    chunk_has_one_name_in_all_logs(tmp_path / "runs" / "told" / "logs")


def chunk_has_one_name_in_all_logs(logs: Path) -> None:
    named = {
        name: set(re.findall(r"chunk=(actor-0/[0-9a-f]{16}/\d+)", (logs / f"{name}.log").read_text()))
        for name in ("replay", "actor-0")
    }
    assert len(named["replay"] & named["actor-0"]) > 5


@pytest.mark.timeout(300)
def test_a_run_without_a_bound_and_with_choices_serves_what_the_page_says(up: Up, tmp_path: Path) -> None:
    pytest.importorskip("gymnasium")
    up(
        *("configs/cartpole.toml", "--run.name", "choices", "--actor.count", "1"),
        *("--learner.max_updates", "1000000", "--evaluator.episodes", "5"),
    )
    names = ["replay", "learner", "evaluator", "actor-0"]
    for name, address in endpoints(tmp_path / "runs" / "choices", names).items():
        compare(address, service_of(name), DISCRETE)


@pytest.mark.parametrize("service", SERVICES)
def test_the_metric_of_a_certificate_is_on_the_page(service: str) -> None:
    metrics = Metrics(service, "run")
    metrics.certificate(CertificateFiles())
    name = f"shoal_{service}_certificate_expires_timestamp_seconds"
    row, told = scraped(generate_latest(metrics.registry).decode())[name], documented()[name]
    assert told.there == TLS
    assert (told.kind, told.labels, told.meaning) == (row.kind, row.labels, row.meaning)


def test_the_page_names_no_condition_that_is_not_tested() -> None:
    assert {row.there for row in documented().values()} == CONTINUOUS | DISCRETE | {TLS}
