"""The Python closure, resolved by the real uv from an index on disk."""

from __future__ import annotations

import hashlib
import tarfile
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from builder.base.errors import SourceError
from builder.definitions import image
from builder.definitions.image import GitSource, Index, PythonRequirements, WheelSource
from builder.lock.model import GitPin, LockedPackage, PythonPin
from builder.sources import python
from builder.sources.git import UserSettings
from tests import projects
from tests.sources.wheelhouse import make_index, make_wheel, sha256

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.slow

WANTS = PythonRequirements(version="3.12", glibc="2.39", packages=("serve>=1",))


def resolve(
    wants: PythonRequirements,
    platform: str,
    settings: UserSettings,
    inherited: tuple[LockedPackage, ...] = (),
    before: tuple[LockedPackage, ...] = (),
) -> PythonPin:
    request = python.ClosureRequest(wants, ("what was asked",), wants.packages, platform, before)
    return python.resolve_closure(request, settings, inherited).pin


def test_the_closure_holds_every_file_that_suits_the_platform_and_no_other(tmp_path: Path) -> None:
    wheels = [
        make_wheel(tmp_path / "files", "serve", "1.2", requires=("kernel",)),
        make_wheel(tmp_path / "files", "serve", "0.9"),
        make_wheel(tmp_path / "files", "kernel", "3.0", "cp312-cp312-manylinux_2_28_aarch64"),
        make_wheel(tmp_path / "files", "kernel", "3.0", "cp312-cp312-manylinux_2_28_x86_64"),
        make_wheel(tmp_path / "files", "kernel", "3.0", "cp311-cp311-manylinux_2_28_aarch64"),
    ]
    settings = UserSettings(index_url=make_index(tmp_path / "simple", wheels))
    pin = resolve(WANTS, "linux/arm64", settings)
    assert pin.packages == (
        LockedPackage("kernel", "3.0", (sha256(wheels[2]),)),
        LockedPackage("serve", "1.2", (sha256(wheels[0]),)),
    )
    assert pin.requested == ("what was asked",)


def test_a_package_from_a_repository_is_not_checked_out(tmp_path: Path) -> None:
    wants = replace(WANTS, packages=(f"evil @ git+file://{tmp_path}/evil",))
    with pytest.raises(SourceError, match="evil comes from an address of its own"):
        resolve(wants, "linux/arm64", UserSettings(index_url="http://127.0.0.1:9/simple"))


def test_a_package_that_is_never_wanted_is_left_out(tmp_path: Path) -> None:
    wheels = [
        make_wheel(tmp_path / "files", "serve", "1.2", requires=("vision",)),
        make_wheel(tmp_path / "files", "vision", "9"),
    ]
    settings = UserSettings(index_url=make_index(tmp_path / "simple", wheels))
    names = [p.name for p in resolve(replace(WANTS, without=("vision",)), "linux/amd64", settings).packages]
    assert names == ["serve"]


def test_an_index_of_its_own_serves_its_packages_alone(tmp_path: Path) -> None:
    common = make_wheel(tmp_path / "files", "serve", "1.2", requires=("torch",))
    wrong = make_wheel(tmp_path / "files", "torch", "9")
    right = make_wheel(tmp_path / "own", "torch", "2")
    settings = UserSettings(index_url=make_index(tmp_path / "simple", [common, wrong]))
    wants = replace(
        WANTS, packages=("serve", "torch"), indexes=(Index(make_index(tmp_path / "own-simple", [right]), ("torch",)),)
    )
    assert {p.name: p.version for p in resolve(wants, "linux/amd64", settings).packages} == {
        "serve": "1.2",
        "torch": "2",
    }


def test_a_local_wheel_comes_before_an_index_of_its_own(tmp_path: Path) -> None:
    local = make_wheel(tmp_path / "local", "torch", "2.13.0+cpu", "cp312-cp312-manylinux_2_28_x86_64")
    settings = UserSettings(index_url=make_index(tmp_path / "simple", []), find_links=(str(local.parent),))
    wants = replace(WANTS, packages=("torch==2.13.0+cpu",), indexes=(Index("file:///nowhere/at/all", ("torch",)),))
    assert resolve(wants, "linux/amd64", settings).packages == (LockedPackage("torch", "2.13.0+cpu", (sha256(local),)),)
    with pytest.raises(SourceError):
        resolve(wants, "linux/arm64", settings)


def test_what_cannot_be_had_is_said_in_uvs_words(tmp_path: Path) -> None:
    settings = UserSettings(index_url=make_index(tmp_path / "simple", [make_wheel(tmp_path / "files", "serve", "0.9")]))
    with pytest.raises(SourceError) as caught:
        resolve(WANTS, "linux/arm64", settings)
    assert "cannot be resolved for linux/arm64, Python 3.12" in caught.value.message
    assert "serve" in caught.value.message


BACKEND = """\
import pathlib
pathlib.Path({mark!r}).touch()
raise SystemExit(1)
"""
PYPROJECT = """\
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "serve"
dynamic = ["version", "dependencies"]
"""


