"""Packages that come with a base image, in the resolution of what goes on top."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from builder.base.errors import SourceError
from builder.definitions.image import PythonRequirements
from builder.lock.model import LockedPackage
from builder.sources import python
from builder.sources.git import UserSettings
from tests.sources.wheelhouse import make_index, make_wheel

if TYPE_CHECKING:
    from pathlib import Path


BASE = (
    LockedPackage("vllm", "0.23.1rc1.dev12+g0fc695fc6", ()),  # no index has it
    LockedPackage("torch", "2.13.0+cu130", ()),
    LockedPackage("transformers", "5.2.0", ()),
    LockedPackage("python-apt", "2.4.0+ubuntu4.1", ()),
    LockedPackage("distro-info", "1.1build1", ()),  # no version that a resolver can read
    LockedPackage("uv", "0.9.0", ()),
)


@pytest.fixture
def settings(tmp_path: Path) -> UserSettings:
    """An index whose vllm, another one, needs what nobody has."""
    folder = tmp_path / "files"
    wheels = [
        make_wheel(folder, "extra", "1.0", requires=("vllm", "torch>=2")),
        make_wheel(folder, "transformers", "5.2.0", requires=("nobody-has-this",)),
        make_wheel(folder, "transformers", "5.3.0"),
        make_wheel(folder, "transformers", "5.9.0"),
        make_wheel(folder, "vllm", "0.20.0", requires=("nobody-has-this",)),
        make_wheel(folder, "torch", "2.14.0"),
        make_wheel(folder, "uv", "0.11.0"),
    ]
    return UserSettings(index_url=make_index(tmp_path / "simple", wheels))


def resolve(settings: UserSettings, *requirements: str, previous: tuple[LockedPackage, ...] = ()) -> dict[str, str]:
    wants = PythonRequirements(version="3.12", glibc="2.39", packages=())
    request = python.ClosureRequest(wants, (), (*requirements, "uv"), "linux/arm64", previous)
    closure = python.resolve_closure(request, settings, BASE).pin
    there = {package.name: package.version for package in BASE}
    return {package.name: package.version for package in closure.packages if there.get(package.name) != package.version}


def test_only_what_the_base_lacks_is_added_and_nothing_of_it_moves(settings: UserSettings) -> None:
    assert resolve(settings, "extra") == {"extra": "1.0"}


def test_what_is_asked_for_itself_stays_where_it_fits_and_moves_where_it_does_not(settings: UserSettings) -> None:
    assert resolve(settings, "transformers>=5") == {}
    assert resolve(settings, "transformers>=5.3") == {"transformers": "5.9.0"}
    before = (LockedPackage("transformers", "5.3.0", ("0" * 64,)),)
    assert resolve(settings, "transformers>=5.3", previous=before) == {"transformers": "5.3.0"}
    assert resolve(settings, "transformers>=5", previous=before) == {"transformers": "5.3.0"}


def test_what_does_not_go_with_the_base_is_an_error(settings: UserSettings, tmp_path: Path) -> None:
    make_wheel(tmp_path / "files", "wants-newer", "1.0", requires=("torch>=2.14",))
    make_index(tmp_path / "simple", sorted((tmp_path / "files").glob("*.whl")))
    with pytest.raises(SourceError, match=r"torch==2\.13\.0\+cu130"):
        resolve(settings, "wants-newer")
