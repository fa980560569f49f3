"""The dashboards' files: what the generator makes, whole for Grafana's own model, with links that lead somewhere."""

from __future__ import annotations

import copy
import importlib.util
import itertools
import json
import re
from pathlib import Path
from typing import Any, Dict, Iterator, List, Tuple

import pytest
import yaml

from deploy.grafana.generator.panel import Lines, Number, Query, Table
from services.common.config.run import RunConfig

ROOT = Path(__file__).resolve().parents[3]
GRAFANA = ROOT / "deploy" / "grafana"
FILES = sorted((GRAFANA / "dashboards").glob("*.json"))
DASHBOARDS: Dict[str, Dict[str, Any]] = {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in FILES}
UIDS = {"shoal-overview", "shoal-staleness", "shoal-replay", "shoal-learner", "shoal-actors"}
SDK = "grafana_foundation_sdk"

each_dashboard = pytest.mark.parametrize("name", sorted(DASHBOARDS))
with_the_library = pytest.mark.skipif(
    importlib.util.find_spec(SDK) is None, reason=f"NOT TESTED: no {SDK}; it needs Python 3.11 or newer"
)


def panels_of(name: str) -> List[Dict[str, Any]]:
    return [panel for panel in DASHBOARDS[name]["panels"] if panel["type"] != "row"]


def links_of(dashboard: Dict[str, Any]) -> Iterator[Dict[str, Any]]:
    yield from dashboard.get("links", [])
    for panel in dashboard["panels"]:
        yield from panel.get("links") or []


def round_trip(dashboard: Dict[str, Any]) -> Any:
    """Through Grafana's own model and back."""
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.cog.plugins import register_default_plugins
    from grafana_foundation_sdk.models.dashboard import Dashboard

    register_default_plugins()
    return json.loads(JSONEncoder().encode(Dashboard.from_json(copy.deepcopy(dashboard))))


