from __future__ import annotations

import os
import signal

import pytest

from services.cli.stop_signals import StopSignals
from tests.fakes import FakeClock


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_second_signal_at_once_is_the_same_request(second: signal.Signals) -> None:
    clock = FakeClock()
    with StopSignals(clock) as signals:
        os.kill(os.getpid(), signal.SIGINT)
        clock.now_s += 0.49
        os.kill(os.getpid(), second)
        assert (signals.first, signals.count) == (signal.SIGINT, 1)
        clock.now_s += 0.02
        os.kill(os.getpid(), second)
        assert (signals.first, signals.count) == (signal.SIGINT, 2)
    assert signals.exit_code == 130


def test_signals_that_never_pause_are_asked_twice_all_the_same() -> None:
    clock = FakeClock()
    with StopSignals(clock) as signals:
        for _ in range(10):
            os.kill(os.getpid(), signal.SIGTERM)
            clock.now_s += 0.1
        assert signals.count == 2


def test_the_old_handlers_come_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with StopSignals():
        assert signal.getsignal(signal.SIGTERM) != before
    assert signal.getsignal(signal.SIGTERM) == before
