"""Pins that are completed as far as they can be, and sources that are asked once a command; without an engine."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from builder.base.errors import LockError, SourceError, UsageError
from builder.base.project import Project
from builder.definitions import image
from builder.definitions.image import ImageDefinition
from builder.engine import client as endpoints
from builder.lock import lock_file
from builder.lock.model import BasePin, GitPin, Lock, LockedPackage, Pins, PythonPin, WheelPin
from builder.pins import chain, pinning
from builder.pins.resolver import Resolver
from builder.sources.git import UserSettings
from tests import projects, shipped_files
from tests.pinning.bases import no_contents
from tests.sources.git_server import Vllm, served_vllm
from tests.sources.wheelhouse import make_dated_index, make_index, make_wheel, serving
from tests.workspaces import NO_ENGINE, workspace

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


pytestmark = pytest.mark.slow

PLATFORM = "linux/arm64"
BASE = BasePin("debian:bookworm-slim", "sha256:" + "b" * 64)


@pytest.fixture
def vllm(tmp_path: Path) -> Iterator[Vllm]:
    with served_vllm(tmp_path / "git") as served:
        yield served


@pytest.fixture
def project(tmp_path: Path, vllm: Vllm) -> Project:
    """``one`` and ``two`` take vLLM from the same branch, ``top`` is made from ``one``, ``other`` has no source."""
    project = Project(tmp_path / "project")
    source = f'sources: {{vllm: {{git: "{vllm.url}", ref: main}}}}\n'
    python = 'python: {version: "3.12", packages: [serve]}\n'
    define(project, "one", f"base: debian:bookworm-slim\n{source}{python}")
    define(project, "two", f"base: debian:bookworm-slim\n{source}")
    define(project, "top", 'from: one\npython: {version: "3.12", packages: [kernel]}\n')
    define(project, "other", "base: debian:bookworm-slim\n")
    return project


def define(project: Project, name: str, text: str) -> None:
    folder = project.dockerfiles / name
    projects.write(folder / "image.yaml", f"repository: {name}\ndescription: x\nplatform: {PLATFORM}\n{text}")
    projects.write(folder / "Dockerfile.j2", "FROM {{ base }}\n")


def index(folder: Path, *more: tuple[str, str]) -> UserSettings:
    """A package index of ``serve``, ``kernel``, ``uv``, and ``more`` names with versions."""
    named = [("serve", "1.0"), ("kernel", "1.0"), ("uv", "1.0"), *more]
    wheels = [make_wheel(folder / "files", name, version) for name, version in named]
    return UserSettings(index_url=make_index(folder / "simple", wheels))


def resolver(project: Project, settings: UserSettings) -> Resolver:
    def no_registry(reference: str, platform: str) -> str:
        raise SourceError(f"no registry has {reference} for {platform}", hint="look at the network")

    return Resolver(project, settings, no_registry, no_contents, lambda _: None)


def load(project: Project, name: str) -> ImageDefinition:
    return image.load_image(project, name, PLATFORM)


def faults(completed: pinning.ResolvedPins) -> list[str]:
    return [fault.name for fault in completed.faults]


def locked(*packages: str) -> PythonPin:
    return PythonPin(("before",), "2026-01-01T00:00:00Z", tuple(LockedPackage(p, "1.0", ("a" * 64,)) for p in packages))


def test_what_can_be_resolved_is_pinned_and_the_rest_is_named(project: Project, tmp_path: Path, vllm: Vllm) -> None:
    completed = pinning.resolve_missing(load(project, "one"), Pins(), (), resolver(project, index(tmp_path)), {})
    assert faults(completed) == ["base"]
    assert completed.pins.base is None
    assert completed.pins.sources["vllm"].commit == vllm.history.main
    assert completed.pins.python is not None
    assert [package.name for package in completed.pins.python.packages] == ["serve", "uv"]
    error = pinning.error_of(completed.faults)
    assert error.message == f"one base: no registry has debian:bookworm-slim for {PLATFORM}"
    assert (error.hint, error.exit_code) == ("look at the network", 6)


def test_without_a_source_there_is_no_closure(project: Project, tmp_path: Path) -> None:
    one = project.dockerfiles / "one/image.yaml"
    projects.write(one, one.read_text(encoding="utf-8").replace("ref: main", "ref: mian"))
    completed = pinning.resolve_missing(load(project, "one"), Pins(BASE), (), resolver(project, index(tmp_path)), {})
    assert (faults(completed), completed.pins) == (["vllm"], Pins(BASE))


def test_a_source_does_not_leave_the_closure_that_it_was_pinned_with(
    project: Project, tmp_path: Path, vllm: Vllm
) -> None:
    one = load(project, "one")
    sources = resolver(project, index(tmp_path))
    before = replace(pinning.resolve_missing(one, Pins(), (), sources, {"vllm": vllm.history.v0_19_1}).pins, base=BASE)
    nothing = replace(sources, settings=UserSettings(index_url=make_index(tmp_path / "empty", [])))
    completed = pinning.resolve_missing(one, before, (), nothing, {"vllm": None})
    assert (faults(completed), completed.pins) == (["python"], before)
    moved = pinning.resolve_missing(one, before, (), sources, {"vllm": None})
    assert (faults(moved), moved.pins.sources["vllm"].commit) == ([], vllm.history.main)


def test_a_source_is_kept_where_there_is_no_closure_yet(project: Project, tmp_path: Path, vllm: Vllm) -> None:
    nothing = UserSettings(index_url=make_index(tmp_path / "empty", []))
    completed = pinning.resolve_missing(load(project, "one"), Pins(BASE), (), resolver(project, nothing), {})
    assert faults(completed) == ["python"]
    assert completed.pins.sources["vllm"].commit == vllm.history.main
    assert completed.pins.python is None


def test_the_tree_of_a_pinned_commit_is_kept(project: Project, tmp_path: Path, vllm: Vllm) -> None:
    from builder.sources import mirror

    pinning.resolve_missing(load(project, "two"), Pins(BASE), (), resolver(project, index(tmp_path)), {})
    mirror.check_out(project.mirrors, vllm.url, vllm.history.main, tmp_path / "tree")
    assert (tmp_path / "tree/VERSION").read_text(encoding="utf-8") == "0.19.1\n"


def test_a_closure_is_stale_when_the_parents_packages_are_others(project: Project) -> None:
    top = load(project, "top")
    inherited = locked("serve", "uv").packages
    starts = ("python 3.12, glibc 2.39", "on one: 2 packages, sha256 ", "kernel")
    completed = pinning.resolve_missing(top, Pins(), inherited, resolver(project, index(project.root)), {})
    assert completed.pins.python is not None
    requested = zip(completed.pins.python.requested, starts, strict=True)
    assert [line[: len(start)] for line, start in requested] == list(starts)
    assert [package.name for package in completed.pins.python.packages] == ["kernel"]
    assert pinning.stale_pins(top, completed.pins, inherited) == ()
    others = (replace(inherited[0], version="2.0"), inherited[1])
    assert pinning.stale_pins(top, completed.pins, others) == ("python",)
    assert pinning.stale_pins(top, completed.pins, None) == ("python",)


def resolve_missing(
    project: Project, lock: Lock, names: list[str], update: chain.Update, environ: dict[str, str]
) -> dict[str, pinning.ResolvedPins]:
    chains = [image.load_chain(project, name, PLATFORM) for name in names]
    return chain.resolve_missing(
        workspace(project, endpoints.find_endpoint(os.environ), environ=environ), lock, chains, update
    )


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"PIP_INDEX_URL": index(tmp_path / "index").index_url, "PIP_FIND_LINKS": ""}


@pytest.fixture
def lock(project: Project, environ: dict[str, str]) -> Lock:
    """Bases that are pinned, so that no engine is asked for them."""
    lock = Lock()
    for name in ("one", "two", "other"):
        lock = lock.with_pins(name, PLATFORM, Pins(BASE))
    return lock


def test_two_targets_ask_their_common_source_once_and_get_the_same(
    project: Project, lock: Lock, environ: dict[str, str], vllm: Vllm
) -> None:
    completed = resolve_missing(project, lock, ["one", "two", "top"], {}, environ)
    assert [faults(of_one) for of_one in completed.values()] == [[], [], []]
    for name, of_one in completed.items():
        lock = lock.with_pins(name, PLATFORM, of_one.pins)
    upstream = vllm.history.repository
    new = upstream.commit("refs/heads/main", "New", {"new.py": "1"})
    before = len(vllm.server.requests)
    completed = resolve_missing(project, lock, ["one", "two", "top"], {"vllm": None}, environ)
    requests_for_all = len(vllm.server.requests) - before
    assert {completed[name].pins.sources["vllm"].commit for name in ("one", "two")} == {new}
    newer = upstream.commit("refs/heads/main", "Newer", {"new.py": "2"})
    before = len(vllm.server.requests)
    assert resolve_missing(project, lock, ["two"], {"vllm": None}, environ)["two"].pins.sources["vllm"].commit == newer
    assert requests_for_all == len(vllm.server.requests) - before


def test_a_definition_whose_parent_fails_is_named_too(
    project: Project, lock: Lock, environ: dict[str, str], vllm: Vllm
) -> None:
    one = project.dockerfiles / "one/image.yaml"
    projects.write(one, one.read_text(encoding="utf-8").replace("ref: main", "ref: mian"))
    completed = resolve_missing(project, lock, ["top", "two"], {}, environ)
    assert {name: faults(of_one) for name, of_one in completed.items()} == {
        "one": ["vllm"],
        "top": ["python"],
        "two": [],
    }
    lines = pinning.error_of([fault for of_one in completed.values() for fault in of_one.faults]).message.splitlines()
    assert lines[0].startswith(f"one vllm: {vllm.url} has no branch or tag `mian`")
    assert lines[1] == "top python: one, its parent, is not pinned completely"


def test_an_update_goes_to_the_highest_that_has_such_a_source(
    project: Project, lock: Lock, environ: dict[str, str]
) -> None:
    assert resolve_missing(project, lock, ["other", "two"], {"vllm": None}, environ)["other"].pins == Pins(BASE)
    with pytest.raises(UsageError, match="other has no source `vllm`"):
        resolve_missing(project, lock, ["other"], {"vllm": None}, environ)


def test_stale_pins_are_refused_where_nothing_may_be_resolved(project: Project, lock: Lock) -> None:
    chain.refuse_stale(lock, image.load_chain(project, "other", PLATFORM))
    with pytest.raises(LockError, match=f"images.lock does not cover python, vllm of one on {PLATFORM}"):
        chain.refuse_stale(lock, image.load_chain(project, "top", PLATFORM))
    assert set(chain.stale_chain(lock, image.load_chain(project, "top", PLATFORM))) == {"one", "top"}


def test_a_wheel_moves_when_its_source_is_updated_and_nothing_else_does(project: Project, tmp_path: Path) -> None:
    wheel = 'sources: {vllm: {wheel: vllm}}\npython: {version: "3.12", packages: [serve]}\n'
    define(project, "wheel", f"base: debian:bookworm-slim\n{wheel}")
    definition = load(project, "wheel")
    first = resolver(project, index(tmp_path, ("vllm", "0.19.0")))
    pins = pinning.resolve_missing(definition, Pins(BASE), (), first, {}).pins
    later = resolver(project, index(tmp_path, ("vllm", "0.19.0"), ("vllm", "0.19.1"), ("serve", "2.0")))
    assert pinning.resolve_missing(definition, pins, (), later, {}).pins == pins
    moved = pinning.resolve_missing(definition, pins, (), later, {"vllm": None}).pins
    assert moved.sources == {"vllm": WheelPin("vllm", "0.19.1")}
    assert moved.python is not None
    versions = {package.name: package.version for package in moved.python.packages}
    assert versions == {"serve": "1.0", "uv": "1.0", "vllm": "0.19.1"}


def versions_of(pins: Pins) -> dict[str, str]:
    assert pins.python is not None
    return {package.name: package.version for package in pins.python.packages}


@pytest.mark.parametrize("written", ["vllm==0.19.1", "vllm"])
def test_a_wheel_goes_to_the_version_that_is_chosen_and_stays_there(
    project: Project, tmp_path: Path, written: str
) -> None:
    wheel = f'sources: {{vllm: {{wheel: {written}}}}}\npython: {{version: "3.12", packages: [serve]}}\n'
    define(project, "wheel", f"base: debian:bookworm-slim\n{wheel}")
    definition = load(project, "wheel")
    here = resolver(project, index(tmp_path, ("vllm", "0.19.0"), ("vllm", "0.19.1")))
    first = pinning.resolve_missing(definition, Pins(BASE), (), here, {}).pins
    assert versions_of(first)["vllm"] == "0.19.1"

    chosen = pinning.resolve_missing(definition, first, (), here, {"vllm": "0.19.0"}).pins
    assert chosen.sources == {"vllm": WheelPin(written, "0.19.0")}
    assert versions_of(chosen) == {"serve": "1.0", "uv": "1.0", "vllm": "0.19.0"}
    assert pinning.stale_pins(definition, chosen, ()) == ()

    more = replace(definition, python=replace(definition.python, packages=("serve", "kernel")))  # type: ignore[type-var]
    completed = pinning.resolve_missing(more, chosen, (), here, {}).pins
    assert versions_of(completed) == {"serve": "1.0", "kernel": "1.0", "uv": "1.0", "vllm": "0.19.0"}
    assert pinning.resolve_missing(definition, chosen, (), here, {"vllm": None}).pins == first


def test_a_wheel_written_with_its_version_stays_where_it_was_chosen_though_python_moves(
    project: Project, tmp_path: Path
) -> None:
    wheel = 'sources: {vllm: {wheel: vllm==0.19.1}}\npython: {version: "3.12", packages: [serve]}\n'
    define(project, "wheel", f"base: debian:bookworm-slim\n{wheel}")
    definition = load(project, "wheel")
    here = resolver(project, index(tmp_path, ("vllm", "0.19.0"), ("vllm", "0.19.1")))
    chosen = pinning.resolve_missing(definition, Pins(BASE), (), here, {"vllm": "0.19.0"}).pins
    later = resolver(project, index(tmp_path, ("vllm", "0.19.0"), ("vllm", "0.19.1"), ("serve", "2.0")))
    moved = pinning.resolve_missing(definition, chosen, (), later, {"python": None}).pins
    assert versions_of(moved) == {"serve": "2.0", "uv": "1.0", "vllm": "0.19.0"}


def test_a_version_that_no_wheel_has_is_an_error_with_those_that_there_are(project: Project, tmp_path: Path) -> None:
    wheel = 'sources: {vllm: {wheel: vllm==0.19.1}}\npython: {version: "3.12", packages: [serve]}\n'
    define(project, "wheel", f"base: debian:bookworm-slim\n{wheel}")
    definition = load(project, "wheel")
    named = [("serve", "1.0"), ("uv", "1.0"), ("vllm", "0.19.0"), ("vllm", "0.19.1"), ("vllm", "0.20.0rc1")]
    wheels = [make_wheel(tmp_path / "served", name, version) for name, version in named]
    make_dated_index(tmp_path / "served", dict.fromkeys(wheels, "2026-01-01T00:00:00Z"))
    with serving(tmp_path / "served") as served:
        here = resolver(project, UserSettings(index_url=f"{served.url}/simple"))
        before = pinning.resolve_missing(definition, Pins(BASE), (), here, {}).pins
        completed = pinning.resolve_missing(definition, before, (), here, {"vllm": "0.31.0"})
    assert (faults(completed), completed.pins) == (["vllm"], before)
    error = pinning.error_of(completed.faults)
    assert error.message == "wheel vllm: the package index has no wheel of vllm 0.31.0"
    assert error.hint == "`--update vllm=VERSION` with one that it has, such as 0.19.1, 0.19.0"


@pytest.mark.parametrize("text", ["main", "v0.19.x", "release"])
def test_a_wheel_goes_to_no_ref(project: Project, tmp_path: Path, text: str) -> None:
    wheel = 'sources: {vllm: {wheel: vllm}}\npython: {version: "3.12", packages: [serve]}\n'
    define(project, "wheel", f"base: debian:bookworm-slim\n{wheel}")
    with pytest.raises(UsageError, match=f"is a wheel, and `{text}` is no version") as raised:
        pinning.resolve_missing(
            load(project, "wheel"), Pins(BASE), (), resolver(project, index(tmp_path)), {"vllm": text}
        )
    assert "vllm=1.2.3" in raised.value.hint


def test_a_definition_without_vllm_says_what_it_has(project: Project, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="other has no source `vllm`") as raised:
        chain.resolve_missing(
            workspace(project, NO_ENGINE), Lock(), [image.load_chain(project, "other", PLATFORM)], {"vllm": "0.31.0"}
        )
    assert raised.value.hint == "it has base; image.yaml says under `sources:` what it is made from"


def test_a_pin_of_another_kind_is_stale(project: Project, vllm: Vllm) -> None:
    two = load(project, "two")
    pin = GitPin(vllm.url, "main", "a" * 40, "1", "2026-01-01T00:00:00Z")
    assert pinning.stale_pins(two, Pins(BASE, {"vllm": pin}), ()) == ()
    assert pinning.stale_pins(two, Pins(BASE, {"vllm": replace(pin, requested="v1")}), ()) == ("vllm",)
    assert pinning.stale_pins(two, Pins(BASE, {"vllm": WheelPin("main", "1")}), ()) == ("vllm",)


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


def test_another_pull_request_leaves_the_packages_alone(project: Project, tmp_path: Path, vllm: Vllm) -> None:
    """Not even a better index is asked, since the commit that says what is needed stays."""
    one = load(project, "one")
    before = pinning.resolve_missing(one, Pins(BASE), (), resolver(project, index(tmp_path)), {}).pins
    pull = 40898
    source = replace(one.git_sources["vllm"], pulls=(pull,))
    wants = replace(one, sources={**one.sources, "vllm": source})
    nothing = resolver(project, UserSettings(index_url=make_index(tmp_path / "empty", [])))
    completed = pinning.resolve_missing(wants, before, (), nothing, {})
    assert faults(completed) == []
    assert completed.pins.python == before.python
    pin = completed.pins.sources["vllm"]
    assert isinstance(pin, GitPin)
    assert [request.number for request in pin.pulls] == [pull]
    assert pin.commit == before.sources["vllm"].commit
    moved = pinning.resolve_missing(
        replace(wants, sources={**one.sources, "vllm": replace(source, ref="v0.19.1")}), before, (), nothing, {}
    )
    assert faults(moved) == ["python"]


def test_a_source_moves_to_its_newest_release_and_tells_which_are_too_young(
    project: Project, tmp_path: Path, vllm: Vllm
) -> None:
    own = vllm.history.repository
    own.minutes = int(time.time() - 1_770_000_000) // 60 - 3 * 24 * 60 - 60
    young = own.commit("refs/heads/main", "Release 0.20.0", {"VERSION": "0.20.0\n"})
    own.git("tag", "v0.20.0", young)
    one, settings, messages = load(project, "one"), index(tmp_path), list[str]()
    sources = replace(resolver(project, settings), report=lambda event: messages.append(str(event)))
    before = pinning.resolve_missing(one, Pins(BASE), (), sources, {}).pins
    assert before.sources["vllm"].commit == young
    moved = pinning.resolve_missing(one, before, (), sources, {"vllm": "release"})
    pin = moved.pins.sources["vllm"]
    assert isinstance(pin, GitPin)
    assert (pin.commit, pin.version, pin.requested) == (vllm.history.v0_19_1, "0.19.1", "main")
    assert pinning.stale_pins(one, moved.pins, ()) == ()
    told = [text for text in messages if "newest release" in text]
    assert len(told) == 1
    assert "vllm: v0.19.1 of 2026-02-02 is the newest release that is 7 days old; too young: v0.20.0 of " in told[0]
    projects.write(project.root / "builder.yaml", "release_age: 2\n")
    sources = resolver(project, settings)
    assert pinning.resolve_missing(one, before, (), sources, {"vllm": "release"}).pins == before
    projects.write(project.root / "builder.yaml", "release_age: 3000\n")
    sources = resolver(project, settings)
    kept = pinning.resolve_missing(one, before, (), sources, {"vllm": "release"})
    assert (faults(kept), kept.pins) == (["vllm"], before)