def differences(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """Where two trees differ: keys that were lost or came, values that changed."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted(set(before) | set(after)):
            if key not in after:
                yield f"{path}.{key} was lost"
            elif key not in before:
                yield f"{path}.{key} came"
            else:
                yield from differences(before[key], after[key], f"{path}.{key}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, (one, other) in enumerate(zip(before, after)):
            yield from differences(one, other, f"{path}[{index}]")
    elif before != after:
        yield f"{path}: {before!r} became {after!r}"


# --- generator and files ---------------------------------------------------------------------------------------------


@with_the_library
def test_the_files_are_what_the_generator_makes() -> None:
    from deploy.grafana.generator.files import made

    assert {file.name: file.read_text(encoding="utf-8") for file in FILES} == made()


def test_there_are_five_dashboards_with_names_that_links_can_keep() -> None:
    assert {dashboard["uid"] for dashboard in DASHBOARDS.values()} == UIDS
    titles = [dashboard["title"] for dashboard in DASHBOARDS.values()]
    assert len(set(titles)) == len(titles)
    # Grafana gives numbers and versions itself; a file that holds them fights with it.
    assert all(dashboard.get("id") is None for dashboard in DASHBOARDS.values())


@with_the_library
@each_dashboard
def test_the_file_goes_through_grafanas_own_model_without_a_loss(name: str) -> None:
    assert list(differences(DASHBOARDS[name], round_trip(DASHBOARDS[name]))) == []


@with_the_library
@pytest.mark.parametrize(
    "place",
    [
        ("fieldConfig", "defaults", "custom"),
        ("fieldConfig", "defaults"),
        ("options", "legend"),
        ("targets", 0),
        (),
    ],
    ids=str,
)
def test_a_key_that_grafana_does_not_know_is_noticed(place: Tuple[Any, ...]) -> None:
    dashboard = copy.deepcopy(DASHBOARDS["overview"])
    at: Any = next(panel for panel in dashboard["panels"] if panel["type"] == "timeseries")
    for key in place:
        at = at[key]
    at["lineColour"] = "red"
    assert [line for line in differences(dashboard, round_trip(dashboard)) if "lineColour was lost" in line]


# --- what a reader sees ----------------------------------------------------------------------------------------------


@each_dashboard
def test_each_panel_says_what_is_good_and_what_to_do_otherwise(name: str) -> None:
    for panel in panels_of(name):
        if panel["type"] != "text":
            shows, good, otherwise = panel["description"].split("\n\n")
            assert shows.endswith(".")
            assert good.startswith("**Good:** ")
            assert otherwise.startswith("**Otherwise:** ")


@each_dashboard
def test_keys_and_pages_that_descriptions_name_exist(name: str) -> None:
    known = {f"{section}.{key}" for section, model in RunConfig() for key, _ in model}
    words = " ".join(panel.get("description", "") for panel in panels_of(name))
    sections = {key.partition(".")[0] for key in known}
    named = set(re.findall(rf"`((?:{'|'.join(sections)})\.[a-z_]+)", words))
    assert named
    assert named <= known
    assert all((ROOT / page).exists() for page in re.findall(r"docs/[a-z-]+\.md", words))


@each_dashboard
def test_each_panel_has_a_unit_and_queries_of_the_one_source(name: str) -> None:
    for panel in panels_of(name):
        if panel["type"] != "text":
            assert panel["fieldConfig"]["defaults"]["unit"] or panel["type"] == "heatmap", panel["title"]
            assert panel["datasource"] == {"type": "prometheus", "uid": "prometheus"}
            refs = [target["refId"] for target in panel["targets"]]
            assert len(refs) == len(set(refs)) > 0


@each_dashboard
def test_panels_lie_on_the_grid_beside_each_other(name: str) -> None:
    ids = [panel["id"] for panel in DASHBOARDS[name]["panels"]]
    assert len(ids) == len(set(ids))
    taken: Dict[Tuple[int, int], str] = {}
    for panel in DASHBOARDS[name]["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24, panel["title"]
        for cell in itertools.product(range(at["x"], at["x"] + at["w"]), range(at["y"], at["y"] + at["h"])):
            assert cell not in taken, f"{panel['title']} lies on {taken.get(cell)}"
            taken[cell] = panel["title"]


@each_dashboard
def test_queries_use_variables_that_the_dashboard_has(name: str) -> None:
    own = {variable["name"] for variable in DASHBOARDS[name]["templating"]["list"]}
    built_in = {"__rate_interval", "__range", "__url_time_range", "__all_variables", "__all"}
    used = set(re.findall(r"\$\{?([a-z_]\w*)", json.dumps(DASHBOARDS[name])))
    assert used - built_in == own  # a choice that changes nothing would mislead


@each_dashboard
def test_links_lead_to_a_dashboard_or_into_the_runbook(name: str) -> None:
    found = list(links_of(DASHBOARDS[name]))
    assert found
    for link in found:
        url = link["url"]
        if url.startswith("/d/"):
            assert url.partition("?")[0][len("/d/") :] in UIDS
            kept = (link["includeVars"], link["keepTime"], url.partition("?")[2])
            assert kept in ((True, True, ""), (False, False, "${__all_variables}&${__url_time_range}"))
        else:
            assert re.match(r"^\$\{docs\}/[a-z]+\.md(#[a-z]+)?$", url), url


def alerts_of_the_panels() -> Dict[str, str]:
    """Alert -> anchor, as the links of the panels have them."""
    found = {}
    for dashboard in DASHBOARDS.values():
        for link in links_of(dashboard):
            match = re.match(r"^\$\{docs\}/operations\.md#([a-z]+)$", link["url"])
            if match:
                found[link["title"].partition(": ")[2]] = match.group(1)
    return found


def test_links_name_an_alert_and_lead_to_its_part() -> None:
    links = alerts_of_the_panels()
    assert len(links) > 20
    assert all(anchor == alert.lower() for alert, anchor in links.items())


def test_the_alerts_that_panels_name_exist() -> None:
    rules = ROOT / "deploy" / "prometheus" / "alerts.yml"
    if not rules.exists():
        pytest.skip("NOT TESTED: there are no rules of alerts")
    groups = yaml.safe_load(rules.read_text(encoding="utf-8"))["groups"]
    names = {rule["alert"] for group in groups for rule in group["rules"] if "alert" in rule}
    assert set(alerts_of_the_panels()) <= names


def test_the_runbook_has_the_parts_that_panels_link_to() -> None:
    runbook = ROOT / "docs" / "operations.md"
    if not runbook.exists():
        pytest.skip("NOT TESTED: there is no runbook")
    headings = re.findall(r"^#+ +(.*)$", runbook.read_text(encoding="utf-8"), re.MULTILINE)
    anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    assert set(alerts_of_the_panels().values()) <= anchors


# --- provisioning ----------------------------------------------------------------------------------------------------


def provisioned(kind: str) -> Dict[str, Any]:
    (file,) = (GRAFANA / "provisioning" / kind).glob("*.yaml")
    read: Dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    assert read["apiVersion"] == 1
    return read


def test_the_source_that_panels_ask_is_provisioned() -> None:
    (source,) = provisioned("datasources")["datasources"]
    assert (source["type"], source["uid"], source["url"]) == ("prometheus", "prometheus", "http://prometheus:9090")
    uids = set(re.findall(r'"uid": "(?!shoal)([^"]+)"', "".join(map(json.dumps, DASHBOARDS.values()))))
    assert uids == {source["uid"]}


def test_the_source_has_the_interval_of_the_scrapes() -> None:
    scrapes = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text(encoding="utf-8"))
    (source,) = provisioned("datasources")["datasources"]
    assert source["jsonData"]["timeInterval"] == scrapes["global"]["scrape_interval"]


def test_compose_mounts_what_provisioning_reads() -> None:
    services = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text(encoding="utf-8"))["services"]
    if "grafana" not in services:
        pytest.skip("NOT TESTED: compose.yaml has no Grafana")
    mounts = dict(volume.split(":")[:2] for volume in services["grafana"]["volumes"])
    by_place = {place: (ROOT / "deploy" / path).resolve() for path, place in mounts.items() if path.startswith(".")}
    (provider,) = provisioned("dashboards")["providers"]
    assert by_place["/etc/grafana/provisioning"] == GRAFANA / "provisioning"
    assert by_place[provider["options"]["path"]] == GRAFANA / "dashboards"
    (source,) = provisioned("datasources")["datasources"]
    assert re.match(r"^http://(\w+):9090$", source["url"]).group(1) in services  # type: ignore[union-attr]


def test_the_docs_that_links_lead_to_are_served_by_compose() -> None:
    services = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text(encoding="utf-8"))["services"]
    if "grafana" not in services:
        pytest.skip("NOT TESTED: compose.yaml has no Grafana")
    defaults = {
        variable["current"]["value"]
        for dashboard in DASHBOARDS.values()
        for variable in dashboard["templating"]["list"]
        if variable["name"] == "docs"
    }
    (default,) = defaults
    places = [volume.split(":")[1] for volume in services["grafana"]["volumes"]]
    assert f"/usr/share/grafana{default}" in places


# --- the words that dashboards are made of ---------------------------------------------------------------------------

EXPLAINED: Dict[str, Any] = {"title": "t", "shows": "s.", "good": "g.", "otherwise": "o."}


@pytest.mark.parametrize(
    ("kind", "wrong", "says"),
    [
        (Lines, {"width": 25}, "a width of 25 is not in 1 to 24"),
        (Number, {"width": 0}, "a width of 0 is not in 1 to 24"),
        (Lines, {"limits": ((2, "red"), (1, "green"))}, "the limits must ascend"),
        (Lines, {"good": " "}, "say what it shows, what is good"),
        (Lines, {"queries": ()}, "one to 26 queries"),
        (Table, {"columns": ("one", "two")}, "a column's name for each query"),
    ],
)
def test_a_panel_that_cannot_be_drawn_or_understood_is_refused(kind: Any, wrong: Dict[str, Any], says: str) -> None:
    whole: Dict[str, Any] = {**EXPLAINED, "queries": (Query("up", "up"),)}
    if kind is Table:
        whole["columns"] = ("one",)
    kind(**whole)
    with pytest.raises(ValueError, match=says):
        kind(**{**whole, **wrong})


def test_a_description_has_three_parts() -> None:
    panel = Lines(**EXPLAINED, queries=(Query("up", "up"),))
    assert panel.description == "s.\n\n**Good:** g.\n\n**Otherwise:** o."
