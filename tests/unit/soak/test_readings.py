from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from tests.soak.readings import MIB, Series, growth_of


def _series(heap: np.ndarray, threads: np.ndarray) -> Series:
    sizes = heap.astype(int).tolist()
    n = len(sizes)
    return Series(list(range(n)), sizes, sizes, sizes, [20] * n, threads.astype(int).tolist())


def test_a_leak_is_found_and_noise_and_a_jump_are_not() -> None:
    rng = np.random.default_rng(0)
    noise = 100 * MIB + rng.normal(0, MIB, 100)
    flat = np.full(100, 8)
    assert _series(noise, flat).faults() == []
    jump = noise.copy()
    jump[50:] += 1.5 * MIB
    assert _series(jump, flat).faults() == []
    small = noise + np.linspace(0, 4 * MIB, 100)
    assert any("heap_bytes grew by" in fault for fault in _series(small, flat).faults())
    leak = noise + np.linspace(0, 10 * MIB, 100)
    assert any("heap_bytes grew by" in fault for fault in _series(leak, flat).faults())
    assert any("threads grew" in fault for fault in _series(noise, np.linspace(8, 20, 100)).faults())


@pytest.mark.parametrize("at", range(20, 60))
def test_one_more_thread_of_a_pool_is_no_leak_whenever_it_comes(at: int) -> None:
    threads = np.full(60, 16)
    threads[at:] += 1
    assert _series(np.full(60, 100 * MIB), threads).faults() == []


@pytest.mark.parametrize("slope", [0.0, 1.0, -2.0])
def test_growth_is_that_behind_the_warm_up(slope: float) -> None:
    values = np.arange(100) * slope
    values[:30] = 1e9
    assert growth_of(values) == pytest.approx(69 * slope)


def test_a_process_is_read() -> None:
    command = [sys.executable, "-c", "print(flush=True); input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        series = Series()
        for _ in range(4):
            series.read(process.pid)
        process.communicate(b"\n")
    assert series.resident_bytes[0] > MIB
    assert series.descriptors[0] >= 3
    assert series.threads[0] >= 1
    assert series.faults() == []
