"""Packages of the pinned source's own time, from an index on a server that gives upload times, and from one that gives
none.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from builder.base.errors import FileProblemsError, LockError, SourceError, UsageError
from builder.base.events import Message
from builder.base.project import Project
from builder.building import resolve as resolve_of_older_versions
from builder.building.request import BuildRequest
from builder.building.resolve import Update, refuse_stale, resolve_chains, stale_chain
from builder.definitions import image
from builder.definitions.image import ImageDefinition
from builder.definitions.source_patches import SourcePatch
from builder.engine import client as endpoints
from builder.lock import lock_file
from builder.lock.model import BasePin, GitPin, Lock, LockedPackage, Pins, PythonPin, WheelPin
from builder.pins import pinning
from builder.pins.pinning import ResolvedPins
from builder.pins.resolver import Resolver
from builder.sources.git import UserSettings
from tests import projects, shipped_files, workspaces
from tests.pins.bases import no_contents
from tests.sources.git_server import Vllm, served_vllm
from tests.sources.wheelhouse import make_dated_index, make_index, make_wheel, serving
from tests.workspaces import NO_ENGINE, workspace

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path


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
def as_of_settings(tmp_path: Path) -> Iterator[UserSettings]:
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

    return Resolver(project, settings, str, no_registry, no_contents, lambda message: messages.append(str(message)))


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


@pytest.mark.slow
def test_a_release_gets_packages_of_its_own_time(project: Project, as_of_settings: UserSettings) -> None:
    pin = resolve(define(project, "packages: [serve, kernel]"), project, as_of_settings)
    assert versions(pin) == {"vllm": "0.21.0", "serve": "1.1", "kernel": "1.0"}
    assert pin.as_of == LIMIT


@pytest.mark.slow
def test_the_newest_release_does_as_well(project: Project, as_of_settings: UserSettings) -> None:
    pin = resolve(define(project, "packages: [serve, kernel]", sources="vllm: {wheel: vllm}"), project, as_of_settings)
    assert versions(pin) == {"vllm": "0.22.0", "serve": "2.0", "kernel": "1.0"}
    assert pin.as_of == "2026-05-15T00:00:00Z"


@pytest.mark.slow
def test_today_takes_the_newest(project: Project, as_of_settings: UserSettings) -> None:
    pin = resolve(define(project, "as_of: today, packages: [serve, kernel]"), project, as_of_settings)
    assert versions(pin) == {"vllm": "0.21.0", "serve": "2.0", "kernel": "2.0"}
    assert (pin.as_of, "as of today" in pin.requested) == ("", True)


@pytest.mark.slow
def test_a_day_of_the_users_choice_includes_that_day(project: Project, as_of_settings: UserSettings) -> None:
    pin = resolve(define(project, "as_of: 2026-03-16, packages: [serve, kernel]"), project, as_of_settings)
    assert versions(pin) == {"vllm": "0.21.0", "serve": "2.0", "kernel": "1.0"}
    assert (pin.as_of, "as of 2026-03-16" in pin.requested) == ("2026-03-16T23:59:59Z", True)


@pytest.mark.slow
def test_another_day_makes_the_pin_stale_and_the_default_does_not(
    project: Project, as_of_settings: UserSettings
) -> None:
    """A closure from before there were days is one for the default."""
    default = define(project, "packages: [serve]")
    pins = pinning.resolve_missing(default, Pins(BASE), (), resolver(project, as_of_settings, []), {}).pins
    assert pins.python is not None
    older = replace(pins, python=replace(pins.python, as_of=""))
    assert pinning.stale_pins(default, older, ()) == ()
    assert pinning.stale_pins(define(project, "as_of: source, packages: [serve]"), older, ()) == ()
    assert pinning.stale_pins(define(project, "as_of: today, packages: [serve]"), older, ()) == ("python",)


@pytest.mark.slow
def test_what_is_requested_by_an_exact_version_may_be_newer(project: Project, as_of_settings: UserSettings) -> None:
    pin = resolve(define(project, "packages: [serve, kernel==2.0]"), project, as_of_settings)
    assert versions(pin) == {"vllm": "0.21.0", "serve": "1.1", "kernel": "2.0"}
    named = ("kernel==2.0", "serve>=1", "Flash_QLA == 0.1.3", "ray[default]", "torch==2.*", "not a requirement!")
    assert pinning.exactly_requested(named) == {"kernel", "flash-qla"}


@pytest.mark.long
@pytest.mark.slow
def test_one_that_is_newer_by_its_exact_version_takes_no_other_along(
    project: Project, as_of_settings: UserSettings
) -> None:
    """When the closure is resolved again, its limit is the one before, and not that package's upload."""
    first = define(project, "packages: [kernel==2.0]")
    before = pinning.resolve_missing(first, Pins(BASE), (), resolver(project, as_of_settings, []), {}).pins
    assert before.python is not None
    assert before.python.newest > UPLOADS["serve", "2.0"]
    pin = resolve(define(project, "packages: [serve, kernel==2.0]"), project, as_of_settings, before)
    assert versions(pin) == {"vllm": "0.21.0", "serve": "1.1", "kernel": "2.0"}
    assert pin.as_of == LIMIT


