"""Wheels looked up by the real uv, on an index and in a folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from builder.base.errors import SourceError
from builder.definitions.image import Index, PythonRequirements
from builder.sources import wheels
from builder.sources.git import UserSettings
from builder.sources.wheels import Wheel, WheelRequest
from tests.sources.wheelhouse import make_index, make_simple_index, make_wheel, serving, sha256

if TYPE_CHECKING:
    from pathlib import Path


WANTS = PythonRequirements("3.12", "2.39", ())
TAGS = ("cp38-abi3-manylinux_2_35_x86_64", "cp38-abi3-manylinux_2_35_aarch64", "cp311-cp311-manylinux_2_35_aarch64")


def find(folder: Path, settings: UserSettings, platform: str, hashes: tuple[str, ...] = ()) -> Wheel:
    wanted = WheelRequest("vllm==0.20.0", WANTS, platform, frozenset(hashes))
    return wheels.find_wheel(folder / "cache", wanted, settings)


def test_the_platforms_own_wheel_is_taken_and_else_any(tmp_path: Path) -> None:
    x86, arm, _ = (make_wheel(tmp_path / "files", "vllm", "0.20.0", tag) for tag in TAGS)
    make_simple_index(tmp_path / "files")
    with serving(tmp_path / "files") as server:
        settings = UserSettings(index_url=f"{server.url}/simple")
        assert find(tmp_path, settings, "linux/amd64") == Wheel(f"{server.url}/{x86.name}", sha256(x86))
        assert find(tmp_path, settings, "linux/arm64").sha256 == sha256(arm)
        assert find(tmp_path, settings, "linux/arm64", (sha256(x86),)).sha256 == sha256(x86)
    settings = UserSettings(index_url=make_index(tmp_path / "simple", [x86]))
    assert find(tmp_path, settings, "linux/arm64") == Wheel(x86.as_uri(), sha256(x86))


def test_an_index_is_asked_once_for_a_version(tmp_path: Path) -> None:
    make_wheel(tmp_path / "files", "vllm", "0.20.0")
    make_simple_index(tmp_path / "files")
    with serving(tmp_path / "files") as server:
        settings = UserSettings(index_url=f"{server.url}/simple")
        first = find(tmp_path, settings, "linux/amd64")
        server.sent.clear()
        assert find(tmp_path, settings, "linux/amd64") == first
        assert server.sent == []


def test_a_pinned_wheel_that_the_index_did_not_have_is_asked_for_again(tmp_path: Path) -> None:
    make_wheel(tmp_path / "files", "vllm", "0.20.0", TAGS[0])
    make_simple_index(tmp_path / "files")
    with serving(tmp_path / "files") as server:
        settings = UserSettings(index_url=f"{server.url}/simple")
        find(tmp_path, settings, "linux/arm64")
        later = make_wheel(tmp_path / "files", "vllm", "0.20.0", TAGS[1])
        make_simple_index(tmp_path / "files")
        assert find(tmp_path, settings, "linux/arm64", (sha256(later),)).sha256 == sha256(later)


def test_a_wheel_in_a_folder_may_be_made_anew(tmp_path: Path) -> None:
    settings = UserSettings(index_url=make_index(tmp_path / "simple", []), find_links=(str(tmp_path / "own"),))
    for content in ("one", "two"):
        made = make_wheel(tmp_path / "own", "vllm", "0.20.0", files={"vllm/a.py": content})
        assert find(tmp_path, settings, "linux/amd64") == Wheel(made.as_uri(), sha256(made))


def test_an_index_that_serves_this_package_alone_is_asked_for_it(tmp_path: Path) -> None:
    made = make_wheel(tmp_path / "files", "vllm", "0.20.0")
    wants = PythonRequirements("3.12", "2.39", (), indexes=(Index(make_index(tmp_path / "own", [made]), ("vllm",)),))
    settings = UserSettings(index_url=make_index(tmp_path / "simple", []))
    wheel = wheels.find_wheel(tmp_path / "cache", WheelRequest("vllm==0.20.0", wants, "linux/amd64"), settings)
    assert wheel.sha256 == sha256(made)


def test_no_such_version_and_no_such_wheel_are_said(tmp_path: Path) -> None:
    settings = UserSettings(
        index_url=make_index(tmp_path / "simple", [make_wheel(tmp_path / "files", "vllm", "0.20.0")])
    )
    with pytest.raises(SourceError, match=r"no wheel of vllm==9 is found:\n(?s:.*)no version of vllm==9"):
        wheels.find_wheel(tmp_path / "cache", WheelRequest("vllm==9", WANTS, "linux/amd64"), settings)
    with pytest.raises(SourceError, match="none of the wheels of vllm==0.20.0 that are found is the pinned one"):
        find(tmp_path, settings, "linux/amd64", ("0" * 64,))
