"""Packages of the pinned source's own time, from an index on a server that gives upload times, and from one that gives
none."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from builder.base.errors import FileProblemsError, SourceError
from builder.base.project import Project
from builder.definitions import image
from builder.engine import client as endpoints
from builder.lock.model import BasePin, Pins
from builder.pins import chain, pinning
from builder.pins.resolver import Resolver
from builder.sources.git import UserSettings
from tests import projects
from tests.pinning.bases import no_contents
from tests.sources.wheelhouse import make_dated_index, make_index, make_wheel, serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from builder.lock.model import PythonPin


pytestmark = pytest.mark.slow

PLATFORM = "linux/arm64"
BASE = BasePin("debian:bookworm-slim", "sha256:" + "b" * 64)
RELEASED = "2026-03-01T08:00:00Z"
LIMIT = "2026-03-15T08:00:00Z"
UPLOADS = {
    ("vllm", "0.21.0"): RELEASED,
    ("vllm", "0.22.0"): "2026-05-01T00:00:00Z",
    ("serve", "1.0"): "2026-02-01T00:00:00Z",
    ("serve", "1.1"): "2026-03-14T00:00:00Z",
    ("serve", "2.0"): "2026-03-16T00:00:00Z",
    ("kernel", "1.0"): "2026-01-01T00:00:00Z",
    ("kernel", "2.0"): "2026-06-01T00:00:00Z",
    ("uv", "1.0"): "2026-01-01T00:00:00Z",
}


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[UserSettings]:
    folder = tmp_path / "index"
    wheels = {make_wheel(folder, name, version): time for (name, version), time in UPLOADS.items()}
    make_dated_index(folder, wheels)
    with serving(folder) as server:
        yield UserSettings(index_url=f"{server.url}/simple")


@pytest.fixture
def undated(tmp_path: Path) -> UserSettings:
    wheels = [make_wheel(tmp_path / "undated", name, version) for name, version in UPLOADS]
    return UserSettings(index_url=make_index(tmp_path / "undated-simple", wheels))


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path / "project")


def define(
    project: Project, python: str, name: str = "wheel", sources: str = "vllm: {wheel: vllm==0.21.0}"
) -> image.ImageDefinition:
    folder = project.dockerfiles / name
    start = "from: wheel" if name == "top" else f"base: {BASE.requested}\nsources: {{{sources}}}"
    text = f'{start}\npython: {{version: "3.12", {python}}}\n'
    head = f"repository: {name}\ndescription: {name}\nplatform: {PLATFORM}\n"
    projects.write(folder / "image.yaml", head + text)
    projects.write(folder / "Dockerfile.j2", "FROM {{ base }}\n")
    return image.load_image(project, name, PLATFORM)


def resolver(project: Project, settings: UserSettings, messages: list[str]) -> Resolver:
    def no_registry(reference: str, platform: str) -> str:
        raise SourceError(f"no registry has {reference} for {platform}")

    return Resolver(project, settings, no_registry, no_contents, lambda message: messages.append(str(message)))


def resolve(
    definition: image.ImageDefinition,
    project: Project,
    settings: UserSettings,
    before: Pins | None = None,
    update: tuple[str, ...] = (),
    messages: list[str] | None = None,
) -> PythonPin:
    sources = resolver(project, settings, [] if messages is None else messages)
    moves = dict.fromkeys(update)
    completed = pinning.resolve_missing(definition, before or Pins(BASE), (), sources, moves)
    assert not completed.faults, completed.faults
    assert completed.pins.python is not None
    return completed.pins.python


def versions(pin: PythonPin) -> dict[str, str]:
    return {package.name: package.version for package in pin.packages if package.name != "uv"}


def test_a_release_gets_packages_of_its_own_time(project: Project, settings: UserSettings) -> None:
    pin = resolve(define(project, "packages: [serve, kernel]"), project, settings)
    assert versions(pin) == {"vllm": "0.21.0", "serve": "1.1", "kernel": "1.0"}
    assert pin.as_of == LIMIT


def test_the_newest_release_does_as_well(project: Project, settings: UserSettings) -> None:
    pin = resolve(define(project, "packages: [serve, kernel]", sources="vllm: {wheel: vllm}"), project, settings)
    assert versions(pin) == {"vllm": "0.22.0", "serve": "2.0", "kernel": "1.0"}
    assert pin.as_of == "2026-05-15T00:00:00Z"


def test_today_takes_the_newest(project: Project, settings: UserSettings) -> None:
    pin = resolve(define(project, "as_of: today, packages: [serve, kernel]"), project, settings)
    assert versions(pin) == {"vllm": "0.21.0", "serve": "2.0", "kernel": "2.0"}
    assert (pin.as_of, "as of today" in pin.requested) == ("", True)


def test_a_day_of_the_users_choice_includes_that_day(project: Project, settings: UserSettings) -> None:
    pin = resolve(define(project, "as_of: 2026-03-16, packages: [serve, kernel]"), project, settings)
    assert versions(pin) == {"vllm": "0.21.0", "serve": "2.0", "kernel": "1.0"}
    assert (pin.as_of, "as of 2026-03-16" in pin.requested) == ("2026-03-16T23:59:59Z", True)


def test_another_day_makes_the_pin_stale_and_the_default_does_not(project: Project, settings: UserSettings) -> None:
    """A closure from before there were days is one for the default."""
    default = define(project, "packages: [serve]")
    pins = pinning.resolve_missing(default, Pins(BASE), (), resolver(project, settings, []), {}).pins
    assert pins.python is not None
    older = replace(pins, python=replace(pins.python, as_of=""))
    assert pinning.stale_pins(default, older, ()) == ()
    assert pinning.stale_pins(define(project, "as_of: source, packages: [serve]"), older, ()) == ()
    assert pinning.stale_pins(define(project, "as_of: today, packages: [serve]"), older, ()) == ("python",)


def test_what_is_requested_by_an_exact_version_may_be_newer(project: Project, settings: UserSettings) -> None:
    pin = resolve(define(project, "packages: [serve, kernel==2.0]"), project, settings)
    assert versions(pin) == {"vllm": "0.21.0", "serve": "1.1", "kernel": "2.0"}
    named = ("kernel==2.0", "serve>=1", "Flash_QLA == 0.1.3", "ray[default]", "torch==2.*", "not a requirement!")
    assert pinning.exactly_requested(named) == {"kernel", "flash-qla"}


def test_one_that_is_newer_by_its_exact_version_takes_no_other_along(project: Project, settings: UserSettings) -> None:
    """When the closure is resolved again, its limit is the one before, and not that package's upload."""
    first = define(project, "packages: [kernel==2.0]")
    before = pinning.resolve_missing(first, Pins(BASE), (), resolver(project, settings, []), {}).pins
    assert before.python is not None
    assert before.python.newest > UPLOADS["serve", "2.0"]
    pin = resolve(define(project, "packages: [serve, kernel==2.0]"), project, settings, before)
    assert versions(pin) == {"vllm": "0.21.0", "serve": "1.1", "kernel": "2.0"}
    assert pin.as_of == LIMIT