@pytest.mark.long
@pytest.mark.slow
def test_packages_of_a_closure_that_is_kept_are_not_too_new(project: Project, as_of_settings: UserSettings) -> None:
    """Nothing moves by itself: not back, either, because another package was added."""
    today = define(project, "as_of: today, packages: [serve]")
    before = pinning.resolve_missing(today, Pins(BASE), (), resolver(project, as_of_settings, []), {}).pins
    more = define(project, "packages: [serve, kernel]")
    assert versions(resolve(more, project, as_of_settings, before)) == {
        "vllm": "0.21.0",
        "serve": "2.0",
        "kernel": "1.0",
    }
    moved = resolve(more, project, as_of_settings, before, ("python",))
    assert (versions(moved)["serve"], moved.as_of) == ("1.1", LIMIT)
    other = define(project, "packages: [serve, kernel]", sources="vllm: {wheel: vllm==0.22.0}")
    assert resolve(other, project, as_of_settings, before).as_of == "2026-05-15T00:00:00Z"


@pytest.mark.long
@pytest.mark.slow
def test_an_image_on_top_takes_nothing_newer_than_the_one_below(project: Project, as_of_settings: UserSettings) -> None:
    below, top = define(project, "packages: [serve]"), define(project, "packages: [kernel]", "top")
    sources = resolver(project, as_of_settings, [])
    pins = pinning.resolve_missing(below, Pins(BASE), (), sources, {}).pins
    assert pins.python is not None
    inherited = pins.python.packages
    completed = pinning.resolve_missing(top, Pins(), inherited, sources, {}, pins.python.as_of).pins.python
    assert completed is not None
    assert (versions(completed), completed.as_of) == ({"kernel": "1.0"}, LIMIT)


@pytest.mark.long
@pytest.mark.slow
def test_an_index_without_dates_is_said(project: Project, undated: UserSettings) -> None:
    messages: list[str] = []
    pin = resolve(define(project, "packages: [serve]"), project, undated, messages=messages)
    assert (versions(pin), pin.as_of) == ({"vllm": "0.21.0", "serve": "2.0"}, "")
    assert any("the date of its vllm is unknown, so its packages are resolved as of today" in text for text in messages)
    messages.clear()
    pin = resolve(define(project, "as_of: 2026-03-16, packages: [serve]"), project, undated, messages=messages)
    assert (versions(pin), pin.as_of) == ({"vllm": "0.21.0", "serve": "2.0"}, "")
    assert any("no upload dates for all packages" in text for text in messages)


@pytest.mark.slow
def test_a_day_that_is_none_is_an_error_with_its_line(project: Project) -> None:
    with pytest.raises(FileProblemsError, match="2026-02-30 is not a date") as caught:
        define(project, "as_of: 2026-02-30, packages: [serve]")
    assert caught.value.problems[0].location.line == 6
    with pytest.raises(FileProblemsError):
        define(project, "as_of: yesterday, packages: [serve]")


@pytest.mark.long
@pytest.mark.slow
def test_what_the_chain_passes_on(project: Project, as_of_settings: UserSettings) -> None:
    from builder.lock.model import Lock
    from tests.workspaces import workspace

    below, top = define(project, "packages: [serve]"), define(project, "packages: [kernel]", "top")
    made = workspace(project, endpoints.find_endpoint(os.environ), {"UV_DEFAULT_INDEX": as_of_settings.index_url})
    lock = Lock().with_pins("wheel", PLATFORM, Pins(BASE))
    python = resolve_chains(made, lock, [(below, top)], {})["top"].pins.python
    assert python is not None
    assert python.as_of == LIMIT


def test_packages_built_from_source_are_not_resolved() -> None:
    named = ("torch==2.10.0", "flashinfer-python==0.6.7 ; platform_machine == 'x86_64'", "FlashInfer_Cubin", "numba")
    assert pinning.without(named, {"flashinfer-python", "flashinfer-cubin"}, "a file") == ("torch==2.10.0", "numba")


def test_a_line_that_is_no_requirement_is_named() -> None:
    with pytest.raises(SourceError, match="^a.txt of b: `git\\+https://example.org/x` is not a valid requirement"):
        pinning.without(("torch", "git+https://example.org/x"), set(), "a.txt of b")


# Pins that are completed as far as they can be, and sources that are asked once a command; without an engine.

DEFINITION_PINS_BASE = BasePin("debian:bookworm-slim", "sha256:" + "b" * 64)


