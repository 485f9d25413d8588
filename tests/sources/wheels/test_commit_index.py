"""A wheel from the index of one commit's wheels: pinned with its hash and commit, and installed from there by hash."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from uv import find_uv_bin

from builder.base.project import Project
from builder.definitions import image
from builder.definitions.image import ImageDefinition
from builder.lock.model import BasePin, Pins, WheelPin
from builder.pins import pinning
from builder.pins.resolver import Resolver
from builder.plan.making import ImageInputs, make_plan
from builder.sources.git import UserSettings
from tests import projects
from tests.pins.bases import no_contents
from tests.sources.wheelhouse import Served, make_commit_index, make_index, make_wheel, serving, sha256

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


pytestmark = pytest.mark.slow

COMMIT = "e2f56c309d2a28899c68975a7e104502d56deb8f"
VERSION = "0.11.2.dev363+ge2f56c309.cu130"
IMAGE = """\
repository: vllm-node-wheel
description: one commit's wheel
platform: linux/arm64
base: debian:bookworm-slim
sources:
  vllm: {{wheel: vllm, index: "{index}"}}
python: {{version: "3.12", packages: [serve]}}
"""
DOCKERFILE = """\
{% import "_parts/python.j2" as parts_python %}
FROM scratch AS find-links
FROM {{ base }}
{{ parts_python.install(definition, python, arch) }}
"""


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """The index of one commit below its name: a wheel for each machine type, which needs ``serve``."""
    # uv would remember what an earlier server on the same port had.
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv-cache"))
    says = {"vllm/_version.py": f"__commit_id__ = commit_id = 'g{COMMIT[:9]}'\n"}
    tags = [f"cp38-abi3-manylinux_2_31_{machine}" for machine in ("x86_64", "aarch64")]
    wheels = [make_wheel(tmp_path / "wheels" / COMMIT, "vllm", VERSION, tag, ("serve",), says) for tag in tags]
    make_commit_index(tmp_path / "wheels" / COMMIT, wheels)
    with serving(tmp_path / "wheels") as server:
        yield server


@pytest.fixture
def definition(tmp_path: Path, served: Served) -> ImageDefinition:
    project = projects.make(tmp_path)
    index = f"{served.url}/{COMMIT}/cu130"
    projects.write(project.dockerfiles / "wheel/image.yaml", IMAGE.format(index=index))
    projects.write(project.dockerfiles / "wheel/Dockerfile.j2", DOCKERFILE)
    return image.load_image(project, "wheel", "linux/arm64")


def resolve_missing(tmp_path: Path, definition: ImageDefinition, settings: UserSettings) -> Pins:
    asking = Resolver(Project(tmp_path), settings, str, lambda *_: "sha256:" + "b" * 64, no_contents, lambda _: None)
    completed = pinning.resolve_missing(definition, Pins(), (), asking, {})
    assert completed.faults == ()
    return completed.pins


@pytest.fixture
def settings(tmp_path: Path) -> UserSettings:
    """An index of everything else, which has another vLLM; another one lies in a folder."""
    wheels = [make_wheel(tmp_path / "files", name, version) for name, version in (("serve", "1"), ("uv", "1"))]
    wheels.append(make_wheel(tmp_path / "files", "vllm", "99.0"))
    local = make_wheel(tmp_path / "local", "vllm", "98.0")
    return UserSettings(index_url=make_index(tmp_path / "simple", wheels), find_links=(str(local.parent),))


def test_version_hash_and_commit_are_those_of_the_commit(
    tmp_path: Path, definition: ImageDefinition, served: Served, settings: UserSettings
) -> None:
    pins = resolve_missing(tmp_path, definition, settings)
    index = f"{served.url}/{COMMIT}/cu130"
    assert pins.sources == {"vllm": WheelPin(f"vllm from {index}", VERSION, COMMIT[:9])}
    (wheel,) = (tmp_path / "wheels" / COMMIT).glob("*aarch64.whl")
    assert pins.python is not None
    assert {p.name: (p.version, p.hashes) for p in pins.python.packages}["vllm"] == (VERSION, (sha256(wheel),))
    assert f"vllm from {index}" in pins.python.requested
    assert pinning.stale_pins(definition, pins, ()) == ()
    other = replace(definition, sources={"vllm": image.WheelSource("vllm", index.replace("cu130", "cu131"))})
    assert "vllm" in pinning.stale_pins(other, pins, ())


def test_the_image_installs_it_from_there_by_hash(
    tmp_path: Path, definition: ImageDefinition, served: Served, settings: UserSettings
) -> None:
    pins = resolve_missing(tmp_path, definition, settings)
    plan = make_plan(ImageInputs(definition, replace(pins, base=BasePin("x:1", "sha256:" + "b" * 64)), {}, ()))
    index = f"{served.url}/{COMMIT}/cu130"
    text = plan.files["Dockerfile"].content.decode()
    assert f"install_locked --default-index {index} -r index-1.txt\n" in text
    locked = tmp_path / "index-1.txt"
    locked.write_bytes(plan.files["python/index-1.txt"].content)
    target = tmp_path / "installed"
    argv = [find_uv_bin(), "pip", "install", "--no-config", "--no-deps", "--require-hashes", "--target", str(target)]
    argv += ["--python-platform", "aarch64-manylinux_2_39", "--default-index", index, "-r", str(locked)]
    subprocess.run(argv, check=True, capture_output=True)
    assert COMMIT[:9] in (target / "vllm/_version.py").read_text(encoding="utf-8")
