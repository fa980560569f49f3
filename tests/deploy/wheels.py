"""The wheel of this checkout, and those of what it needs, for machines without a network."""

from __future__ import annotations

import os
import subprocess
import sys
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
    _pip("download", "--quiet", "--dest", str(house), "--find-links", str(house), TORCH, f"{wheel}[{extras}]")
    for stale in house.glob("shoal-*.whl"):
        stale.unlink()
    return house