@pytest.fixture
def vllm(tmp_path: Path) -> Iterator[Vllm]:
    with served_vllm(tmp_path / "git") as served:
        yield served


@pytest.fixture
def definition_pins_project(tmp_path: Path, vllm: Vllm) -> Project:
    """``one`` and ``two`` take vLLM from the same branch, ``top`` is made from ``one``, ``other`` has no source."""
    project = Project(tmp_path / "project")
    source = f'sources: {{vllm: {{git: "{vllm.url}", ref: main}}}}\n'
    python = 'python: {version: "3.12", packages: [serve]}\n'
    definition_pins_define(project, "one", f"base: debian:bookworm-slim\n{source}{python}")
    definition_pins_define(project, "two", f"base: debian:bookworm-slim\n{source}")
    definition_pins_define(project, "top", 'from: one\npython: {version: "3.12", packages: [kernel]}\n')
    definition_pins_define(project, "other", "base: debian:bookworm-slim\n")
    return project


def definition_pins_define(project: Project, name: str, text: str) -> None:
    folder = project.dockerfiles / name
    projects.write(folder / "image.yaml", f"repository: {name}\ndescription: x\nplatform: {PLATFORM}\n{text}")
    projects.write(folder / "Dockerfile.j2", "FROM {{ base }}\n")


def index(folder: Path, *more: tuple[str, str]) -> UserSettings:
    """A package index of ``serve``, ``kernel``, ``uv``, and ``more`` names with versions."""
    named = [("serve", "1.0"), ("kernel", "1.0"), ("uv", "1.0"), *more]
    wheels = [make_wheel(folder / "files", name, version) for name, version in named]
    return UserSettings(index_url=make_index(folder / "simple", wheels))


def definition_pins_resolver(project: Project, settings: UserSettings) -> Resolver:
    def no_registry(reference: str, platform: str) -> str:
        raise SourceError(f"no registry has {reference} for {platform}", hint="check the network")

    return Resolver(project, settings, str, no_registry, no_contents, lambda _: None)


def load(project: Project, name: str) -> ImageDefinition:
    return image.load_image(project, name, PLATFORM)


def faults(completed: pinning.ResolvedPins) -> list[str]:
    return [fault.name for fault in completed.faults]


def locked(*packages: str) -> PythonPin:
    return PythonPin(("before",), "2026-01-01T00:00:00Z", tuple(LockedPackage(p, "1.0", ("a" * 64,)) for p in packages))


@pytest.mark.slow
def test_what_can_be_resolved_is_pinned_and_the_rest_is_named(
    definition_pins_project: Project, tmp_path: Path, vllm: Vllm
) -> None:
    completed = pinning.resolve_missing(
        load(definition_pins_project, "one"),
        Pins(),
        (),
        definition_pins_resolver(definition_pins_project, index(tmp_path)),
        {},
    )
    assert faults(completed) == ["base"]
    assert completed.pins.base is None
    assert completed.pins.sources["vllm"].commit == vllm.history.main
    assert completed.pins.python is not None
    assert [package.name for package in completed.pins.python.packages] == ["serve", "uv"]
    error = pinning.error_of(completed.faults)
    assert error.message == f"one base: no registry has debian:bookworm-slim for {PLATFORM}"
    assert (error.hint, error.exit_code) == ("check the network", 6)


@pytest.mark.slow
def test_without_a_source_there_is_no_closure(definition_pins_project: Project, tmp_path: Path) -> None:
    one = definition_pins_project.dockerfiles / "one/image.yaml"
    projects.write(one, one.read_text(encoding="utf-8").replace("ref: main", "ref: mian"))
    completed = pinning.resolve_missing(
        load(definition_pins_project, "one"),
        Pins(DEFINITION_PINS_BASE),
        (),
        definition_pins_resolver(definition_pins_project, index(tmp_path)),
        {},
    )
    assert (faults(completed), completed.pins) == (["vllm"], Pins(DEFINITION_PINS_BASE))


@pytest.mark.long
@pytest.mark.slow
def test_a_source_does_not_leave_the_closure_that_it_was_pinned_with(
    definition_pins_project: Project, tmp_path: Path, vllm: Vllm
) -> None:
    one = load(definition_pins_project, "one")
    sources = definition_pins_resolver(definition_pins_project, index(tmp_path))
    before = replace(
        pinning.resolve_missing(one, Pins(), (), sources, {"vllm": vllm.history.v0_19_1}).pins,
        base=DEFINITION_PINS_BASE,
    )
    nothing = replace(sources, settings=UserSettings(index_url=make_index(tmp_path / "empty", [])))
    completed = pinning.resolve_missing(one, before, (), nothing, {"vllm": None})
    assert (faults(completed), completed.pins) == (["python"], before)
    moved = pinning.resolve_missing(one, before, (), sources, {"vllm": None})
    assert (faults(moved), moved.pins.sources["vllm"].commit) == ([], vllm.history.main)


