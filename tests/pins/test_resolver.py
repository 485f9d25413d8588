"""Sources that come with a base image: pinned with it, moved with it, and never apart from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from builder.base.errors import FileProblemsError, SourceError, UsageError
from builder.base.project import Project
from builder.building.resolve import stale_chain
from builder.definitions import image
from builder.lock.model import BasePin, IncludedPin, Lock, LockedPackage, Pins, Version
from builder.pins import pinning
from builder.pins.pinning import ResolvedPins
from builder.pins.resolver import BaseContents, Resolver
from builder.sources.git import UserSettings
from tests import projects
from tests.sources.wheelhouse import make_index, make_wheel

if TYPE_CHECKING:
    from pathlib import Path


PLATFORM = "linux/arm64"
OLD, NEW = "sha256:" + "1" * 64, "sha256:" + "2" * 64
COMMIT = "0fc695fc6d1d82e9a5ac6835ac8e4e1c83703665"


def contents(vllm: str, python: str = "3.12.3", **packages: str) -> BaseContents:
    names = {"vllm": vllm, **packages}
    return BaseContents(
        "2026-11-19T10:00:00Z",
        python,
        {"vllm": Version(vllm, COMMIT)},
        tuple(LockedPackage(name, version, ()) for name, version in sorted(names.items())),
    )


@dataclass
class Registry:
    """A registry whose one tag means ``digest``, and what is in the images that it has."""

    digest: str = OLD
    images: dict[str, BaseContents] = field(
        default_factory=lambda: {OLD: contents("0.23.0", torch="2.13.0"), NEW: contents("0.24.0", torch="2.14.0")}
    )
    read: list[str] = field(default_factory=list)
    settings: UserSettings = field(default_factory=UserSettings)

    def resolver(self, project: Project) -> Resolver:
        return Resolver(project, self.settings, str, lambda *_: self.digest, self.contents, lambda _: None)

    def contents(self, base: BasePin, _: str) -> BaseContents:
        self.read.append(base.resolved)
        if base.resolved not in self.images:
            raise SourceError("the registry does not answer")
        return self.images[base.resolved]


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return projects.make(tmp_path)


def define(project: Project, name: str, text: str) -> None:
    folder = project.dockerfiles / name
    projects.write(folder / "image.yaml", f"repository: {name}\ndescription: x\nplatform: {PLATFORM}\n{text}")
    projects.write(folder / "Dockerfile.j2", '{% include "_parts/on_base.j2" %}\n')


def resolve(
    project: Project, registry: Registry, pins: Pins, update: dict[str, str | None] | None = None
) -> ResolvedPins:
    definition = image.load_image(project, "node", PLATFORM)
    return pinning.resolve_missing(definition, pins, (), registry.resolver(project), update or {})


def test_what_the_base_brings_is_pinned_with_it_and_moves_with_it(project: Project) -> None:
    define(project, "node", "base: others/vllm:latest\nsources: {vllm: base}\n")
    registry = Registry()
    first = resolve(project, registry, Pins())
    assert first.faults == ()
    assert first.pins.sources == {"vllm": IncludedPin(OLD, "0.23.0", COMMIT)}
    assert first.pins.base is not None
    assert [package.name for package in first.pins.base.packages] == ["torch", "vllm"]
    definition = image.load_image(project, "node", PLATFORM)
    assert pinning.stale_pins(definition, first.pins, ()) == ()

    # The tag moves: nothing is stale, and only --update base moves the pins.
    registry.digest = NEW
    assert pinning.stale_pins(definition, first.pins, ()) == ()
    second = resolve(project, registry, first.pins, {"base": None})
    assert second.pins.sources == {"vllm": IncludedPin(NEW, "0.24.0", COMMIT)}
    assert registry.read == [OLD, NEW]

    # An update that finds the same base reads nothing again.
    assert resolve(project, registry, second.pins, {"base": None}).pins == second.pins
    assert registry.read == [OLD, NEW]


def test_a_base_that_cannot_be_read_leaves_the_pins_as_they_were(project: Project) -> None:
    define(project, "node", "base: others/vllm:latest\nsources: {vllm: base}\n")
    registry = Registry()
    first = resolve(project, registry, Pins()).pins
    registry.digest = "sha256:" + "3" * 64
    failed = resolve(project, registry, first, {"base": None})
    assert failed.pins == first
    assert [fault.error.message for fault in failed.faults] == ["the registry does not answer"]


def test_pins_without_what_the_base_brings_are_stale(project: Project) -> None:
    """As labels give them back: they hold no packages."""
    define(project, "node", "base: others/vllm:latest\nsources: {vllm: base}\n")
    pins = Pins(BasePin("others/vllm:latest", OLD), {"vllm": IncludedPin(OLD, "0.23.0")})
    registry = Registry(digest=NEW)
    resolved = resolve(project, registry, pins).pins
    assert resolved.base is not None
    assert resolved.base.resolved == OLD
    assert resolved.sources["vllm"].version == "0.23.0"


def test_a_source_that_comes_with_the_base_is_not_moved_alone(project: Project) -> None:
    define(project, "node", "base: others/vllm:latest\nsources: {vllm: base}\n")
    with pytest.raises(UsageError, match="comes with its base image") as caught:
        resolve(project, Registry(), Pins(), {"vllm": None})
    assert "--update base" in caught.value.hint


def test_a_base_without_it_is_an_error(project: Project) -> None:
    define(project, "node", "base: others/vllm:latest\nsources: {vllm: base, flashinfer: base}\n")
    failed = resolve(project, Registry(), Pins())
    assert "does not contain flashinfer" in failed.faults[0].error.message
    assert failed.pins == Pins()


def test_from_another_definition_there_is_no_base(project: Project) -> None:
    define(project, "node", "base: others/vllm:latest\nsources: {vllm: base}\n")
    define(project, "top", "from: node\nsources: {vllm: base}\n")
    with pytest.raises(FileProblemsError, match="built on the definition node"):
        image.load_chain(project, "top", PLATFORM)


@pytest.mark.long
@pytest.mark.slow
def test_packages_go_on_top_of_what_the_base_has(project: Project, tmp_path: Path) -> None:
    wheels = [make_wheel(tmp_path / "files", name, "1.0", requires=("torch",)) for name in ("extra", "child")]
    wheels.append(make_wheel(tmp_path / "files", "uv", "1.0"))
    registry = Registry(settings=UserSettings(index_url=make_index(tmp_path / "simple", wheels)))
    python = 'python: {version: "3.12", packages: [extra]}\n'
    define(project, "node", f"base: others/vllm:latest\nsources: {{vllm: base}}\n{python}")
    define(project, "top", 'from: node\npython: {version: "3.12", packages: [child]}\n')
    definitions = image.load_chain(project, "top", PLATFORM)
    lock = Lock()
    inherited: pinning.Inherited = ()
    names = []
    for definition in definitions:
        resolved = pinning.resolve_missing(definition, Pins(), inherited, registry.resolver(project), {})
        assert resolved.faults == ()
        lock = lock.with_pins(definition.name, PLATFORM, resolved.pins)
        assert resolved.pins.python is not None
        names.append([package.name for package in resolved.pins.python.packages])
        inherited = (*(inherited or ()), *(resolved.pins.base.packages if resolved.pins.base else ()))
        inherited = (*inherited, *resolved.pins.python.packages)
    assert names == [["extra", "uv"], ["child"]]
    assert stale_chain(lock, definitions) == {}

    # Another base: the packages are those on top of it.
    registry.digest = NEW
    before = lock.pins_of("node", PLATFORM)
    moved = pinning.resolve_missing(definitions[0], before, (), registry.resolver(project), {"base": None}).pins
    assert moved.python is not None
    assert before.python is not None
    assert moved.python.requested != before.python.requested
    assert set(stale_chain(lock.with_pins("node", PLATFORM, moved), definitions)) == {"top"}


def test_packages_for_another_python_are_an_error(project: Project) -> None:
    python = 'python: {version: "3.11", packages: [extra]}\n'
    define(project, "node", f"base: others/vllm:latest\nsources: {{vllm: base}}\n{python}")
    failed = resolve(project, Registry(), Pins())
    assert "the Python of others/vllm:latest is 3.12.3" in failed.faults[0].error.message
