"""The files of docker compose against the code and each other: versions, settings, keys, ports, locked packages."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any, Dict, List

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement

from services.common.config.load import known_keys

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
COMPOSE = (DEPLOY / "compose.yaml").read_text(encoding="utf-8")
ALL_COMPOSE = "".join(file.read_text(encoding="utf-8") for file in sorted(DEPLOY.glob("compose*.yaml")))
DOCKERFILES = "".join(file.read_text(encoding="utf-8") for file in sorted((DEPLOY / "docker").glob("*Dockerfile")))
PROJECT: Dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PYTHON = {"python_version": "3.11", "python_full_version": "3.11.9", "extra": ""}  # of the images
EXTRAS = {"replay": (), "actor": ("actor", "sim", "report"), "learner": ("learner",)}

_SETTING = re.compile(r"\$\{(\w+)(:?[-?])([^}]*)\}")
_LOCK = re.compile(r"^([A-Za-z0-9._-]+)==(\S+)(?: ; (.*?))? \\$", re.MULTILINE)


def settings() -> Dict[str, str]:
    """Setting -> default, as the compose files have them; a setting that must be given has none."""
    found: Dict[str, str] = {}
    for name, kind, default in _SETTING.findall(ALL_COMPOSE):
        value = default if kind.endswith("-") else ""
        assert found.setdefault(name, value) == value, f"{name} has two defaults"
    return found


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def wanted_by(image: str) -> List[Requirement]:
    extras: Dict[str, List[str]] = PROJECT["optional-dependencies"]
    texts = [*PROJECT["dependencies"], *(text for name in EXTRAS[image] for text in extras[name])]
    found = [Requirement(text) for text in texts]
    return [need for need in found if need.name not in ("shoal", "torch")]


def test_images_are_tagged_with_the_version_of_the_project() -> None:
    assert settings()["SHOAL_VERSION"] == PROJECT["version"]
    assert set(re.findall(r"ARG SHOAL_VERSION=(\S+)", DOCKERFILES)) == {PROJECT["version"]}


def test_torch_is_that_of_make() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for name in ("TORCH_SPEC", "TORCH_INDEX"):
        (default,) = re.findall(rf"^{name} +\?= (.+)$", makefile, re.MULTILINE)
        assert settings()[name] == default
        assert re.findall(rf'^ARG {name}="?(.+?)"?$', DOCKERFILES, re.MULTILINE) == [default]


def test_the_example_has_each_setting_with_its_default_and_the_page_names_it() -> None:
    lines = (DEPLOY / "env.example").read_text(encoding="utf-8").splitlines()
    example = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    # What a build is told by whoever publishes it is no setting of a box.
    assert example == {name: value for name, value in settings().items() if name != "SHOAL_REVISION"}
    page = (ROOT / "docs" / "compose.md").read_text(encoding="utf-8")
    assert [name for name in example if f"`{name}`" not in page and f"`{name}=" not in page] == []


def test_variables_of_containers_are_keys_of_the_run_file() -> None:
    named = set(re.findall(r"SHOAL_([A-Z]+__[A-Z_]+)", ALL_COMPOSE + DOCKERFILES))
    assert len(named) > 15
    assert named <= {"__".join(path).upper() for path in known_keys()}


def test_prometheus_scrapes_the_ports_that_services_serve() -> None:
    served = dict(re.findall(r"SHOAL_(\w+)__METRICS_PORT: (\d+)", COMPOSE))
    page = (DEPLOY / "prometheus" / "prometheus.yml").read_text(encoding="utf-8")
    scraped = re.findall(r"server_name: (\w+) }\n.*?(?:\w+:|port: )(9\d{3})", page)
    assert dict(scraped) == {name.lower(): port for name, port in served.items()}
    assert len(scraped) == 4


@pytest.mark.parametrize("image", sorted(EXTRAS))
def test_what_an_image_needs_is_locked_to_a_version_that_fits(image: str) -> None:
    lock = (DEPLOY / "constraints" / f"image-{image}.txt").read_text(encoding="utf-8")
    found = [entry for entry in _LOCK.findall(lock) if not entry[2] or Marker(entry[2]).evaluate(PYTHON)]
    locked = {normal(name): version for name, version, _marker in found}
    assert len(found) == len(locked) > 20
    assert "\ntorch==" not in lock  # by its version alone: its hash depends on where it comes from
    for need in wanted_by(image):
        if need.marker is None or need.marker.evaluate(PYTHON):
            assert need.specifier.contains(locked[normal(need.name)]), need
