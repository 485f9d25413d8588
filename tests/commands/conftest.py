"""Fixtures that the tests of several commands share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from builder.base.project import Project
from builder.definitions.container import LABEL
from builder.engine import containers
from builder.engine.client import Endpoint
from tests import program, projects, registries, shared
from tests.commands import git_upstream, planted_faults, serving
from tests.conftest import command, remove_all
from tests.registries import Registry

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


TOP = "repository: {repository}\ndescription: on top\nplatform: host\nfrom: small\nmods: [template]\n"
DOCKERFILE = """\
{% import "_parts/metadata.j2" as parts_metadata %}
{% import "_parts/mods.j2" as parts_mods %}
FROM {{ base }} AS base
RUN echo top > /top
{{ parts_metadata.write(workspace) }}
{{ parts_mods.bake(mods, workspace, "base") }}
"""


@pytest.fixture(scope="session")
def bisect_base(endpoint: Endpoint, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The repository of two base images with Python and git, made once for all workers."""
    folder = tmp_path_factory.mktemp("base")
    return shared.once("bisect-base", lambda: planted_faults.make_base(endpoint, folder))


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[Registry]:
    """A registry with nothing in it."""
    with registries.registry(tmp_path / "registry") as started:
        yield started


@pytest.fixture
def top(small: Project, endpoint: Endpoint, repository: str) -> Iterator[str]:
    """The repository of a definition ``top`` on ``small``."""
    name = f"{repository}-top"
    projects.write(small.root / "dockerfiles/top/image.yaml", TOP.format(repository=name))
    projects.write(small.root / "dockerfiles/top/Dockerfile.j2", DOCKERFILE)
    yield name
    remove_all(endpoint, name)


@pytest.fixture
def upstream(tmp_path: Path) -> Iterator[git_upstream.Upstream]:
    """A repository that a git daemon serves."""
    with git_upstream.serving(tmp_path) as served:
        yield served


@pytest.fixture(scope="session")
def built(endpoint: Endpoint) -> tuple[Project, str]:
    """A project with the stand-in for vLLM in numbers 1 and 2 of a repository, the model paired with 2. Built once for
    all workers, which copy it."""
    root = shared.folder() / "served"
    return Project(root), shared.once("served-image", lambda: _build_standin(root))


def _build_standin(root: Path) -> str:
    repository = shared.unique_name()
    shared.remove_at_end(repository)
    project = serving.make(root, repository)
    for _ in range(2):
        done = program.run(command(project, "build", "chat"))
        assert done.returncode == 0, done.stderr
        run_sh = project.mods / "standin/run.sh"
        projects.write(run_sh, run_sh.read_text() + "touch /second\n")
    return repository


@pytest.fixture
def kitchen(built: tuple[Project, str], tmp_path: Path, endpoint: Endpoint) -> Iterator[serving.Kitchen]:
    """A copy of it for one test; what it serves is gone when the test ends."""
    made = serving.kitchen(built[0], tmp_path / "project", built[1])
    yield made
    for service in containers.labelled(endpoint, LABEL):
        if made.name.removeprefix("vllm-") in service.name:
            containers.remove_container(endpoint, service.id)
