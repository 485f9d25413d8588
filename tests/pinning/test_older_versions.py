"""Packages and sources that new pins take back to an older version, with an index that a server offers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from builder.base.errors import SourceError
from builder.base.events import Message
from builder.base.project import Project
from builder.building import resolve
from builder.building.resolve import BuildRequest
from builder.definitions import image
from builder.lock.model import GitPin, Lock, LockedPackage, Pins, PythonPin
from builder.pins import pinning
from builder.pins.pinning import ResolvedPins
from builder.sources.git import UserSettings
from tests import projects, workspaces
from tests.sources.wheelhouse import make_dated_index, make_wheel, serving

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path


PLATFORM = "linux/arm64"
BEFORE = {"behind": "3.0", "limited": "2.0", "kernel": "2.0", "same": "1.0", "up": "1.0", "vllm": "0.22.0"}
AFTER = {"behind": "2.0", "limited": "1.0", "kernel": "1.0", "same": "1.0", "up": "2.0", "vllm": "0.21.0"}
INDEX = [("behind", "2.0"), ("limited", "1.0"), ("limited", "2.0"), ("kernel", "2.0"), ("vllm", "0.22.0")]
GIT = GitPin("https://git.example/x.git", "main", "a" * 40, "0.2", "2026-09-01T00:00:00Z")


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[UserSettings]:
    folder = tmp_path / "index"
    make_dated_index(folder, {make_wheel(folder, *each): "2026-06-01T00:00:00Z" for each in INDEX})
    with serving(folder) as server:
        yield UserSettings(index_url=f"{server.url}/simple")


@pytest.fixture
def definition(tmp_path: Path) -> image.ImageDefinition:
    project = Project(tmp_path / "project")
    text = f"repository: app\ndescription: app\nplatform: {PLATFORM}\nbase: debian:bookworm-slim\n"
    text += 'sources: {vllm: {wheel: vllm}}\npython: {version: "3.12", packages: [uv]}\n'
    projects.write(project.dockerfiles / "app/image.yaml", text)
    projects.write(project.dockerfiles / "app/Dockerfile.j2", "FROM {{ base }}\n")
    return image.load_image(project, "app", PLATFORM)


def pins(versions: Mapping[str, str], as_of: str = "") -> Pins:
    packages = tuple(LockedPackage(name, version, ("1" * 64,)) for name, version in versions.items())
    return Pins(python=PythonPin((), "", packages, as_of))


def test_each_package_that_goes_back_is_named_with_the_reason(
    definition: image.ImageDefinition, settings: UserSettings
) -> None:
    older = pinning.versions_between(definition, pins(BEFORE), pins(AFTER), {"python": None}, settings)
    assert [str(each) for each in older] == [
        "behind goes back from 3.0 to 2.0: the package index offers nothing newer than 2.0",
        "kernel goes back from 2.0 to 1.0: the requirements of other packages exclude the newer version",
        "limited goes back from 2.0 to 1.0: the requirements of other packages exclude the newer version",
        "vllm goes back from 0.22.0 to 0.21.0: the requirements of other packages exclude the newer version",
    ]
    limited = pins(AFTER, "2026-05-01T00:00:00Z")
    older = pinning.versions_between(definition, pins(BEFORE), limited, {"vllm": "0.21.0"}, settings)
    assert [each.name for each in older] == ["behind", "kernel", "limited"]  # that vLLM was asked for
    assert older[2].why == "nothing newer than 2026-05-01 is taken"


def test_an_index_that_does_not_answer_leaves_the_reason_out(definition: image.ImageDefinition) -> None:
    nowhere = UserSettings(index_url="http://127.0.0.1:9/simple")
    (older, *_) = pinning.versions_between(definition, pins(BEFORE), pins(AFTER), {}, nowhere)
    assert str(older) == "behind goes back from 3.0 to 2.0"


def test_an_older_commit_of_a_source_goes_back(definition: image.ImageDefinition) -> None:
    before = Pins(sources={"kernel": GIT})
    after = Pins(sources={"kernel": replace(GIT, version="0.1", date="2026-08-01T00:00:00Z")})
    (older,) = pinning.versions_between(definition, before, after, {"kernel": None}, UserSettings())
    assert str(older) == "kernel goes back from 0.2 to 0.1: its commit is older"
    assert pinning.versions_between(definition, before, after, {"kernel": "v0.1"}, UserSettings()) == ()
    assert pinning.versions_between(definition, after, before, {}, UserSettings()) == ()


def test_a_build_names_what_goes_back_and_an_upgrade_refuses_it(
    definition: image.ImageDefinition, tmp_path: Path
) -> None:
    events: list[object] = []
    environ = {"UV_INDEX_URL": "http://127.0.0.1:9/simple"}
    project_workspace = workspaces.workspace(Project(tmp_path), workspaces.NO_ENGINE, environ, events.append)
    lock = Lock().with_pins("app", PLATFORM, pins({"serve": "2.0"}))
    moved = {"app": ResolvedPins(pins({"serve": "1.0"}))}
    resolve.say_older(project_workspace, lock, [(definition,)], moved, BuildRequest(("app",)))
    assert events == [Message("serve goes back from 2.0 to 1.0")]
    with pytest.raises(SourceError, match="serve would go back to older versions") as refused:
        resolve.say_older(project_workspace, lock, [(definition,)], moved, BuildRequest(("app",), older=False))
    assert "--allow-older" in refused.value.hint
