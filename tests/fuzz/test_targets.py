"""The short form of `make fuzz`: the corpus, and some changes of it, through each target."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.corpus_files import inputs_of
from tests.fuzz.mutation import mutate
from tests.fuzz.targets import TARGETS, run

SHORT = settings(max_examples=40, database=None, suppress_health_check=list(HealthCheck))
each_target = pytest.mark.parametrize("target", sorted(TARGETS))


def _run(target: str, data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run(target, data, Path(folder))


@each_target
def test_the_corpus_meets_a_refusal_or_a_valid_result(target: str) -> None:
    inputs = inputs_of(target)
    assert inputs, f"tests/fuzz/corpus/{target} is empty: run python -m tests.fuzz.seeds"
    for data in inputs:
        _run(target, data)


@each_target
def test_changed_inputs_meet_a_refusal_or_a_valid_result(target: str) -> None:
    inputs = inputs_of(target)

    @SHORT
    @given(place=st.integers(0, len(inputs) - 1), seed=st.integers(0, 2**32 - 1))
    def look(place: int, seed: int) -> None:
        _run(target, mutate(inputs[place], random.Random(seed), inputs))

    look()


@each_target
@settings(max_examples=10, database=None, suppress_health_check=list(HealthCheck))
@given(data=st.binary(max_size=300))
def test_noise_meets_a_refusal_or_a_valid_result(target: str, data: bytes) -> None:
    _run(target, data)