def test_packages_of_a_closure_that_is_kept_are_not_too_new(project: Project, settings: UserSettings) -> None:
    """Nothing moves by itself: not back, either, because another package was added."""
    today = define(project, "as_of: today, packages: [serve]")
    before = pinning.resolve_missing(today, Pins(BASE), (), resolver(project, settings, []), {}).pins
    more = define(project, "packages: [serve, kernel]")
    assert versions(resolve(more, project, settings, before)) == {"vllm": "0.21.0", "serve": "2.0", "kernel": "1.0"}
    moved = resolve(more, project, settings, before, ("python",))
    assert (versions(moved)["serve"], moved.as_of) == ("1.1", LIMIT)
    other = define(project, "packages: [serve, kernel]", sources="vllm: {wheel: vllm==0.22.0}")
    assert resolve(other, project, settings, before).as_of == "2026-05-15T00:00:00Z"


def test_an_image_on_top_takes_nothing_newer_than_the_one_below(project: Project, settings: UserSettings) -> None:
    below, top = define(project, "packages: [serve]"), define(project, "packages: [kernel]", "top")
    sources = resolver(project, settings, [])
    pins = pinning.resolve_missing(below, Pins(BASE), (), sources, {}).pins
    assert pins.python is not None
    inherited = pins.python.packages
    completed = pinning.resolve_missing(top, Pins(), inherited, sources, {}, pins.python.as_of).pins.python
    assert completed is not None
    assert (versions(completed), completed.as_of) == ({"kernel": "1.0"}, LIMIT)


def test_an_index_without_dates_is_said(project: Project, undated: UserSettings) -> None:
    messages: list[str] = []
    pin = resolve(define(project, "packages: [serve]"), project, undated, messages=messages)
    assert (versions(pin), pin.as_of) == ({"vllm": "0.21.0", "serve": "2.0"}, "")
    assert any("the day of its vllm is not known, so its packages are those of today" in text for text in messages)
    messages.clear()
    pin = resolve(define(project, "as_of: 2026-03-16, packages: [serve]"), project, undated, messages=messages)
    assert (versions(pin), pin.as_of) == ({"vllm": "0.21.0", "serve": "2.0"}, "")
    assert any("gives no upload dates, so its packages are those of today" in text for text in messages)


def test_a_day_that_is_none_is_an_error_with_its_line(project: Project) -> None:
    with pytest.raises(FileProblemsError, match="there is no day 2026-02-30") as caught:
        define(project, "as_of: 2026-02-30, packages: [serve]")
    assert caught.value.problems[0].location.line == 6
    with pytest.raises(FileProblemsError):
        define(project, "as_of: yesterday, packages: [serve]")


def test_what_the_chain_passes_on(project: Project, settings: UserSettings) -> None:
    from builder.lock.model import Lock
    from tests.workspaces import workspace

    below, top = define(project, "packages: [serve]"), define(project, "packages: [kernel]", "top")
    made = workspace(project, endpoints.find_endpoint(os.environ), {"UV_DEFAULT_INDEX": settings.index_url})
    lock = Lock().with_pins("wheel", PLATFORM, Pins(BASE))
    python = chain.resolve_missing(made, lock, [(below, top)], {})["top"].pins.python
    assert python is not None
    assert python.as_of == LIMIT
