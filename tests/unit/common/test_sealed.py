from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any, Dict

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from services.common.errors import UserError
from services.common.sealed import seal, unseal, write_sealed

TENSORS: Dict[str, Any] = {
    "scalar": np.array(7, np.int64),
    "matrix": np.arange(6, dtype=np.float32).reshape(2, 3).T,
    "empty": np.zeros((0, 3), np.float32),
    "flags": np.array([True, False]),
}
FACTS = {"updates": 12, "history": [[1, 0], [2, 20]], "name": "ä", "rate": 0.1}


def test_tensors_and_facts_come_back(tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.write_bytes(seal(TENSORS, FACTS))
    tensors, facts = unseal(file)
    assert facts == FACTS
    assert set(tensors) == set(TENSORS)
    for name, tensor in TENSORS.items():
        assert (tensors[name].dtype, tensors[name].shape) == (tensor.dtype, tensor.shape), name
        np.testing.assert_array_equal(tensors[name], tensor)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.floats(0, 1, exclude_max=True), change=st.integers(1, 255))
def test_damage_of_any_byte_is_found(tmp_path: Path, at: float, change: int) -> None:
    data = bytearray(seal(TENSORS, FACTS))
    data[int(at * len(data))] ^= change
    file = tmp_path / "x"
    file.write_bytes(data)
    try:
        tensors, facts = unseal(file)
    except ValueError:
        return
    # A blank of the header's padding that became another kind of blank: the content is whole.
    assert facts == FACTS
    assert seal(tensors, facts) == seal(TENSORS, FACTS)


@pytest.mark.parametrize("length", [0, 1, 8, 100, -1])
def test_a_file_cut_short_is_found(length: int, tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.write_bytes(seal(TENSORS, FACTS)[:length])
    with pytest.raises(ValueError, match="not a whole safetensors file"):
        unseal(file)


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not a whole safetensors file"):
        unseal(tmp_path / "none")


def test_a_change_of_a_tensor_or_a_fact_under_a_whole_container_is_found(tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.write_bytes(seal(TENSORS, FACTS))
    with safetensors.safe_open(str(file), framework="numpy") as stream:
        whole: Any = stream.metadata()
    for changed in ({**whole, "facts": '{"updates": 13}'}, whole):
        tensors = {**TENSORS, "scalar": np.array(8 if changed is whole else 7)}
        file.write_bytes(
            safetensors.numpy.save({k: np.asarray(v, order="C") for k, v in tensors.items()}, metadata=changed)
        )
        with pytest.raises(ValueError, match="digest does not match"):
            unseal(file)


def test_another_format_is_told(tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.write_bytes(safetensors.numpy.save({"a": np.zeros(1)}, metadata={"format_version": "9"}))
    with pytest.raises(ValueError, match="format version is '9'"):
        unseal(file)
    file.write_bytes(safetensors.numpy.save({"a": np.zeros(1)}))
    with pytest.raises(ValueError, match="format version is None"):
        unseal(file)


def test_a_sealed_file_is_written_as_it_is_sealed(tmp_path: Path) -> None:
    write_sealed(tmp_path / "a" / "x", TENSORS, FACTS)
    (tmp_path / "y").write_bytes(seal(TENSORS, FACTS))
    (tensors, facts), (expected, its) = unseal(tmp_path / "a" / "x"), unseal(tmp_path / "y")
    assert facts == its
    assert set(tensors) == set(expected)
    for name, tensor in expected.items():
        np.testing.assert_array_equal(tensors[name], tensor)
    assert [file.name for file in (tmp_path / "a").iterdir()] == ["x"]
    assert (tmp_path / "a" / "x").stat().st_mode & 0o777 == 0o640 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small disk takes root")
def test_a_disk_that_is_full_is_told_and_nothing_is_left(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(disk)], check=False)
    if mounted.returncode:
        pytest.skip("no file system may be mounted here")
    try:
        write_sealed(disk / "x", {"a": np.zeros(10)}, FACTS)
        with pytest.raises(UserError, match=r"cannot write '.*/y': No space left on device; free some space"):
            write_sealed(disk / "y", {"a": np.zeros(100_000)}, FACTS)
        assert [file.name for file in disk.iterdir()] == ["x"]
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.parametrize("said", ["I/O error: what (os error 28)", "IoError(Os { code: 28, kind: StorageFull })"])
def test_an_error_of_the_system_keeps_its_number(said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_args: Any, **_options: Any) -> None:
        raise safetensors.SafetensorError(f"Error while serializing: {said}")

    monkeypatch.setattr(safetensors.numpy, "save_file", fail)
    with pytest.raises(UserError, match="No space left on device; free some space"):
        write_sealed(tmp_path / "x", TENSORS, FACTS)
    assert list(tmp_path.iterdir()) == []
