"""Which running system a command means: a run that `shoal up` started, a run file's, or the one that flags name."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Iterator, Optional, Sequence

from services.common.config.load import load
from services.common.config.security import SecuritySection
from services.common.errors import UserError
from services.common.files import write_atomically

ENDPOINTS_NAME = "endpoints.json"  # in the run's folder while `shoal up` runs
CONFIG_NAME = "config.toml"


@dataclass(frozen=True)
class Addresses:
    """Where the services of a run listen."""

    replay: str
    learner: str


@dataclass(frozen=True)
class Target:
    """A running system, and what to call it with."""

    addresses: Addresses
    security: SecuritySection
    name: str = ""  # of the run, or of what else was named


@contextlib.contextmanager
def announced(folder: Path, addresses: Addresses) -> Iterator[None]:
    """Write down where a run's services listen, for as long as they do."""
    file = folder / ENDPOINTS_NAME
    write_atomically(file, json.dumps(asdict(addresses)).encode())
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            file.unlink()


def find_target(name: Optional[str], overrides: Sequence[str]) -> Target:
    """Find the system that a command is about.

    Args:
        name: the folder of a run that `shoal up` watches over, a run file, or None for defaults and variables.
        overrides: flags of the run file.

    Raises:
        UserError: there is no such file or folder, or the run of the folder does not run.
    """
    path = Path(name) if name is not None else None
    if path is not None and path.is_dir():
        config = load(path / CONFIG_NAME, overrides, os.environ).config
        return Target(_of_folder(path), config.security, path.resolve().name)
    config = load(path, overrides, os.environ).config
    addresses = Addresses(config.replay.addresses[0], config.learner.address)
    return Target(addresses, config.security, config.run.name or (path.stem if path is not None else addresses.learner))


def _of_folder(folder: Path) -> Addresses:
    file = folder / ENDPOINTS_NAME
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        return Addresses(str(found["replay"]), str(found["learner"]))
    except FileNotFoundError:
        raise UserError(
            f"no `shoal up` watches over {str(folder)!r} now; give the run file of services that were started by hand, "
            "or --replay.addresses and --learner.address"
        ) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{str(file)!r} cannot be read: {error}") from None
