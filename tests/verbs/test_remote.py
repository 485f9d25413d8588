"""Building with a buildx instance that is not the engine's own and sees none of its images."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from builder.engine import images, transfer
from builder.engine.endpoint import Endpoint
from builder.lock import reading
from builder.project import Project
from tests import buildkits, projects, registries
from tests.conftest import BASE, Command
from tests.registries import Node, Registry

pytestmark = [pytest.mark.engine, pytest.mark.full]


@pytest.fixture(scope="module")
def node(endpoint: Endpoint) -> Iterator[Node]:
    with registries.node("builder-node3", "10.218.0.1/24") as found:
        yield found


@pytest.fixture
def elsewhere(node: Node, endpoint: Endpoint) -> Iterator[str]:
    with buildkits.instance(node, endpoint.buildx) as name:
        yield name


@pytest.fixture
def registry(tmp_path: Path, endpoint: Endpoint) -> Iterator[Registry]:
    """A registry with the base image."""
    with registries.registry(tmp_path / "registry") as found:
        name = f"{found.address}/base:1"
        images.tag(endpoint, BASE, name)
        transfer.push(endpoint, name, {}, lambda _: None)
        images.remove(endpoint, name)
        yield found


def base_from(project: Project, reference: str) -> None:
    definition = project.dockerfiles / "small/image.yaml"
    projects.write(definition, definition.read_text(encoding="utf-8").replace(BASE, reference))


def test_what_is_built_elsewhere_is_loaded_and_the_same_as_from_here(
    small: Project, builder: Command, repository: str, registry: Registry, elsewhere: str, endpoint: Endpoint
) -> None:
    base_from(small, f"{registry.address}/base:1")
    builder("build", "chat", "--builder", elsewhere)
    assert "already built" in builder("build", "chat", "--builder", elsewhere).stdout
    builder("build", "chat", "--force")
    held = reading.read(small.lock).images[repository].numbers
    assert (held[1].builder, held[2].builder) == (elsewhere, None)
    assert held[1].input_hash == held[2].input_hash
    assert (held[1].mods, held[1].versions) == (held[2].mods, held[2].versions)
    details = images.inspect(endpoint, f"{repository}:1")
    assert details
    assert images.fingerprint(details) == held[1].fingerprint


def test_a_chain_is_built_elsewhere_and_recorded_as_from_here(
    small: Project, builder: Command, top: str, registry: Registry, elsewhere: str
) -> None:
    base_from(small, f"{registry.address}/base:1")
    builder("build", "top", "--builder", elsewhere)
    builder("build", "top", "--force")
    lock = reading.read(small.lock)
    there, here = lock.images[top].numbers[1], lock.images[top].numbers[2]
    same = {"built": "", "fingerprint": "", "size": 0, "builder": None}
    assert replace(there, **same) == replace(here, **same)  # type: ignore[arg-type]


def test_builder_yaml_names_it_and_the_cache_goes_to_the_registry(
    small: Project, builder: Command, repository: str, registry: Registry, elsewhere: str, endpoint: Endpoint
) -> None:
    base_from(small, f"{registry.address}/base:1")
    text = f"registry: {registry.address}\nbuilder: {elsewhere}\ncache: true\n"
    projects.write(small.root / "builder.yaml", text)
    builder("build", "chat")
    assert reading.read(small.lock).images[repository].numbers[1].builder == elsewhere
    assert (registry.folder / "data/docker/registry/v2/repositories/small/_manifests/tags/buildcache").is_dir()


def test_a_base_that_only_this_engine_has_is_refused(small: Project, builder: Command, elsewhere: str) -> None:
    said = builder("build", "chat", "--builder", elsewhere, code=2).stderr
    assert f"cannot see {BASE}" in said
    assert not small.lock.exists()


def test_an_instance_that_does_not_exist_is_named(small: Project, builder: Command, registry: Registry) -> None:
    base_from(small, f"{registry.address}/base:1")
    assert "no-such-builder" in builder("build", "chat", "--builder", "no-such-builder", code=6).stderr
    assert not small.lock.exists()
