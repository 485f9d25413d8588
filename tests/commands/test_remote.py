"""Building with a buildx instance that is not the engine's own and sees none of its images."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from builder.base.project import Project
from builder.engine import images
from builder.engine import registry as engine_registry
from builder.engine.client import Endpoint
from builder.lock import lock_file
from tests import buildkits, locks, projects, registries, shared
from tests.conftest import BASE, Command
from tests.registries import Node, Registry

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


pytestmark = [pytest.mark.engine, pytest.mark.full]
FILLER = 4000  # kilobytes of a layer that two numbers share


@pytest.fixture(scope="module")
def node(endpoint: Endpoint) -> Iterator[Node]:
    with registries.node(*shared.bridge(5)) as started:
        yield started


@pytest.fixture
def elsewhere(node: Node, endpoint: Endpoint) -> Iterator[str]:
    with buildkits.instance(node, endpoint.buildx) as name:
        yield name


@pytest.fixture
def registry(tmp_path: Path, endpoint: Endpoint) -> Iterator[Registry]:
    """A registry with the base image."""
    with registries.registry(tmp_path / "registry") as started:
        registries.push_base(endpoint, f"{started.address}/base:1")
        yield started


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
    numbers = lock_file.read_lock(small.lock).images[repository].numbers
    assert (numbers[1].builder, numbers[2].builder) == (elsewhere, None)
    assert numbers[1].input_hash == numbers[2].input_hash
    assert (numbers[1].mods, numbers[1].versions) == (numbers[2].mods, numbers[2].versions)
    details = images.inspect_image(endpoint, f"{repository}:1")
    assert details
    assert images.fingerprint(details) == numbers[1].fingerprint


def test_a_chain_is_built_elsewhere_and_recorded_as_from_here(
    small: Project, builder: Command, top: str, registry: Registry, elsewhere: str
) -> None:
    base_from(small, f"{registry.address}/base:1")
    builder("build", "top", "--builder", elsewhere)
    builder("build", "top", "--force")
    lock = lock_file.read_lock(small.lock)
    there, here = lock.images[top].numbers[1], lock.images[top].numbers[2]
    assert locks.without_circumstances(there) == locks.without_circumstances(here)


def test_through_the_registry_only_what_lacks_moves_and_the_number_is_there(
    small: Project, builder: Command, repository: str, registry: Registry, elsewhere: str, endpoint: Endpoint
) -> None:
    """Another BuildKit pushes what it built by its digest; the engine gets it from there, checks it and numbers it."""
    base_from(small, f"{registry.address}/base:1")
    registries.grow(small, FILLER, "one")
    with registries.before(registry) as front:
        projects.write(small.root / "builder.yaml", f"registry: {front.address}\n")
        builder("build", "chat", "--builder", elsewhere, "--push")
        first = front.sent
        projects.add_mod(small.root, "small", "echo more > /more\n", {})
        output = builder("build", "chat", "--mod", "small", "--builder", elsewhere, "--push").stdout
        assert front.sent - first < FILLER * 10 < FILLER * 1000 < first
        numbers = lock_file.read_lock(small.lock).images[repository].numbers
        assert f"{repository}:2 pushed, now latest: {front.address}/{repository}:2@{numbers[2].digest}" in output
        for number in (1, 2):
            assert numbers[number].builder == elsewhere
            assert (
                engine_registry.manifest_digest(endpoint, f"{front.address}/{repository}:{number}")
                == numbers[number].digest
            )
            details = images.inspect_image(endpoint, f"{repository}:{number}")
            assert details
            assert images.fingerprint(details) == numbers[number].fingerprint
        assert not [tag for tag in images.image_tags(endpoint) if front.address in tag]


def test_what_fails_its_checks_gets_no_tag_there(
    small: Project, builder: Command, repository: str, registry: Registry, elsewhere: str, endpoint: Endpoint
) -> None:
    base_from(small, f"{registry.address}/base:1")
    projects.write(small.root / "builder.yaml", f"registry: {registry.address}\n")
    yaml = "description: fails\nrun: run.sh\ncheck: [{file: chat.jinja, contains: nothing of the kind}]\n"
    projects.write(small.root / "mods/template/mod.yaml", yaml)
    builder("build", "chat", "--builder", elsewhere, "--push", code=6)
    assert not small.lock.exists()
    kept = registry.folder / f"data/docker/registry/v2/repositories/{repository}/_manifests"
    assert (kept / "revisions").is_dir()
    assert not (kept / "tags").exists()


def test_builder_yaml_names_it_and_the_cache_goes_to_the_registry(
    small: Project, builder: Command, repository: str, registry: Registry, elsewhere: str, endpoint: Endpoint
) -> None:
    base_from(small, f"{registry.address}/base:1")
    text = f"registry: {registry.address}\nbuilder: {elsewhere}\ncache: true\n"
    projects.write(small.root / "builder.yaml", text)
    builder("build", "chat")
    assert lock_file.read_lock(small.lock).images[repository].numbers[1].builder == elsewhere
    assert (registry.folder / "data/docker/registry/v2/repositories/small/_manifests/tags/buildcache").is_dir()


def test_a_base_that_only_this_engine_has_is_refused(small: Project, builder: Command, elsewhere: str) -> None:
    output = builder("build", "chat", "--builder", elsewhere, code=2).stderr
    assert f"cannot see {BASE}" in output
    assert not small.lock.exists()


def test_an_instance_that_does_not_exist_is_named(small: Project, builder: Command, registry: Registry) -> None:
    base_from(small, f"{registry.address}/base:1")
    assert "no-such-builder" in builder("build", "chat", "--builder", "no-such-builder", code=6).stderr
    assert not small.lock.exists()
