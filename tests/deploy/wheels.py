"""The wheel of this checkout, and those of what it needs, for machines without a network."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
TORCH = os.environ.get("TORCH_SPEC", "torch==2.13.0")  # plain torch takes gigabytes of CUDA


def _pip(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments], check=True, timeout=900)


def build_wheel(folder: Path) -> Path:
    """Build the checkout's wheel into `folder`."""
    _pip("wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(CHECKOUT))
    (wheel,) = folder.glob("shoal-*.whl")
    return wheel


def wheelhouse(wheel: Path, extras: str) -> Path:
    """A folder with the wheels that `wheel` needs, kept between runs outside of the checkout."""
    cache = Path(os.environ.get("SHOAL_DEPLOY_CACHE", Path.home() / ".cache" / "shoal-deploy"))
    house = cache / f"wheels-{sys.version_info[0]}{sys.version_info[1]}"
    house.mkdir(parents=True, exist_ok=True)
    filled = house / f"filled-{_wanted(wheel, extras)}"
    if filled.exists():  # the index is slow to ask, and has nothing new for the same wish
        return house
    _pip("download", "--quiet", "--dest", str(house), "--find-links", str(house), TORCH, f"{wheel}[{extras}]")
    for stale in house.glob("shoal-*.whl"):
        stale.unlink()
    filled.touch()
    return house


def _wanted(wheel: Path, extras: str) -> str:
    """What stands for the wish: the wheel's requirements, the extras, and torch."""
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        lines = archive.read(metadata).decode().splitlines()
    wish = [line for line in lines if line.startswith(("Requires-", "Provides-Extra"))]
    return hashlib.sha256("\n".join([*wish, extras, TORCH]).encode()).hexdigest()[:12]