def make_source(folder: Path, mark: Path) -> Path:
    """A source distribution whose build leaves ``mark``."""
    files = {"pyproject.toml": PYPROJECT, "backend.py": BACKEND.format(mark=str(mark)), "PKG-INFO": METADATA}
    folder.mkdir()
    for name, text in files.items():
        projects.write(folder / "serve-1.3" / name, text)
    with tarfile.open(folder / "serve-1.3.tar.gz", "w:gz") as archive:
        archive.add(folder / "serve-1.3", "serve-1.3")
    return folder / "serve-1.3.tar.gz"


METADATA = "Metadata-Version: 2.1\nName: serve\nVersion: 1.3\n"


def test_no_code_of_a_package_runs_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = tmp_path / "ran"
    source = make_source(tmp_path / "source", mark)
    wheel = make_wheel(tmp_path / "files", "serve", "1.2")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    settings = UserSettings(index_url=make_index(tmp_path / "simple", [wheel]), find_links=(str(tmp_path / "source"),))
    assert [package.version for package in resolve(WANTS, "linux/arm64", settings).packages] == ["1.2"]
    for wanted in ("serve==1.3", f"serve @ {source.as_uri()}", f"serve @ {(tmp_path / 'source/serve-1.3').as_uri()}"):
        with pytest.raises(SourceError, match="cannot be resolved") as caught:
            resolve(replace(WANTS, packages=(wanted,)), "linux/arm64", settings)
        assert "UV_NO_BUILD=0" in caught.value.hint, caught.value.message
    assert not mark.exists()
    monkeypatch.setenv("UV_NO_BUILD", "0")
    with pytest.raises(SourceError):
        resolve(replace(WANTS, packages=("serve==1.3",)), "linux/arm64", settings)
    assert mark.exists()


def test_a_package_that_no_index_has_cannot_be_pinned(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "files", "serve", "1.2", requires=("kernel",))
    kernel = make_wheel(tmp_path / "files", "kernel", "3.0")
    settings = UserSettings(index_url=make_index(tmp_path / "simple", [wheel]))
    wants = replace(WANTS, packages=("serve", f"kernel @ {kernel.as_uri()}"))
    with pytest.raises(SourceError, match="kernel comes from an address of its own") as caught:
        resolve(wants, "linux/arm64", settings)
    assert "`kernel==VERSION`" in caught.value.hint


def test_an_index_without_sha256_is_named(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path / "files", "serve", "1.2")
    digest = hashlib.sha512(wheel.read_bytes()).hexdigest()
    index = UserSettings(index_url=make_index(tmp_path / "simple", [wheel]))
    page = tmp_path / "simple/serve/index.html"
    page.write_text(page.read_text().replace(f"sha256={sha256(wheel)}", f"sha512={digest}"))
    with pytest.raises(SourceError, match="the index has no sha256 of serve, only sha512"):
        resolve(WANTS, "linux/arm64", index)


def test_every_wish_counts(tmp_path: Path) -> None:
    small = image.load_image(projects.make(tmp_path), "small", "linux/arm64")
    changed = [
        replace(WANTS, version="3.11"),
        replace(WANTS, glibc="2.36"),
        replace(WANTS, packages=("serve>=2",)),
        replace(WANTS, without=("vision",)),
        replace(WANTS, indexes=(Index("https://example.org", ("torch",)),)),
    ]
    definitions = [replace(small, python=wants) for wants in (WANTS, *changed)]
    definitions.append(replace(small, python=WANTS, sources={"vllm": WheelSource("vllm==1")}))
    git = replace(small, python=WANTS, sources={"vllm": GitSource("https://x", "main", requirements=("r.txt",))})
    pins = [GitPin("https://x", "main", commit * 40, "1", "2026-01-01T00:00:00Z") for commit in "ab"]
    requests = {python.requested_packages(definition, {}, ()) for definition in definitions}
    requests |= {python.requested_packages(git, {"vllm": pin}, ()) for pin in pins}
    assert len(requests) == len(definitions) + len(pins)


def test_what_is_held_keeps_its_version(tmp_path: Path) -> None:
    wheels = [make_wheel(tmp_path / "files", "serve", version) for version in ("1.2", "1.9")]
    settings = UserSettings(index_url=make_index(tmp_path / "simple", wheels))
    inherited = (LockedPackage("serve", "1.2", ()),)
    assert resolve(WANTS, "linux/arm64", settings, inherited).packages[0].version == "1.2"
    assert resolve(WANTS, "linux/arm64", settings).packages[0].version == "1.9"


def test_what_was_resolved_before_stays_where_it_will_do(tmp_path: Path) -> None:
    wheels = [make_wheel(tmp_path / "files", "serve", version) for version in ("1.2", "1.9")]
    settings = UserSettings(index_url=make_index(tmp_path / "simple", wheels))
    before = (LockedPackage("serve", "1.2", ("0" * 64,)),)
    kept = resolve(WANTS, "linux/arm64", settings, before=before).packages
    assert kept == (LockedPackage("serve", "1.2", (sha256(wheels[0]),)),)
    moved = resolve(replace(WANTS, packages=("serve>=1.5",)), "linux/arm64", settings, before=before).packages
    assert moved[0].version == "1.9"
