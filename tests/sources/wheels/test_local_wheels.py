from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from builder.base.errors import SourceError
from builder.definitions.image import PythonRequirements
from builder.sources import python, wheels
from builder.sources.git import UserSettings
from tests.sources.wheelhouse import make_index, make_wheel, sha256

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.slow


def test_a_pinned_wheel_is_staged_for_its_group(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "local", "torch", "2.13.0+cpu")
    make_wheel(tmp_path / "local", "other", "1")
    settings = UserSettings(find_links=(f"file://{tmp_path / 'local'}",))
    assert wheels.stage(tmp_path / "out", {"cpu-index-1": frozenset([sha256(wheel)])}, settings)
    staged = [str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*.whl")]
    assert staged == [f"cpu-index-1/{wheel.name}"]


def test_a_wheel_with_another_hash_stays_where_it_is(tmp_path: Path) -> None:
    make_wheel(tmp_path / "local", "torch", "2.13.0+cpu")
    settings = UserSettings(find_links=(str(tmp_path / "local"),))
    assert not wheels.stage(tmp_path / "out", {"cpu-index-1": frozenset(["0" * 64])}, settings)
    assert not wheels.stage(tmp_path / "out", {}, settings)
    assert not (tmp_path / "out").exists()


def test_uv_unpacks_a_local_wheel_once_however_often_it_is_staged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """uv takes a wheel whose ctime changed for another one, and a hard link to it changes its ctime."""
    cache = tmp_path / "cache"
    monkeypatch.setenv("UV_CACHE_DIR", str(cache))
    wheel = make_wheel(tmp_path / "local", "torch", "2.13.0+cpu")
    settings = UserSettings(index_url=make_index(tmp_path / "simple", []), find_links=(str(tmp_path / "local"),))
    wants = PythonRequirements(version="3.12", glibc="2.39", packages=("torch",))
    unpacked = []
    for build in ("first", "second"):
        resolved = python.resolve_closure(python.ClosureRequest(wants, (), wants.packages, "linux/amd64"), settings)
        assert [package.name for package in resolved.pin.packages] == ["torch"]
        unpacked.append(len(list((cache / "archive-v0").iterdir())))
        assert wheels.stage(tmp_path / build, {"cpu": frozenset([sha256(wheel)])}, settings)
        shutil.rmtree(tmp_path / build)
    assert unpacked == [1, 1]


def test_a_wheel_that_cannot_be_copied_is_named(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "local", "torch", "2.13.0+cpu")
    settings = UserSettings(find_links=(str(tmp_path / "local"),))
    (tmp_path / "out").touch()
    with pytest.raises(SourceError, match="cpu: Not a directory"):
        wheels.stage(tmp_path / "out", {"cpu": frozenset([sha256(wheel)])}, settings)
