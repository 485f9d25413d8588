"""What the tests of several verbs share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from builder.engine.endpoint import Endpoint
from builder.project import Project
from tests import projects
from tests.conftest import remove_all
from tests.verbs import git_upstream

TOP = "repository: {repository}\ndescription: on top\nplatform: host\nfrom: small\nmods: [template]\n"
DOCKERFILE = """\
{% import "_parts/metadata.j2" as parts_metadata %}
{% import "_parts/mods.j2" as parts_mods %}
FROM {{ base }} AS unmodded
RUN echo top > /top
{{ parts_metadata.write(workspace) }}
{{ parts_mods.bake(mods, workspace, "unmodded") }}
"""


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
