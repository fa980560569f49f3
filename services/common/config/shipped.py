"""Run files that come with shoal, by name: `shoal up arm_reach` works where there is no checkout."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from typing import List, Sequence


def shipped_folders() -> List[Path]:
    """Where run files may lie: beside the source in a checkout, in the environment's data of an installation."""
    source = Path(__file__).resolve().parents[3]
    return [source / "configs", Path(sysconfig.get_path("data")) / "share" / "shoal" / "configs"]


def find_run_file(file: Path, folders: Sequence[Path]) -> Path:
    """The file itself if it is there, or if it is more than a name; else the shipped one of that name, if there is one.

    Args:
        file: what the user wrote.
        folders: that hold shipped files, the first one first.
    """
    if file.exists() or len(file.parts) != 1:
        return file
    name = file.name if file.suffix == ".toml" else f"{file.name}.toml"
    return next((folder / name for folder in folders if (folder / name).is_file()), file)
