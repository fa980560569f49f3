from __future__ import annotations

import pytest

from services.cli.restart_policy import RestartPolicy, Verdict, describe, judge


@pytest.mark.parametrize(
    ("role", "code", "verdict"),
    [
        ("actor", 0, Verdict.DONE),
        ("learner", 0, Verdict.DONE),
        ("replay", 0, Verdict.CRASHED),
        ("actor", 1, Verdict.CRASHED),
        ("actor", -9, Verdict.CRASHED),
        ("learner", 70, Verdict.CRASHED),
        ("replay", 2, Verdict.USER_ERROR),
        ("actor", 3, Verdict.FENCED),
    ],
)
def test_exit_codes_mean(role, code, verdict):
    assert judge(role, code) is verdict


def test_exit_codes_in_words():
    assert describe(1) == "exit code 1"
    assert describe(-9) == "killed by SIGKILL"
    assert describe(-200) == "killed by signal 200"


def test_waits_double_up_to_the_limit():
    policy = RestartPolicy()
    waits = [policy.crashed(now_s=10.0 * i, lived_s=0.1) for i in range(7)]
    assert waits == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0])


def test_a_calm_life_starts_the_waits_anew():
    policy = RestartPolicy()
    policy.crashed(0.0, 0.1)
    policy.crashed(1.0, 0.1)
    assert policy.crashed(12.0, 10.0) == pytest.approx(0.2)
    assert policy.crashed(13.0, 0.5) == pytest.approx(0.4)


def test_the_eleventh_crash_within_the_window_is_the_last():
    policy = RestartPolicy()
    answers = [policy.crashed(now_s=5.9 * i, lived_s=1.0) for i in range(11)]
    assert None not in answers[:10]
    assert answers[10] is None


def test_old_crashes_are_forgotten():
    policy = RestartPolicy()
    assert all(policy.crashed(now_s=6.1 * i, lived_s=1.0) is not None for i in range(200))