@pytest.mark.slow
def test_a_source_is_kept_where_there_is_no_closure_yet(
    definition_pins_project: Project, tmp_path: Path, vllm: Vllm
) -> None:
    nothing = UserSettings(index_url=make_index(tmp_path / "empty", []))
    completed = pinning.resolve_missing(
        load(definition_pins_project, "one"),
        Pins(DEFINITION_PINS_BASE),
        (),
        definition_pins_resolver(definition_pins_project, nothing),
        {},
    )
    assert faults(completed) == ["python"]
    assert completed.pins.sources["vllm"].commit == vllm.history.main
    assert completed.pins.python is None


@pytest.mark.slow
def test_the_tree_of_a_pinned_commit_is_kept(definition_pins_project: Project, tmp_path: Path, vllm: Vllm) -> None:
    from builder.sources import mirror

    pinning.resolve_missing(
        load(definition_pins_project, "two"),
        Pins(DEFINITION_PINS_BASE),
        (),
        definition_pins_resolver(definition_pins_project, index(tmp_path)),
        {},
    )
    mirror.check_out(mirror.locate(definition_pins_project.mirrors, vllm.url), vllm.history.main, tmp_path / "tree")
    assert (tmp_path / "tree/VERSION").read_text(encoding="utf-8") == "0.19.1\n"


@pytest.mark.slow
def test_a_closure_is_stale_when_the_parents_packages_are_others(definition_pins_project: Project) -> None:
    top = load(definition_pins_project, "top")
    inherited = locked("serve", "uv").packages
    starts = ("python 3.12, glibc 2.39", "on one: 2 packages, sha256 ", "kernel")
    completed = pinning.resolve_missing(
        top,
        Pins(),
        inherited,
        definition_pins_resolver(definition_pins_project, index(definition_pins_project.root)),
        {},
    )
    assert completed.pins.python is not None
    requested = zip(completed.pins.python.requested, starts, strict=True)
    assert [line[: len(start)] for line, start in requested] == list(starts)
    assert [package.name for package in completed.pins.python.packages] == ["kernel"]
    assert pinning.stale_pins(top, completed.pins, inherited) == ()
    others = (replace(inherited[0], version="2.0"), inherited[1])
    assert pinning.stale_pins(top, completed.pins, others) == ("python",)
    assert pinning.stale_pins(top, completed.pins, None) == ("python",)


def resolve_missing(
    project: Project, lock: Lock, names: list[str], update: Update, environ: dict[str, str]
) -> dict[str, pinning.ResolvedPins]:
    chains = [image.load_chain(project, name, PLATFORM) for name in names]
    return resolve_chains(
        workspace(project, endpoints.find_endpoint(os.environ), environ=environ), lock, chains, update
    )


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"PIP_INDEX_URL": index(tmp_path / "index").index_url, "PIP_FIND_LINKS": ""}


@pytest.fixture
def lock(definition_pins_project: Project, environ: dict[str, str]) -> Lock:
    """Bases that are pinned, so that no engine is asked for them."""
    lock = Lock()
    for name in ("one", "two", "other"):
        lock = lock.with_pins(name, PLATFORM, Pins(DEFINITION_PINS_BASE))
    return lock


@pytest.mark.long
@pytest.mark.slow
def test_two_targets_ask_their_common_source_once_and_get_the_same(
    definition_pins_project: Project, lock: Lock, environ: dict[str, str], vllm: Vllm
) -> None:
    completed = resolve_missing(definition_pins_project, lock, ["one", "two", "top"], {}, environ)
    assert [faults(of_one) for of_one in completed.values()] == [[], [], []]
    for name, of_one in completed.items():
        lock = lock.with_pins(name, PLATFORM, of_one.pins)
    upstream = vllm.history.repository
    new = upstream.commit("refs/heads/main", "New", {"new.py": "1"})
    before = len(vllm.server.requests)
    completed = resolve_missing(definition_pins_project, lock, ["one", "two", "top"], {"vllm": None}, environ)
    requests_for_all = len(vllm.server.requests) - before
    assert {completed[name].pins.sources["vllm"].commit for name in ("one", "two")} == {new}
    newer = upstream.commit("refs/heads/main", "Newer", {"new.py": "2"})
    before = len(vllm.server.requests)
    assert (
        resolve_missing(definition_pins_project, lock, ["two"], {"vllm": None}, environ)["two"]
        .pins.sources["vllm"]
        .commit
        == newer
    )
    assert requests_for_all == len(vllm.server.requests) - before


