"""A CA, the certificate of a machine, and a token for each role, made by the command that users have."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, Callable

import pytest

from services.cli import certs_command
from services.common.config.security import SecuritySection

MakeSection = Callable[..., SecuritySection]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "pki"
    certs_command.run(["init", str(made)], io.StringIO())
    certs_command.run(["issue", str(made), "machine", "machine.example"], io.StringIO())
    return made


@pytest.fixture
def section(folder: Path) -> MakeSection:
    """What the run file of a process with the token of `role` says, or other values."""

    def make(role: str = "actor", **changes: Any) -> SecuritySection:
        values = {
            "ca": str(folder / "ca.pem"),
            "certificate": str(folder / "machine.pem"),
            "key": str(folder / "machine-key.pem"),
            "token": str(folder / f"{role}.token"),
            "tokens": str(folder / "tokens.toml"),
        }
        return SecuritySection(**{**values, **changes})

    return make
