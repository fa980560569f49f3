"""docs/metrics.md against what endpoints serve.

`python -m tests.e2e.metrics_page HOST:PORT...` writes the rows of the page anew from live endpoints: types, labels and
meanings come from there; what was said of when a metric is there stays.
"""

from __future__ import annotations

import re
import sys
import urllib.request
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Dict, Iterable, List, Tuple

from prometheus_client.parser import text_string_to_metric_families

PAGE = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"
SERVICES = ("replay", "learner", "helper", "actor", "evaluator")
PROCESS = "process"  # of metrics that each process has under the same names
ALWAYS = "always"
HEAD = ("| metric | type | unit | labels | there | meaning |", "|---|---|---|---|---|---|")
UNITS = ("seconds", "bytes", "steps", "items", "rows", "updates", "batches", "chunks", "lanes", "samples", "ratio")
_NAME = re.compile(rf"shoal_({'|'.join(SERVICES)})_|({PROCESS})_")
_ROW = re.compile(r"^\| `((?:shoal|process)_\w+)` \| (\w+) \| (\w*) \| (.*?) \| (.*?) \| (.*) \|$")
_WAIT = re.compile(r"^\| (\w+) \| `(\w+)` \| .+ \|$")


@dataclass(frozen=True)
class Row:
    """One metric."""

    name: str
    kind: str
    labels: Tuple[str, ...]  # none: no sample was there to tell
    there: str
    meaning: str

    @property
    def section(self) -> str:
        """Whose it is."""
        found = _NAME.match(self.name)
        assert found, f"{self.name} belongs to no service"
        return found.group(1) or found.group(2)

    def __str__(self) -> str:
        labels = ", ".join(f"`{label}`" for label in self.labels)
        return f"| `{self.name}` | {self.kind} | {unit_of(self.name)} | {labels} | {self.there} | {self.meaning} |"


def unit_of(name: str) -> str:
    """The unit that a name ends in; empty for a bare count or number."""
    words = name.replace("_total", "").split("_")
    return words[-1] if words[-1] in UNITS else ""


def scrape(address: str) -> str:
    """The answer of the endpoint at HOST:PORT."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        text: str = answer.read().decode()
    return text


def scraped(text: str) -> Dict[str, Row]:
    """The metrics of an endpoint's answer by name, without the times at which counters were made."""
    rows: Dict[str, Row] = {}
    for family in text_string_to_metric_families(text):
        if family.name.endswith("_created"):
            continue
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = {label: None for sample in family.samples for label in sample.labels}
        kept = tuple(label for label in labels if not (family.type == "histogram" and label == "le"))
        rows[name] = Row(name, family.type, tuple(sorted(kept)), "", family.documentation)
    return rows


def waits_of(text: str, service: str) -> List[str]:
    """The reasons that an endpoint's service waits for."""
    return [
        sample.labels["reason"]
        for family in text_string_to_metric_families(text)
        if family.name == f"shoal_{service}_waiting_seconds"
        for sample in family.samples
    ]


def documented() -> Dict[str, Row]:
    """The metrics of the page by name."""
    rows: Dict[str, Row] = {}
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        found = _ROW.match(line)
        if found:
            name, kind, unit, labels, there, meaning = found.groups()
            assert name not in rows, f"{name} is there twice"
            assert unit == unit_of(name), f"{name} is said to be in {unit!r}"
            rows[name] = Row(name, kind, tuple(re.findall(r"`(\w+)`", labels)), there, meaning)
        else:
            assert not line.startswith(("| `shoal_", "| `process_")), f"not to be understood: {line}"
    return rows


def documented_waits() -> Dict[str, List[str]]:
    """The reasons to wait of the page by service."""
    found = [_WAIT.match(line) for line in PAGE.read_text(encoding="utf-8").splitlines()]
    waits: Dict[str, List[str]] = {service: [] for service in SERVICES}
    for match in found:
        if match and match.group(1) in waits:
            waits[match.group(1)].append(match.group(2))
    return waits


def rewrite(texts: Iterable[str]) -> None:
    """Bring the rows of the page up to date with the answers of endpoints."""
    known = documented()
    rows = dict(known)
    for text in texts:
        for name, row in scraped(text).items():
            old = rows.get(name)
            labels = row.labels or (old.labels if old else ())
            rows[name] = replace(row, labels=labels, there=old.there if old else ALWAYS)
    lines: List[str] = []
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if _ROW.match(line) or line in HEAD:
            continue
        lines.append(line)
        heading = re.match(r"^## .*`(?:shoal_)?(\w+?)_\*`$", line)
        if heading:
            mine = sorted((row for row in rows.values() if row.section == heading.group(1)), key=lambda row: row.name)
            lines += ["", *HEAD, *map(str, mine)]
    PAGE.write_text(re.sub(r"\n{3,}", "\n\n", "\n".join(lines)) + "\n", encoding="utf-8")


if __name__ == "__main__":
    rewrite([scrape(address) for address in sys.argv[1:]])