@pytest.mark.slow
def test_a_definition_whose_parent_fails_is_named_too(
    definition_pins_project: Project, lock: Lock, environ: dict[str, str], vllm: Vllm
) -> None:
    one = definition_pins_project.dockerfiles / "one/image.yaml"
    projects.write(one, one.read_text(encoding="utf-8").replace("ref: main", "ref: mian"))
    completed = resolve_missing(definition_pins_project, lock, ["top", "two"], {}, environ)
    assert {name: faults(of_one) for name, of_one in completed.items()} == {
        "one": ["vllm"],
        "top": ["python"],
        "two": [],
    }
    lines = pinning.error_of([fault for of_one in completed.values() for fault in of_one.faults]).message.splitlines()
    assert lines[0].startswith(f"one vllm: {vllm.url} has no branch or tag `mian`")
    assert lines[1] == "top python: its parent, one, is not completely pinned"


@pytest.mark.slow
def test_an_update_goes_to_the_highest_that_has_such_a_source(
    definition_pins_project: Project, lock: Lock, environ: dict[str, str]
) -> None:
    assert resolve_missing(definition_pins_project, lock, ["other", "two"], {"vllm": None}, environ)[
        "other"
    ].pins == Pins(DEFINITION_PINS_BASE)
    with pytest.raises(UsageError, match="other has no source `vllm`"):
        resolve_missing(definition_pins_project, lock, ["other"], {"vllm": None}, environ)


@pytest.mark.slow
def test_stale_pins_are_refused_where_nothing_may_be_resolved(definition_pins_project: Project, lock: Lock) -> None:
    refuse_stale(lock, image.load_chain(definition_pins_project, "other", PLATFORM))
    top = image.load_chain(definition_pins_project, "top", PLATFORM)
    for typed, command in ((None, "`builder lock one`"), (PLATFORM, f"`builder lock one --platform {PLATFORM}`")):
        with pytest.raises(LockError, match=f"images.lock does not cover python, vllm of one on {PLATFORM}") as refused:
            refuse_stale(lock, top, typed)
        assert refused.value.hint == f"run {command}, then commit images.lock"
    assert set(stale_chain(lock, image.load_chain(definition_pins_project, "top", PLATFORM))) == {"one", "top"}


@pytest.mark.long
@pytest.mark.slow
def test_a_wheel_moves_when_its_source_is_updated_and_nothing_else_does(
    definition_pins_project: Project, tmp_path: Path
) -> None:
    wheel = 'sources: {vllm: {wheel: vllm}}\npython: {version: "3.12", packages: [serve]}\n'
    definition_pins_define(definition_pins_project, "wheel", f"base: debian:bookworm-slim\n{wheel}")
    definition = load(definition_pins_project, "wheel")
    first = definition_pins_resolver(definition_pins_project, index(tmp_path, ("vllm", "0.19.0")))
    pins = pinning.resolve_missing(definition, Pins(DEFINITION_PINS_BASE), (), first, {}).pins
    later = definition_pins_resolver(
        definition_pins_project, index(tmp_path, ("vllm", "0.19.0"), ("vllm", "0.19.1"), ("serve", "2.0"))
    )
    assert pinning.resolve_missing(definition, pins, (), later, {}).pins == pins
    moved = pinning.resolve_missing(definition, pins, (), later, {"vllm": None}).pins
    assert moved.sources == {"vllm": WheelPin("vllm", "0.19.1")}
    assert moved.python is not None
    versions = {package.name: package.version for package in moved.python.packages}
    assert versions == {"serve": "1.0", "uv": "1.0", "vllm": "0.19.1"}


def versions_of(pins: Pins) -> dict[str, str]:
    assert pins.python is not None
    return {package.name: package.version for package in pins.python.packages}


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("written", ["vllm==0.19.1", "vllm"])
def test_a_wheel_goes_to_the_version_that_is_chosen_and_stays_there(
    definition_pins_project: Project, tmp_path: Path, written: str
) -> None:
    wheel = f'sources: {{vllm: {{wheel: {written}}}}}\npython: {{version: "3.12", packages: [serve]}}\n'
    definition_pins_define(definition_pins_project, "wheel", f"base: debian:bookworm-slim\n{wheel}")
    definition = load(definition_pins_project, "wheel")
    here = definition_pins_resolver(definition_pins_project, index(tmp_path, ("vllm", "0.19.0"), ("vllm", "0.19.1")))
    first = pinning.resolve_missing(definition, Pins(DEFINITION_PINS_BASE), (), here, {}).pins
    assert versions_of(first)["vllm"] == "0.19.1"

    chosen = pinning.resolve_missing(definition, first, (), here, {"vllm": "0.19.0"}).pins
    assert chosen.sources == {"vllm": WheelPin(written, "0.19.0")}
    assert versions_of(chosen) == {"serve": "1.0", "uv": "1.0", "vllm": "0.19.0"}
    assert pinning.stale_pins(definition, chosen, ()) == ()

    more = replace(definition, python=replace(definition.python, packages=("serve", "kernel")))  # type: ignore[type-var]
    completed = pinning.resolve_missing(more, chosen, (), here, {}).pins
    assert versions_of(completed) == {"serve": "1.0", "kernel": "1.0", "uv": "1.0", "vllm": "0.19.0"}
    assert pinning.resolve_missing(definition, chosen, (), here, {"vllm": None}).pins == first


