"""A source whose commit its repository has lost: the build goes on from the mirror."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from builder.base.project import Project
from builder.engine import containers
from builder.engine.client import Endpoint
from builder.lock import lock_file
from tests import projects
from tests.commands.git_upstream import Upstream, make_served
from tests.conftest import Command

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.engine

IMAGE = """\
sources:
  flashinfer: {{git: "{url}", ref: main}}
"""
DOCKERFILE = """\
FROM scratch AS flashinfer-source
FROM {{ base }}
RUN --mount=type=bind,from=flashinfer-source,target=/run/builder/source <<'EOF'
# the source
cp -R /run/builder/source /source
find /source -exec touch -h -d @0 {{ "{}" }} +
EOF
"""


@pytest.fixture
def pinned(small: Project, builder: Command, upstream: Upstream, tmp_path: Path) -> Project:
    """A project with a pin that nothing was built from, of a tree with a submodule and a file that a .dockerignore
    would leave out."""
    part = Upstream(upstream.url.replace("flashinfer", "part"), make_served(tmp_path, "part"))
    part.commit("a part", part="of it")
    upstream.git("-c", "protocol.git.allow=always", "submodule", "--quiet", "add", part.url, "3rdparty/part")
    projects.write(upstream.work / ".dockerignore", "serve.py\n")
    upstream.commit("the first", serve="1")
    image = small.root / "dockerfiles/small/image.yaml"
    projects.write(image, image.read_text(encoding="utf-8") + IMAGE.format(url=upstream.url))
    projects.write(small.root / "dockerfiles/small/Dockerfile.j2", DOCKERFILE)
    builder("lock", "small")
    upstream.forget()
    return small


@pytest.mark.long
def test_the_tree_comes_from_the_mirror_and_nothing_else_differs(
    pinned: Project, builder: Command, endpoint: Endpoint, upstream: Upstream, repository: str
) -> None:
    done = builder("build", "small", "--locked")
    assert f"{upstream.url} did not provide" in done.stderr
    assert done.stdout.startswith(f"built {repository}:1 in ")
    with containers.running(endpoint, f"{repository}:1", labels={}) as container:
        found = container.run(["sh", "-c", "cd /source && cat serve.py 3rdparty/part/part.py"], timeout=120)
    assert (found.exit_code, found.output) == (0, "1of it")
    assert upstream.url in (pinned.builds / repository / "1/bake.json").read_text(encoding="utf-8")
    assert builder("build", "small").stdout == f"already built as {repository}:1\n"
    assert "the same content" in builder("rebuild", f"{repository}:1").stdout
    assert lock_file.read_lock(pinned.lock).images[repository].next == 2


def test_without_a_mirror_it_is_said_what_is_gone(
    pinned: Project, builder: Command, upstream: Upstream, repository: str
) -> None:
    before = pinned.lock.read_bytes()
    shutil.rmtree(pinned.mirrors)
    output = builder("build", "small", code=6).stderr
    assert f"the source tree {upstream.url}#" in output
    assert f"there is no mirror of {upstream.url}" in output
    assert pinned.lock.read_bytes() == before
