"""How episodes end: lengths, and whether time-outs are told apart from ends of the task."""

from __future__ import annotations

from typing import Iterator, List

import numpy as np

from services.actor.conformance.finding import Finding, fault, ok, warning
from services.actor.conformance.trace import Episode, Trace

REPEATED = 3  # episodes of the maximal length that are no chance
SHARE = 0.05  # of all episodes, the same


def check_episodes(trace: Trace) -> Iterator[Finding]:
    """Lengths, time-outs that are labelled as terminations, failures that are labelled as time-outs."""
    episodes = trace.episodes
    if not episodes:
        yield warning(
            "episodes",
            f"none ended within {trace.calls} steps, so nothing is known of ends and resets",
            "run more steps (--steps), or set truncated when an episode has lasted long enough",
        )
        return
    lengths = np.array([episode.length for episode in episodes])
    terminated = sum(episode.terminated for episode in episodes)
    yield ok(
        "episodes",
        f"{len(episodes)} ended after {lengths.min()} to {lengths.max()} steps, {lengths.mean():.0f} on average;"
        f" {terminated} terminated, {len(episodes) - terminated} truncated",
    )
    if lengths.max() < 1:
        yield fault("time-outs", "episodes end without a single transition", "let a reset begin an episode")
        return
    yield _time_outs(episodes, int(lengths.max()))
    yield _failures(episodes, int(lengths.max()))


def _time_outs(episodes: List[Episode], longest: int) -> Finding:
    """Episodes that end by the clock all have the same length, the longest; a task's ends come at any time."""
    check = "time-outs"
    at_longest = [episode for episode in episodes if episode.length == longest]
    mislabelled = [episode for episode in at_longest if not episode.truncated]
    # A lane's first episode may have begun in the middle, as simulators stagger their lanes.
    seen_whole = [episode for episode in mislabelled if episode.number > 0] or mislabelled
    is_clock = len(seen_whole) >= max(REPEATED, SHARE * len(episodes)) and longest > 1
    if is_clock and not any(episode.truncated for episode in at_longest):
        return warning(
            check,
            f"{len(mislabelled)} episodes ended at the same maximal length {longest}, all of them terminated and none"
            " truncated",
            "if a clock ends them, set truncated instead of terminated: critics learn that the world ends there",
        )
    truncated = sum(episode.truncated for episode in episodes)
    if not truncated:
        return ok(check, "no episode was truncated, and none looks like it")
    return ok(check, f"{truncated} truncated, {len(at_longest)} episodes at the longest length {longest}")


def _failures(episodes: List[Episode], longest: int) -> Finding:
    """A clock cuts episodes at one length; a flag that is set at many others says something else."""
    check = "failures"
    both_early = [e for e in episodes if e.terminated and e.truncated and e.length < longest and e.number > 0]
    if len(both_early) >= REPEATED:
        return warning(
            check,
            f"{len(both_early)} episodes are terminated and truncated at once, before the longest length {longest}",
            "set truncated only when the clock runs out; terminated wins where both are set",
        )
    cut = {e.length for e in episodes if e.truncated and not e.terminated and e.number > 0}
    early = sorted(length for length in cut if length < 0.9 * longest)
    if len(early) >= REPEATED:
        return warning(
            check,
            f"episodes are truncated at {len(cut)} different lengths, from {early[0]} to {max(cut)}",
            "if some of these are failures or successes of the task, set terminated there: critics learn that life goes"
            " on behind them",
        )
    both = sum(e.terminated and e.truncated for e in episodes)
    if both:
        return ok(check, f"{both} ends have both flags: terminated wins")
    return ok(check, "no end looks like a failure that is labelled as a time-out")