@pytest.mark.long
@pytest.mark.slow
def test_a_wheel_written_with_its_version_stays_where_it_was_chosen_though_python_moves(
    definition_pins_project: Project, tmp_path: Path
) -> None:
    wheel = 'sources: {vllm: {wheel: vllm==0.19.1}}\npython: {version: "3.12", packages: [serve]}\n'
    definition_pins_define(definition_pins_project, "wheel", f"base: debian:bookworm-slim\n{wheel}")
    definition = load(definition_pins_project, "wheel")
    here = definition_pins_resolver(definition_pins_project, index(tmp_path, ("vllm", "0.19.0"), ("vllm", "0.19.1")))
    chosen = pinning.resolve_missing(definition, Pins(DEFINITION_PINS_BASE), (), here, {"vllm": "0.19.0"}).pins
    later = definition_pins_resolver(
        definition_pins_project, index(tmp_path, ("vllm", "0.19.0"), ("vllm", "0.19.1"), ("serve", "2.0"))
    )
    moved = pinning.resolve_missing(definition, chosen, (), later, {"python": None}).pins
    assert versions_of(moved) == {"serve": "2.0", "uv": "1.0", "vllm": "0.19.0"}


@pytest.mark.slow
def test_a_version_that_no_wheel_has_is_an_error(definition_pins_project: Project, tmp_path: Path) -> None:
    wheel = 'sources: {vllm: {wheel: vllm==0.19.1}}\npython: {version: "3.12", packages: [serve]}\n'
    definition_pins_define(definition_pins_project, "wheel", f"base: debian:bookworm-slim\n{wheel}")
    definition = load(definition_pins_project, "wheel")
    named = [("serve", "1.0"), ("uv", "1.0"), ("vllm", "0.19.0"), ("vllm", "0.19.1"), ("vllm", "0.20.0rc1")]
    wheels = [make_wheel(tmp_path / "served", name, version) for name, version in named]
    make_dated_index(tmp_path / "served", dict.fromkeys(wheels, "2026-01-01T00:00:00Z"))
    with serving(tmp_path / "served") as served:
        here = definition_pins_resolver(definition_pins_project, UserSettings(index_url=f"{served.url}/simple"))
        before = pinning.resolve_missing(definition, Pins(DEFINITION_PINS_BASE), (), here, {}).pins
        completed = pinning.resolve_missing(definition, before, (), here, {"vllm": "0.31.0"})
        first = pinning.resolve_missing(definition, Pins(DEFINITION_PINS_BASE), (), here, {"vllm": "0.31.0"})
    assert (faults(completed), completed.pins) == (["python"], before)
    assert (faults(first), first.pins) == (["python"], Pins(DEFINITION_PINS_BASE))
    error = pinning.error_of(completed.faults)
    assert "vllm==0.31.0" in error.message


@pytest.mark.slow
@pytest.mark.parametrize("text", ["main", "v0.19.x", "release"])
def test_a_wheel_goes_to_no_ref(definition_pins_project: Project, tmp_path: Path, text: str) -> None:
    wheel = 'sources: {vllm: {wheel: vllm}}\npython: {version: "3.12", packages: [serve]}\n'
    definition_pins_define(definition_pins_project, "wheel", f"base: debian:bookworm-slim\n{wheel}")
    with pytest.raises(UsageError, match=f"vllm={text}`: vllm of wheel accepts a version, such as vllm=1.2.3"):
        pinning.resolve_missing(
            load(definition_pins_project, "wheel"),
            Pins(DEFINITION_PINS_BASE),
            (),
            definition_pins_resolver(definition_pins_project, index(tmp_path)),
            {"vllm": text},
        )


@pytest.mark.slow
def test_a_checkout_goes_to_no_ref(definition_pins_project: Project, tmp_path: Path) -> None:
    definition_pins_define(definition_pins_project, "own", "base: debian:bookworm-slim\nsources: {vllm: {path: own}}\n")
    with pytest.raises(UsageError, match="`--update vllm=main`: vllm of own accepts no value") as caught:
        pinning.resolve_missing(
            load(definition_pins_project, "own"),
            Pins(DEFINITION_PINS_BASE),
            (),
            definition_pins_resolver(definition_pins_project, index(tmp_path)),
            {"vllm": "main"},
        )
    assert caught.value.hint == f"a build uses the commit that is checked out in {definition_pins_project.root / 'own'}"


