"""`shoal up`: a whole run on this machine, from its config to its report."""

from __future__ import annotations

import os
import sys
import time
from typing import List, Sequence, Tuple

from services.cli.child import Child
from services.cli.log_merge import LogMerge
from services.cli.operator import Operator
from services.cli.plan import plan_children
from services.cli.poller import Poller
from services.cli.ports import Endpoints, choose_endpoints
from services.cli.report import run_report
from services.cli.run_folder import LOG_FOLDER_NAME, OpenRun, open_run
from services.cli.screen import Screen, make_screen
from services.cli.snapshot import ProcessState, Snapshot
from services.cli.stop_signals import StopSignals
from services.cli.supervisor import Outcome, Supervisor
from services.cli.target import Addresses, announced
from services.common.config.security import SecuritySection
from services.common.errors import EXIT_USER, UserError
from services.common.run_folder import RunFolder


def run(target: str, overrides: Sequence[str], *, verbose: bool) -> int:
    """Run to the end of training and of its report, or until stopped; return the exit code.

    Args:
        target: a run file, or the folder of a run to resume.
        overrides: flags of the run file.
        verbose: show all log lines on a terminal, not only those that matter.

    Raises:
        UserError: the config, the folder or the ports are not fit to start, or a process said so.
    """
    opened = open_run(target, overrides, os.environ, time.localtime())
    try:
        _refuse_tokens(opened.loaded.config.security)
        endpoints = choose_endpoints(opened.loaded)
        with StopSignals() as signals, announced(opened.folder, Addresses(endpoints.replay, endpoints.learner)):
            outcome = _train(opened, endpoints, signals, make_screen(sys.stdout, verbose=verbose))
            if outcome.exit_code == EXIT_USER and outcome.sentence:
                raise UserError(outcome.sentence)
            if not outcome.finished:
                return outcome.exit_code
            return run_report(opened.folder, os.environ, signals)
    finally:
        opened.close()


def _refuse_tokens(section: SecuritySection) -> None:
    if section.token or section.tokens:
        raise UserError(
            "shoal up starts all services with one run file, and one token cannot stand for all of their roles: leave "
            "out security.token and security.tokens (services on loopback need none), or start each service by itself"
        )


def _train(opened: OpenRun, endpoints: Endpoints, signals: StopSignals, screen: Screen) -> Outcome:
    lifeline, kept = os.pipe()  # `kept` closes when the launcher ends, however it ends; its children see that
    logs = opened.loaded.config.log
    merge = LogMerge(
        opened.folder / LOG_FOLDER_NAME, screen, max_file_bytes=logs.max_file_bytes, max_old_files=logs.max_old_files
    )
    addresses = Addresses(endpoints.replay, endpoints.learner)
    poller = Poller(Operator(addresses, opened.loaded.config.security))
    begun_s = time.monotonic()
    try:
        specs = plan_children(opened.loaded.config, opened.config_file, endpoints, os.environ, lifeline)
        children = [Child(spec, merge.line, (lifeline, opened.lock)) for spec in specs]

        def on_tick(phase: str, processes: Tuple[ProcessState, ...]) -> None:
            now_s = time.monotonic()
            screen.show(Snapshot(opened.name, phase, now_s - begun_s, processes, poller.state()), now_s)

        for line in _greeting(opened, endpoints):
            merge.note(line)
        poller.start()
        screen.start()
        return Supervisor(
            children,
            merge,
            signals,
            on_tick,
            is_training_finished=lambda: RunFolder(opened.folder).load_progress().is_finished,
        ).run()
    finally:
        screen.stop()
        poller.stop()
        merge.close()
        os.close(lifeline)
        os.close(kept)


def _greeting(opened: OpenRun, endpoints: Endpoints) -> List[str]:
    metrics = " ".join(f"{name}:{port}" for name, port in endpoints.metrics.items())
    return [
        f"{'resuming' if opened.resumed else 'starting'} run {opened.name} in {opened.folder}",
        f"replay {endpoints.replay}, learner {endpoints.learner}, metrics on 127.0.0.1 {metrics}",
    ]
