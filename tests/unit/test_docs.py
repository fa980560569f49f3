"""The pages against the code: keys and defaults, links, make targets, quoted errors, dependencies, the example."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from typing import Any, Dict, Iterator, List, Set, Tuple

import pytest
from pydantic import BaseModel

from services.common.config.load import load
from services.common.config.run import RunConfig

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
CONFIGURATION = ROOT / "docs" / "configuration.md"
TROUBLESHOOTING = ROOT / "docs" / "troubleshooting.md"
NOT_SET = "not set"

_HEADING = re.compile(r"^#+ +(.*)$", re.MULTILINE)
_SECTION = re.compile(r"^## `\[(\w+)\]`")
_KEY_ROW = re.compile(r"^\| `(\w+)` \| (?:`(.*?)`|(not set)) \| (.+) \|$")
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_TARGET = r"make ([a-z][a-z0-9-]*)"
_FLAG = re.compile(r"--([a-z0-9_]+\.[a-z0-9_]+)")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


each_page = pytest.mark.parametrize("page", PAGES, ids=name_of)


def documented_keys() -> Dict[str, Any]:
    """Dotted key -> default, as docs/configuration.md has them."""
    found: Dict[str, Any] = {}
    section = ""
    for line in CONFIGURATION.read_text(encoding="utf-8").splitlines():
        heading, row = _SECTION.match(line), _KEY_ROW.match(line)
        if heading:
            section = heading.group(1)
        elif row:
            key = f"{section}.{row.group(1)}"
            assert key not in found, f"{key} is there twice"
            found[key] = NOT_SET if row.group(3) else tomllib.loads(f"value = {row.group(2)}")["value"]
    return found


def actual_keys() -> Dict[str, Any]:
    """Dotted key -> default, as the models have them."""
    found: Dict[str, Any] = {}
    for section, model in RunConfig():
        assert isinstance(model, BaseModel)
        for key, value in model:
            plain = list(value) if isinstance(value, tuple) else value
            found[f"{section}.{key}"] = NOT_SET if value is None else plain
    return found


def slug(heading: str) -> str:
    """The anchor that GitHub makes of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def make_targets() -> Set[str]:
    return set(re.findall(r"^([a-z][a-z0-9-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


def messages() -> List[str]:
    """Every text of the code and of the Makefile's scripts; what is filled in later is a NUL."""
    found: List[str] = []
    for file in (ROOT / "services").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = (part.value if isinstance(part, ast.Constant) else "\0" for part in node.values)
                found.append("".join(str(part) for part in parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    found += [file.read_text(encoding="utf-8") for file in (ROOT / "deploy" / "make").glob("*.sh")]
    return found


def quoted_errors() -> Iterator[Tuple[str, List[str]]]:
    """The headings of docs/troubleshooting.md that quote a message, and the fragments around each `…`."""
    for heading in re.findall(r"^### `(.+)`$", TROUBLESHOOTING.read_text(encoding="utf-8"), re.MULTILINE):
        yield heading, [part.strip() for part in re.split("…", heading) if part.strip()]


def test_the_configuration_page_has_each_key_with_its_default_and_no_other() -> None:
    assert documented_keys() == actual_keys()


@each_page
def test_flags_on_the_page_are_keys(page: Path) -> None:
    known = set(actual_keys())
    named = {flag for flag in _FLAG.findall(page.read_text(encoding="utf-8")) if flag != "section.key"}
    # `--env.kwargs.control` names a key inside of a table; an ADR's model is not ours.
    unknown = {flag for flag in named if flag not in known}
    if page.parent.name != "adr":
        assert not unknown


@each_page
def test_links_lead_somewhere(page: Path) -> None:
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    dead = []
    for link in _LINK.findall(text):
        if re.match(r"^[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists():
            dead.append(link)
        elif anchor:
            headings = _HEADING.findall(_FENCE.sub("", target.read_text(encoding="utf-8")))
            if anchor not in {slug(heading) for heading in headings}:
                dead.append(link)
    assert not dead


@each_page
def test_make_targets_on_the_page_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = set(re.findall(f"`{_TARGET}", text))
    for fence in _FENCE.findall(text):
        named |= set(re.findall(f"^{_TARGET}", fence, re.MULTILINE))
    assert named <= make_targets()


def test_the_readme_tells_the_defaults_of_make() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    defaults = re.findall(r"^TORCH_\w+ +\?= (.+)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(defaults) == 2
    assert all(f"`{default}`" in readme for default in defaults)


def test_errors_that_troubleshooting_quotes_are_in_the_code() -> None:
    quoted = list(quoted_errors())
    assert len(quoted) > 20
    texts = messages()
    missing = [heading for heading, parts in quoted if not any(all(part in text for part in parts) for text in texts)]
    assert not missing


def test_each_dependency_has_its_line() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [
        *project["dependencies"],
        *(name for extra in project["optional-dependencies"].values() for name in extra),
    ]
    names = {re.split(r"[<>=!;\[ ]", requirement)[0] for requirement in wanted} - {"shoal"}
    page = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")
    rows = [line.strip("|").split("|") for line in page.splitlines() if line.startswith("|")]
    assert {row[-2].strip().strip("`") for row in rows if "`" in row[-2]} == names


@pytest.mark.parametrize("file", sorted([*ROOT.glob("configs/*.toml"), *ROOT.glob("examples/*.toml")]), ids=name_of)
def test_shipped_run_files_are_valid(file: Path) -> None:
    assert load(file).config.learner.max_updates >= 1