@pytest.mark.slow
def test_a_definition_without_vllm_says_what_it_has(definition_pins_project: Project, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="other has no source `vllm`") as raised:
        resolve_chains(
            workspace(definition_pins_project, NO_ENGINE),
            Lock(),
            [image.load_chain(definition_pins_project, "other", PLATFORM)],
            {"vllm": "0.31.0"},
        )
    assert raised.value.hint == "sources: base; see `sources:` in image.yaml"


@pytest.mark.slow
def test_a_pin_of_another_kind_is_stale(definition_pins_project: Project, vllm: Vllm) -> None:
    two = load(definition_pins_project, "two")
    pin = GitPin(vllm.url, "main", "a" * 40, "1", "2026-01-01T00:00:00Z")
    assert pinning.stale_pins(two, Pins(DEFINITION_PINS_BASE, {"vllm": pin}), ()) == ()
    assert pinning.stale_pins(two, Pins(DEFINITION_PINS_BASE, {"vllm": replace(pin, requested="v1")}), ()) == ("vllm",)
    assert pinning.stale_pins(two, Pins(DEFINITION_PINS_BASE, {"vllm": WheelPin("main", "1")}), ()) == ("vllm",)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tf5", "dflash"])
def test_what_the_shipped_lock_has_goes_together(name: str) -> None:
    """FlashInfer is compiled against what the image holds, so vLLM's own requirements on both must be met."""
    shipped = shipped_files.project()
    pins = lock_file.read_lock(shipped.lock).pins_of(name, "linux/arm64")
    assert pins.python is not None
    assert pins.build is not None
    vllm, flashinfer = pins.sources["vllm"], pins.sources["flashinfer"]
    assert isinstance(vllm, GitPin)
    assert {"tf5": ("0.30.0", "0.6.18.post1"), "dflash": ("0.28.0", "0.6.16.post3")}[name] == (
        vllm.version,
        flashinfer.version,
    )
    run, built = ({p.name: p.version for p in closure.packages} for closure in (pins.python, pins.build))
    assert {run[package] for package in ("tilelang", "torch", "apache-tvm-ffi")} == {"0.1.12", "2.13.0", "0.1.11"}
    shared = run.keys() & built.keys()
    assert {name: run[name] for name in shared} == {name: built[name] for name in shared}
    assert pins.python.as_of == pins.build.as_of != ""
    assert pins.python.as_of > vllm.date


@pytest.mark.long
@pytest.mark.slow
def test_another_pull_request_leaves_the_packages_alone(
    definition_pins_project: Project, tmp_path: Path, vllm: Vllm
) -> None:
    """Not even a better index is asked, since the commit that says what is needed stays."""
    one = load(definition_pins_project, "one")
    before = pinning.resolve_missing(
        one, Pins(DEFINITION_PINS_BASE), (), definition_pins_resolver(definition_pins_project, index(tmp_path)), {}
    ).pins
    pull = 40898
    source = replace(one.git_sources["vllm"], patches=(SourcePatch(str(pull)),))
    wants = replace(one, sources={**one.sources, "vllm": source})
    nothing = definition_pins_resolver(
        definition_pins_project, UserSettings(index_url=make_index(tmp_path / "empty", []))
    )
    completed = pinning.resolve_missing(wants, before, (), nothing, {})
    assert faults(completed) == []
    assert completed.pins.python == before.python
    pin = completed.pins.sources["vllm"]
    assert isinstance(pin, GitPin)
    assert [request.number for request in pin.patches] == [pull]
    assert pin.commit == before.sources["vllm"].commit
    moved = pinning.resolve_missing(
        replace(wants, sources={**one.sources, "vllm": replace(source, ref="v0.19.1")}), before, (), nothing, {}
    )
    assert faults(moved) == ["python"]


@pytest.mark.long
@pytest.mark.slow
def test_a_source_moves_to_its_newest_release_and_tells_which_are_too_young(
    definition_pins_project: Project, tmp_path: Path, vllm: Vllm
) -> None:
    own = vllm.history.repository
    own.minutes = int(time.time() - 1_770_000_000) // 60 - 3 * 24 * 60 - 60
    young = own.commit("refs/heads/main", "Release 0.20.0", {"VERSION": "0.20.0\n"})
    own.git("tag", "v0.20.0", young)
    one, settings, messages = load(definition_pins_project, "one"), index(tmp_path), list[str]()
    sources = replace(
        definition_pins_resolver(definition_pins_project, settings), report=lambda event: messages.append(str(event))
    )
    before = pinning.resolve_missing(one, Pins(DEFINITION_PINS_BASE), (), sources, {}).pins
    assert before.sources["vllm"].commit == young
    moved = pinning.resolve_missing(one, before, (), sources, {"vllm": "release"})
    pin = moved.pins.sources["vllm"]
    assert isinstance(pin, GitPin)
    assert (pin.commit, pin.version, pin.requested) == (vllm.history.v0_19_1, "0.19.1", "main")
    assert pinning.stale_pins(one, moved.pins, ()) == ()
    told = [text for text in messages if "newest release" in text]
    assert len(told) == 1
    expected = "vllm: v0.19.1 of 2026-02-02 is the newest release that is at least 7 days old; too young: v0.20.0 of "
    assert expected in told[0]
    projects.write(definition_pins_project.root / "builder.yaml", "release_age: 2\n")
    sources = definition_pins_resolver(definition_pins_project, settings)
    assert pinning.resolve_missing(one, before, (), sources, {"vllm": "release"}).pins == before
    projects.write(definition_pins_project.root / "builder.yaml", "release_age: 3000\n")
    sources = definition_pins_resolver(definition_pins_project, settings)
    kept = pinning.resolve_missing(one, before, (), sources, {"vllm": "release"})
    assert (faults(kept), kept.pins) == (["vllm"], before)


