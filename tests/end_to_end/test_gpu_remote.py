"""The shipped chain of GPU images, built by a BuildKit on another machine: recorded as when it is built here."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from builder.base.project import Project
from builder.definitions import image
from builder.engine.client import Endpoint
from builder.lock import lock_file
from tests import buildkits, forward_proxy, locks, program, registries, shared
from tests.conftest import command, remove_all
from tests.cpu_image import builder
from tests.end_to_end import kernelless, upstream
from tests.end_to_end.running import layers
from tests.end_to_end.upstream import Upstream

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


pytestmark = [pytest.mark.engine, pytest.mark.image, pytest.mark.full, pytest.mark.timeout(1800)]

BRIDGE = "10.222.0.1"  # of the second engine, and an address of this machine


@pytest.fixture(scope="module")
def vllm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Upstream]:
    with upstream.served(tmp_path_factory.mktemp("upstream")) as served:
        yield served


@pytest.fixture
def project(tmp_path: Path, endpoint: Endpoint, vllm: Upstream) -> Iterator[Project]:
    """The definitions on a base that a registry has: another BuildKit sees none of this engine's images."""
    prefix = shared.unique_name()
    with registries.registry(tmp_path / "registry") as registry:
        base = f"{registry.address}/base:1"
        registries.push_base(endpoint, base)
        kernelless.open_pull(vllm)
        yield kernelless.make(tmp_path / "project", prefix, vllm.url, base)
    for name in kernelless.NAMES:
        remove_all(endpoint, f"{prefix}-{name}")


@pytest.fixture
def elsewhere(endpoint: Endpoint) -> Iterator[tuple[str, dict[str, str]]]:
    """A buildx instance on a second engine, and the environment in which its steps reach the package indexes."""
    with (
        registries.node("builder-gpu1", f"{BRIDGE}/24") as node,
        buildkits.instance(node, endpoint.buildx) as name,
        forward_proxy.running(BRIDGE) as environ,
    ):
        yield name, {**os.environ, **environ}


def written(project: Project, repository: str, number: int) -> dict[str, bytes]:
    """The build directory of a number, but for its record."""
    folder = project.build_directory(repository, number)
    files = {path.relative_to(folder): path for path in folder.rglob("*") if path.is_file()}
    return {str(name): path.read_bytes() for name, path in files.items() if name.name != "images.lock"}


def test_dflash_and_the_kernels_on_it_are_the_same_from_elsewhere(
    project: Project, endpoint: Endpoint, elsewhere: tuple[str, dict[str, str]]
) -> None:
    instance, environ = elsewhere
    dflash, flashqla = (image.repository_of(project, name) for name in ("dflash", "flashqla"))
    argv = command(project, "build", "dflash", "flashqla", "--builder", instance)
    done = program.run(argv, env=environ)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    pins = lock_file.read_lock(project.lock).pins
    below, above = layers(endpoint, f"{dflash}:1"), layers(endpoint, f"{flashqla}:1")
    assert above[: len(below)] == below
    already = f"already built as {dflash}:1\nalready built as {flashqla}:1\n"
    assert builder(project, "build", "dflash", "flashqla", "--locked") == already

    builder(project, "build", "dflash", "flashqla", "--force")
    lock = lock_file.read_lock(project.lock)
    assert lock.pins == pins
    for repository in (dflash, flashqla):
        there, here = lock.images[repository].numbers[1], lock.images[repository].numbers[2]
        assert (there.builder, here.builder) == (instance, None)
        assert locks.without_circumstances(there) == locks.without_circumstances(here)
        assert written(project, repository, 1) == written(project, repository, 2)
        assert len(layers(endpoint, f"{repository}:1")) == len(layers(endpoint, f"{repository}:2"))
