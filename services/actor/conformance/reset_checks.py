"""What follows the end of an episode: when lanes are really reset, final observations, rows that are no transitions."""

from __future__ import annotations

import enum
from typing import Iterator, List, Optional, Tuple

import numpy as np

from services.actor.conformance.finding import Finding, fault, ok, warning
from services.actor.conformance.trace import End, Features, Trace
from services.actor.envs.contract import AutoReset
from services.actor.envs.lost_tails import DROP, OPTION

JUMP = 2.0  # one of two moves counts as the reset if it is so many times the other
CLEAR = 0.6  # share of the ends that must agree
LEAST_UNIT = 0.05  # of a number's deviation
MOST_UNITS = 20.0
STRAY = 6.0  # a final observation this many ordinary moves away does not follow from the step before
ENOUGH = 3  # ends, to say anything at all


class Observed(enum.Enum):
    """When lanes were reset, as the observations tell."""

    SAME_STEP = "same_step"
    NEXT_STEP = "next_step"
    NEVER = "never"
    UNCLEAR = "unclear"


class Moves:
    """How far observations move: each number in units of its ordinary move inside of an episode.

    So a goal that stands still until the next episode tells a reset best, and a noisy velocity worst.
    """

    def __init__(self, trace: Trace) -> None:
        deviation = np.atleast_1d(np.asarray(trace.features.deviation, np.float64))
        ordinary = np.zeros_like(deviation)
        steps = [move for move in trace.ordinary if len(move)]
        if steps:
            ordinary = np.sqrt(np.nanmean(np.square(np.concatenate(steps)), axis=0))
        unit = np.maximum(ordinary, LEAST_UNIT * deviation)
        # A number that never changes says nothing, and nothing can be divided by its move.
        self._scale = np.where(deviation > 1e-9, 1.0 / np.maximum(unit, 1e-12), 0.0)
        self.ordinary = float(np.nanmedian(self.between(np.concatenate(steps), 0.0))) if steps else 0.0

    def between(self, one: Optional[Features], other: object) -> Features:
        """Root mean square of the moves, [...]; no number counts for more than `MOST_UNITS`."""
        units = np.abs((np.asarray(one) - np.asarray(other)) * self._scale)
        moved: Features = np.sqrt(np.mean(np.square(np.minimum(units, MOST_UNITS)), axis=-1))
        return moved


def observe_mode(trace: Trace) -> Tuple[Observed, int]:
    """Tell from what follows each end when the lane was reset, and from how many ends that is known.

    In same_step mode the observation jumps in the step that ends the episode, and is then one of those that episodes
    begin with; in next_step mode one step later. Where nobody resets, the flags of the end stay set.
    """
    followed = [end for end in trace.ends if end.after is not None]
    if len(followed) < ENOUGH:
        return Observed.UNCLEAR, len(followed)
    # An environment whose episodes are one step long ends in every step, and is reset in each.
    lengths = [episode.length for episode in trace.episodes if episode.number == 0]
    if np.mean([end.after_ended for end in followed]) > CLEAR and np.median(lengths) > 1:
        return Observed.NEVER, len(followed)
    moves = Moves(trace)
    jumps = [(moves.between(e.observation, e.acted_on), moves.between(e.after, e.observation)) for e in followed]
    observed = _majority(jumps)
    if observed is Observed.UNCLEAR and trace.begun is not None:
        # Where ordinary moves are as far as a reset: which of the two looks like what episodes begin with?
        begun = trace.begun
        near = [(moves.between(e.after, begun).min(), moves.between(e.observation, begun).min()) for e in followed]
        observed = _majority(near)
    return observed, len(followed)


def _majority(pairs: List[Tuple[Features, Features]]) -> Observed:
    """What most ends say: of two numbers the first is much the larger in same_step mode, the second in next_step."""
    first, second = np.array(pairs, np.float64).T
    if np.mean(first > JUMP * second) > CLEAR:
        return Observed.SAME_STEP
    return Observed.NEXT_STEP if np.mean(second > JUMP * first) > CLEAR else Observed.UNCLEAR


def check_resets(trace: Trace) -> Iterator[Finding]:
    """Auto-reset against what was declared, the rows after ends, and the final observations."""
    observed, known = observe_mode(trace)
    if observed is Observed.NEXT_STEP and trace.autoreset is AutoReset.SAME_STEP and _has_two_observations(trace):
        observed = Observed.UNCLEAR  # nothing in next_step mode returns two: they are exchanged, which is said below
    yield _auto_reset(trace, observed, known)
    yield _reset_rows(trace)
    if trace.autoreset is AutoReset.SAME_STEP and observed is not Observed.NEXT_STEP:
        yield _final_observations(trace)


