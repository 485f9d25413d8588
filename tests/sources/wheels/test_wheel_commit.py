from __future__ import annotations

import zipfile
from typing import TYPE_CHECKING

import pytest

from builder.base.errors import SourceError
from builder.sources import wheels
from tests.sources.wheelhouse import Served, serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


VERSION = "__version__ = version = '0.19.1'\n__commit_id__ = commit_id = {commit}\n"


def make(folder: Path, commit: str) -> Path:
    path = folder / "vllm-0.19.1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("vllm/kernels.so", b"\0" * 1_000_000)
        archive.writestr("vllm/_version.py", VERSION.format(commit=commit))
        archive.writestr("vllm/third_party/_version.py", VERSION.format(commit="'gffffffff'"))
    return path


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serving(tmp_path) as server:
        yield server


def test_the_commit_is_read_without_the_whole_wheel(tmp_path: Path, served: Served) -> None:
    wheel = make(tmp_path, "'gb1388b1fb'")
    assert wheels.read_wheel_commit(f"{served.url}/{wheel.name}", None) == "b1388b1fb"
    assert sum(served.sent) < wheel.stat().st_size / 4


@pytest.mark.parametrize(("commit", "expected"), [("'gb1388b1fb'", "b1388b1fb"), ("None", None)])
def test_a_local_wheel_is_read_as_well(tmp_path: Path, commit: str, expected: str | None) -> None:
    assert wheels.read_wheel_commit(make(tmp_path, commit).as_uri(), None) == expected


def test_what_is_no_wheel_is_said(tmp_path: Path, served: Served) -> None:
    (tmp_path / "x.whl").write_bytes(b"not a zip file")
    for address in (f"{served.url}/x.whl", f"{served.url}/none.whl", (tmp_path / "none.whl").as_uri()):
        with pytest.raises(SourceError, match="cannot be read"):
            wheels.read_wheel_commit(address, None)
