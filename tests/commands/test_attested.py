"""push --sbom and --provenance: BuildKit's attestations beside the image in a real registry, its content unchanged."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from builder.commands import push
from builder.engine import images
from builder.engine.buildkit import attestations
from builder.engine.client import versions
from builder.engine.client.endpoint import Endpoint
from builder.engine.registry import manifests as engine_registry
from builder.lock import reading
from builder.lock.model import ImageName, NumberedImage
from builder.project import Project
from tests import projects, registries, scanners, shared
from tests.conftest import BASE, Command, remove_all
from tests.registries import Node, Registry
from tests.workspaces import workspace

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.engine


@pytest.fixture
def registry(tmp_path: Path, endpoint: Endpoint) -> Iterator[Registry]:
    """A registry with a scanner and the base image."""
    with registries.registry(tmp_path / "registry") as started:
        scanners.push(endpoint, tmp_path / "scanner", f"{started.address}/scanner:1")
        registries.push_base(endpoint, f"{started.address}/base:1")
        yield started


@pytest.fixture
def built(small: Project, builder: Command, repository: str, registry: Registry) -> str:
    """Number 1 of ``small``, on a base of the registry; not pushed."""
    definition = small.dockerfiles / "small/image.yaml"
    text = definition.read_text(encoding="utf-8")
    projects.write(definition, text.replace(BASE, f"{registry.address}/base:1"))
    config = f"registry: {registry.address}\nscanner: {registry.address}/scanner:1\n"
    projects.write(small.root / "builder.yaml", config)
    builder("build", "chat")
    return repository


def recorded(project: Project, repository: str) -> NumberedImage:
    record = reading.read(project.lock).image(ImageName(repository, 1))
    assert record
    return record


def attested(endpoint: Endpoint, reference: str, form: str) -> dict[str, Any]:
    """The attestations of ``reference`` as buildx reads them."""
    found: dict[str, Any] = engine_registry.imagetools_inspect(endpoint, reference, "--format", form)
    return found


def materials(endpoint: Endpoint, reference: str) -> set[str | None]:
    """The digests of what the provenance says that went into ``reference``."""
    used = attested(endpoint, reference, "{{json .Provenance}}")["SLSA"]["materials"]
    return {f"sha256:{one['digest']['sha256']}" for one in used}


def test_they_lie_beside_the_image_and_its_content_stays(
    small: Project, builder: Command, built: str, registry: Registry, endpoint: Endpoint
) -> None:
    before, local = recorded(small, built), images.inspect(endpoint, f"{built}:1")
    output = builder("push", f"{built}:1", "--sbom", "--provenance").stdout
    after = recorded(small, built)
    assert after == replace(before, digest=after.digest)
    reference = f"{registry.address}/{built}"
    assert f"cosign sign {reference}@{after.digest}" in output
    for tag in ("1", "latest"):
        assert engine_registry.digest(endpoint, f"{reference}:{tag}") == after.digest
    assert engine_registry.fingerprint(endpoint, f"{reference}:1", before.platform) == before.fingerprint

    assert attestations.attached(endpoint, f"{reference}:1") == {"sbom", "provenance"}
    base = engine_registry.digest(endpoint, f"{registry.address}/base:1")
    assert base in materials(endpoint, f"{reference}:1")
    packages = attested(endpoint, f"{reference}:1", "{{json .SBOM}}")["SPDX"]["packages"]
    assert {"bash", "dpkg"} <= {package["name"] for package in packages}

    # The engine's own image is the one that it was, and runs; it has no further name.
    assert images.inspect(endpoint, f"{built}:1") == local
    assert not [tag for tag in images.tags(endpoint) if registry.address in tag and "scanner" not in tag]
    assert builder("verify", "--registry").stdout == "all is as images.lock has it\n"


def test_what_the_engine_can_do_is_asked_once(
    small: Project, built: str, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    usable = versions.require_supported

    def counted(one: Endpoint) -> versions.Versions:
        asked.append(one.host)
        return usable(one)

    monkeypatch.setattr(versions, "require_supported", counted)
    (done,) = push.run_attested(workspace(small, endpoint, environ=os.environ), (f"{built}:1",), {"provenance"})
    assert attestations.attached(endpoint, done.reference) == {"provenance"}
    assert asked == [endpoint.host]


def test_what_is_there_is_not_made_twice_and_what_is_added_keeps_it(
    small: Project, builder: Command, built: str, registry: Registry, endpoint: Endpoint
) -> None:
    builder("push", f"{built}:1")
    plain = recorded(small, built).digest
    builder("push", f"{built}:1", "--provenance")
    reference, first = f"{registry.address}/{built}:1", recorded(small, built).digest
    assert first != plain
    assert attestations.attached(endpoint, reference) == {"provenance"}
    for again in (["--provenance"], []):
        assert "is there already" in builder("push", f"{built}:1", *again).stdout
        assert engine_registry.digest(endpoint, reference) == first == recorded(small, built).digest
    builder("push", f"{built}:1", "--sbom")
    assert attestations.attached(endpoint, reference) == {"sbom", "provenance"}
    assert engine_registry.digest(endpoint, f"{registry.address}/{built}:latest") == recorded(small, built).digest


def test_of_a_chain_the_last_image_is_attested_with_the_base_of_the_first(
    small: Project, builder: Command, built: str, top: str, registry: Registry, endpoint: Endpoint
) -> None:
    builder("build", "top")
    builder("push", f"{top}:1", "--sbom", "--provenance")
    reference = f"{registry.address}/{top}:1"
    before = reading.read(small.lock).images[top].numbers[1]
    assert engine_registry.fingerprint(endpoint, reference, before.platform) == before.fingerprint
    assert materials(endpoint, reference) >= {engine_registry.digest(endpoint, f"{registry.address}/base:1")}


def test_pull_and_rollback_get_it_back_and_it_runs(
    small: Project, builder: Command, built: str, endpoint: Endpoint
) -> None:
    builder("push", f"{built}:1", "--sbom", "--provenance")
    fingerprint = recorded(small, built).fingerprint
    for tag in ("1", "latest"):
        images.remove(endpoint, f"{built}:{tag}")
    builder("pull", f"{built}:1")
    assert "is there already" in builder("push", f"{built}:1", "--sbom").stdout
    registries.grow(small, 1, "two")
    builder("build", "chat")
    images.remove(endpoint, f"{built}:1")
    assert f"{built}:2 → {built}:1" in builder("rollback", "chat").stdout
    details = images.inspect(endpoint, f"{built}:1")
    assert details
    assert images.fingerprint(details) == fingerprint
    docker = ["docker", "-H", endpoint.host, "run", "--rm", f"{built}:latest", "cat", "/greeting"]
    assert subprocess.run(docker, check=True, capture_output=True, text=True).stdout == f"hello {built}\n"


def test_a_node_gets_it_as_it_was_recorded(small: Project, builder: Command, built: str, node: Node) -> None:
    builder("push", f"{built}:1", "--sbom", "--provenance")
    config = small.root / "builder.yaml"
    projects.write(config, f"{config.read_text(encoding='utf-8')}nodes: {{second: '{node.host}'}}\n")
    try:
        assert f"{built}:1 is on second" in builder("copy", f"{built}:1", "second").stdout
        details = images.inspect(node.endpoint, f"{built}:1")
        assert details
        assert images.fingerprint(details) == recorded(small, built).fingerprint
    finally:
        remove_all(node.endpoint, built)


@pytest.fixture(scope="module")
def node(endpoint: Endpoint) -> Iterator[Node]:
    with registries.node(*shared.bridge(10)) as started:
        yield started


def test_without_the_same_content_nothing_is_attested(
    small: Project, builder: Command, built: str, registry: Registry, endpoint: Endpoint
) -> None:
    dockerfile = small.build_directory(built, 1) / "Dockerfile"
    dockerfile.write_text(dockerfile.read_text(encoding="utf-8").replace("hello", "other"), encoding="utf-8")
    before = small.lock.read_bytes()
    assert "other content came out" in builder("push", f"{built}:1", "--provenance", code=1).stderr
    assert small.lock.read_bytes() == before
    assert engine_registry.digest(endpoint, f"{registry.address}/{built}:1") is None


def test_a_scanner_that_cannot_be_had_is_named(
    small: Project, builder: Command, built: str, registry: Registry
) -> None:
    config = f"registry: {registry.address}\nscanner: {registry.address}/no-such:1\n"
    projects.write(small.root / "builder.yaml", config)
    output = builder("push", f"{built}:1", "--sbom", code=6).stderr
    assert f"{registry.address}/no-such:1" in output
    assert "`scanner:` of builder.yaml" in output
