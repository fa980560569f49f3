"""What came of the scenarios, as a table for the page and as one line for scripts. Pure."""

from __future__ import annotations

from typing import Any, Dict, List, Sequence

from tests.chaos.scenario import Outcome

BEGIN, END = "<!-- chaos: begin -->", "<!-- chaos: end -->"
HEAD = ("scenario", "what happens", "recovery", "updates lost", "steps acknowledged", "lost", "doubled", "result")


def last_line(outcomes: Sequence[Outcome]) -> str:
    """N passed, M failed, and what could not be tested here."""
    counts = {verdict: sum(o.verdict == verdict for o in outcomes) for verdict in ("passed", "FAILED", "NOT TESTED")}
    line = f"{counts['passed']} passed, {counts['FAILED']} failed"
    return f"{line}, {counts['NOT TESTED']} NOT TESTED" if counts["NOT TESTED"] else line


def rows(outcomes: Sequence[Outcome]) -> List[List[str]]:
    """The table's cells."""
    return [_row(outcome) for outcome in outcomes]


def _row(outcome: Outcome) -> List[str]:
    recovery = "<br>".join(f"{m.what} {m.seconds:.1f} s" for m in outcome.measures) or "-"
    text = outcome.scenario.text + (f" ({'; '.join(outcome.notes)})" if outcome.notes else "")
    cells = [f"`{outcome.scenario.name}`", text, recovery]
    cells.append("-" if outcome.lost_updates is None else f"{outcome.lost_updates:,}")
    if outcome.account is None:
        return [*cells, "-", "-", "-", outcome.verdict]
    lost = str(outcome.account.lost - outcome.counted_lost)
    if outcome.counted_lost:
        lost += f" (and {outcome.counted_lost} counted)"
    return [*cells, f"{outcome.account.acknowledged:,}", lost, str(outcome.account.doubled), outcome.verdict]


def to_markdown(outcomes: Sequence[Outcome], facts: Dict[str, Any], seed: int, minutes: float) -> str:
    """The generated section of the page."""
    lines = [HEAD, ("---",) * len(HEAD), *map(tuple, rows(outcomes))]
    table = "".join("| " + " | ".join(line) + " |\n" for line in lines)
    failed = "".join(f"\n`{outcome.scenario.name}`: {fault}\n" for outcome in outcomes for fault in outcome.faults)
    missing = "".join(
        f"\nNOT TESTED, `{outcome.scenario.name}`: {outcome.not_tested}\n" for outcome in outcomes if outcome.not_tested
    )
    return (
        f"{facts['cpu']}, {facts['cores']} cores, {facts['memory_gib']} GiB, Python {facts['python']}, load "
        f"{facts['load_before'][0]} before; seed {seed}; {minutes:.0f} minutes; {last_line(outcomes)}.\n\n"
        f"{table}{failed}{missing}"
    )


def replace_section(page: str, section: str) -> str:
    """The page with another generated section.

    Raises:
        ValueError: the page has no place for it.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page lacks {BEGIN} and {END}")
    return f"{before}{BEGIN}\n{section}{END}{after}"