# Packages and sources that new pins take back to an older version.

BEFORE = {"behind": "3.0", "limited": "2.0", "kernel": "2.0", "same": "1.0", "up": "1.0", "vllm": "0.22.0"}
AFTER = {"behind": "2.0", "limited": "1.0", "kernel": "1.0", "same": "1.0", "up": "2.0", "vllm": "0.21.0"}
GIT = GitPin("https://git.example/x.git", "main", "a" * 40, "0.2", "2026-09-01T00:00:00Z")


@pytest.fixture
def older_versions_definition(tmp_path: Path) -> image.ImageDefinition:
    project = Project(tmp_path / "project")
    text = f"repository: app\ndescription: app\nplatform: {PLATFORM}\nbase: debian:bookworm-slim\n"
    text += 'sources: {vllm: {wheel: vllm}}\npython: {version: "3.12", packages: [uv]}\n'
    projects.write(project.dockerfiles / "app/image.yaml", text)
    projects.write(project.dockerfiles / "app/Dockerfile.j2", "FROM {{ base }}\n")
    return image.load_image(project, "app", PLATFORM)


def pins(versions: Mapping[str, str], as_of: str = "") -> Pins:
    packages = tuple(LockedPackage(name, version, ("1" * 64,)) for name, version in versions.items())
    return Pins(python=PythonPin((), "", packages, as_of))


def test_each_package_that_goes_back_is_named(older_versions_definition: image.ImageDefinition) -> None:
    older = pinning.versions_between(older_versions_definition, pins(BEFORE), pins(AFTER), {"python": None})
    assert [str(each) for each in older] == [
        "behind goes back from 3.0 to 2.0",
        "kernel goes back from 2.0 to 1.0",
        "limited goes back from 2.0 to 1.0",
        "vllm goes back from 0.22.0 to 0.21.0",
    ]
    limited = pins(AFTER, "2026-05-01T00:00:00Z")
    older = pinning.versions_between(older_versions_definition, pins(BEFORE), limited, {"vllm": "0.21.0"})
    assert [each.name for each in older] == ["behind", "kernel", "limited"]  # that vLLM was asked for
    assert older[2].why == "packages newer than 2026-05-01 are not used"


def test_an_older_commit_of_a_source_goes_back(older_versions_definition: image.ImageDefinition) -> None:
    before = Pins(sources={"kernel": GIT})
    after = Pins(sources={"kernel": replace(GIT, version="0.1", date="2026-08-01T00:00:00Z")})
    (older,) = pinning.versions_between(older_versions_definition, before, after, {"kernel": None})
    assert str(older) == "kernel goes back from 0.2 to 0.1: its commit is older"
    assert pinning.versions_between(older_versions_definition, before, after, {"kernel": "v0.1"}) == ()
    assert pinning.versions_between(older_versions_definition, after, before, {}) == ()


@pytest.mark.slow
def test_a_build_names_what_goes_back_and_an_upgrade_refuses_it(
    older_versions_definition: image.ImageDefinition, tmp_path: Path
) -> None:
    events: list[object] = []
    environ = {"UV_INDEX_URL": "http://127.0.0.1:9/simple"}
    project_workspace = workspaces.workspace(Project(tmp_path), workspaces.NO_ENGINE, environ, events.append)
    lock = Lock().with_pins("app", PLATFORM, pins({"serve": "2.0"}))
    moved = {"app": ResolvedPins(pins({"serve": "1.0"}))}
    resolve_of_older_versions.say_older(
        project_workspace, lock, [(older_versions_definition,)], moved, BuildRequest(("app",))
    )
    assert events == [Message("serve goes back from 2.0 to 1.0")]
    with pytest.raises(SourceError, match="serve would go back to older versions") as refused:
        resolve_of_older_versions.say_older(
            project_workspace, lock, [(older_versions_definition,)], moved, BuildRequest(("app",), older=False)
        )
    assert "--allow-older" in refused.value.hint