def _auto_reset(trace: Trace, observed: Observed, known: int) -> Finding:
    check, declared = "auto-reset", trace.autoreset.value
    if trace.autoreset is AutoReset.DISABLED:
        return fault(
            check,
            "the environment is declared to reset no lane, and has no method reset_lanes",
            "add reset_lanes(mask), or reset ended lanes in step and declare SAME_STEP",
        )
    if observed is Observed.NEVER:
        return fault(
            check,
            f"lanes are not reset: most of {known} ends are followed by an end at once",
            "reset the lanes that ended in step",
        )
    if observed is Observed.UNCLEAR:
        return _unclear(trace, known)
    if observed.value != declared:
        real = (
            "one step after the end: declare NEXT_STEP, and mark that row as not valid"
            if observed is Observed.NEXT_STEP
            else "in the ending step itself: declare SAME_STEP, and return the last observation as"
            " true_next_observation"
        )
        return fault(
            check, f"declared {declared}, but {known} ends show {observed.value}", f"lanes begin their episodes {real}"
        )
    return ok(check, f"{declared}, as declared ({known} ends)")


def _unclear(trace: Trace, known: int) -> Finding:
    check, declared = "auto-reset", trace.autoreset.value
    if known < ENOUGH:
        return warning(
            check,
            f"declared {declared}; {known} ends were seen to the end, too few to tell",
            "run more steps (--steps)" if trace.num_ends else "see the check of episodes",
        )
    if trace.autoreset is AutoReset.SAME_STEP and _has_two_observations(trace):
        return ok(check, f"{declared}, as declared: {known} ends return a last observation and a first one")
    return warning(
        check,
        f"declared {declared}; {known} ends were seen, and no jump of the observations tells when lanes are reset",
        "check by hand that it is so: the observation of an ending step is that of the next episode in same_step"
        " mode, and the last one of the old in next_step mode",
    )


def _has_two_observations(trace: Trace) -> bool:
    """Whether ending steps return the old episode's last observation beside the next one's first."""
    ends = [end for end in trace.ends if end.true_next is not None]
    return len(ends) >= ENOUGH and bool(np.mean([not end.same_final for end in ends]) > CLEAR)


def _reset_rows(trace: Trace) -> Finding:
    check = "reset rows"
    if trace.unmarked:
        return fault(
            check,
            f"{trace.unmarked} rows after an end are valid, though in next_step mode they are no transitions",
            "set valid to False in the step after an end",
        )
    if trace.overmarked:
        return fault(
            check,
            f"valid is False in {trace.overmarked} rows that follow no end",
            "every row is a transition except the one after an end in next_step mode",
        )
    if trace.autoreset is not AutoReset.NEXT_STEP:
        return ok(check, "all rows are transitions")
    junk = f", rewards there from {trace.junk_reward.low:g} to {trace.junk_reward.high:g} are dropped"
    return ok(check, f"{trace.num_invalid} rows after ends are marked as such{junk if trace.num_invalid else ''}")


def _final_observations(trace: Trace) -> Finding:
    check = "final observations"
    if trace.lost_finals:
        return fault(
            check,
            f"{trace.lost_finals} truncated steps have no true next observation, so their value cannot be bootstrapped",
            f'return it, or set env.kwargs.{OPTION} = "{DROP}" to train without those steps',
        )
    if trace.dropped_finals:
        return ok(check, f"{trace.dropped_finals} truncated steps have none and are dropped, as {OPTION} asks")
    ends = [end for end in trace.ends if end.true_next is not None]
    if not ends:
        return ok(check, "none was needed" if not trace.num_ends else "none, and none is needed: all ends terminated")
    same = sum(end.same_final for end in ends)
    if same > CLEAR * len(ends):
        return fault(
            check,
            f"{same} of {len(ends)} true next observations are those of the next episode",
            "copy the last observation before the lane is reset",
        )
    return _continuity(check, ends, Moves(trace))


def _continuity(check: str, ends: List[End], moves: Moves) -> Finding:
    """Whether final observations follow from what was acted on."""
    to_final = np.array([moves.between(end.true_next, end.acted_on) for end in ends])
    to_begin = np.array([moves.between(end.observation, end.acted_on) for end in ends])
    if len(ends) >= ENOUGH and np.mean(to_final > JUMP * to_begin) > CLEAR:
        return fault(
            check,
            f"in most of {len(ends)} ends observation follows from the step before, and true_next_observation does not",
            "exchange the two: observation is what the policy acts on next",
        )
    typical = float(np.median(to_final))
    if len(ends) >= ENOUGH and moves.ordinary > 0 and typical > STRAY * moves.ordinary:
        return warning(
            check,
            f"they are {typical / moves.ordinary:.0f} ordinary moves away from the observation before",
            "check that they are of the lane and of the step that ended",
        )
    return ok(check, f"{len(ends)} differ from what the next episode begins with, and follow from the step before")
