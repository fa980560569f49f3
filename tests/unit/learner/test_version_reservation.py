from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from services.common.errors import UserError
from services.learner.version_reservation import RESERVED_BLOCK, VersionReservation


@pytest.mark.parametrize("taken", [0, 1, RESERVED_BLOCK, RESERVED_BLOCK + 1])
def test_no_life_of_the_chief_reuses_a_version(taken: int, tmp_path: Path) -> None:
    file = tmp_path / "versions.json"
    used: Any = []
    for _life in range(3):  # each is killed: nothing is written at its end
        reservation = VersionReservation(file)
        used += [reservation.take() for _ in range(taken)]
    assert len(set(used)) == len(used)
    assert used == sorted(used)
    assert used[:1] == ([1] if taken else [])


def test_a_version_is_reserved_on_disk_before_it_is_used(tmp_path: Path) -> None:
    file = tmp_path / "versions.json"
    reservation = VersionReservation(file)
    assert not file.exists()
    for _ in range(2 * RESERVED_BLOCK + 1):
        version = reservation.take()
        assert version <= json.loads(file.read_text())["reserved"]


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"reserved": "x"}', '{"reserved": null}'])
def test_a_damaged_reservation_is_told_and_not_started_anew(text: str, tmp_path: Path) -> None:
    file = tmp_path / "versions.json"
    file.write_text(text)
    with pytest.raises(UserError, match="cannot be read"):
        VersionReservation(file)
    assert file.read_text() == text


def test_a_full_disk_gives_no_version(tmp_path: Path) -> None:
    (tmp_path / "folder").write_text("a file where the folder must be")
    with pytest.raises(UserError, match="cannot write"):
        VersionReservation(tmp_path / "folder" / "versions.json").take()
