"""The examples in the pages of docs/how-to are true: each is run in order, and prints what stands there.

vLLM's repository is stood in for by a small one with titles like its own. Written anew with ``--write-golden``.
"""

from __future__ import annotations

import os
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from builder.engine.client import Endpoint
from docs import examples, terminal
from tests import cpu_image, projects, registries, shared
from tests.commands import git_upstream
from tests.commands.git_upstream import Upstream
from tests.conftest import remove_all

if TYPE_CHECKING:
    from collections.abc import Iterator


pytestmark = pytest.mark.engine

PAGES = projects.REPOSITORY_ROOT / "docs/how-to"
SHIPPED = "vllm-node-tf5"
STICK = "/media/stick"
URL = "https://github.com/vllm-project/vllm.git"
IMAGE = """\
repository: {repository}
description: vLLM with transformers 5, for one GB10 or several
platform: host
base: debian:bookworm-slim
sources:
  vllm: {{git: "{url}", ref: main}}
"""
DOCKERFILE = """\
{% import "_parts/metadata.j2" as parts_metadata %}
{% import "_parts/mods.j2" as parts_mods %}
FROM scratch AS vllm-source
FROM {{ base }} AS base
ARG SOURCE_DATE_EPOCH
RUN --mount=type=bind,from=vllm-source,target=/run/builder/source{% if sources.vllm.patches %} \\
    --mount=type=bind,source=patches,target=/run/builder/patches{% endif %} <<'EOF'
# vLLM
set -eu
cp -R /run/builder/source /vllm
# In place of the Python that is asked for the version of what it imports.
cat > /usr/local/bin/python3 <<'SCRIPT'
sed -n '/^vllm_version/s/.*"\\(.*\\)"/\\1/p' /workspace/build-metadata.yaml
SCRIPT
sed -i '1i #!/bin/sh' /usr/local/bin/python3
chmod +x /usr/local/bin/python3
{% if sources.vllm.patches %}cp -R /run/builder/patches /patches{% endif %}

EOF
{{ parts_metadata.write(workspace) }}
{{ parts_mods.bake(mods, workspace, "base") }}
"""
TITLES = [
    "[Model] Qwen3.5: load quantized gates",
    "[Frontend] Stream tool call arguments as they are parsed",
    "[Kernel] Tune the fused MoE for Blackwell",
    "[CI] Fewer runners for documentation",
    "[Core] Scheduler: account for speculative tokens",
]


@dataclass(frozen=True)
class User:
    """Somebody with a project at ``root`` whose image is called ``repository`` and comes from ``upstream``."""

    root: Path
    repository: str
    upstream: Upstream

    def run(self, line: str) -> str:
        """What a terminal shows after ``line``, in the names of the pages."""
        ran = terminal.run(line.replace(SHIPPED, self.repository), self.root, terminal.with_builder(os.environ))
        return terminal.text(ran).replace(self.repository, SHIPPED).replace(self.upstream.url, URL)


@pytest.fixture
def user(tmp_path: Path, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> Iterator[User]:
    """A project with one image, of a vLLM that has moved on since."""
    for name in ("GIT_AUTHOR_DATE", "GIT_COMMITTER_DATE"):
        monkeypatch.setenv(name, "2026-11-02T09:00:00Z")  # so that the commits are the same in every run
    repository = "docs-" + shared.token()
    with git_upstream.serving(tmp_path) as upstream:
        upstream.commit("[Release] 0.19.1", serve="tools = 'parsed'\n")
        upstream.git("tag", "v0.19.1")
        upstream.git("push", "--quiet", "--tags")
        newcomer = User(tmp_path / "project", repository, upstream)
        _start(newcomer)
        assert "built vllm-node-tf5:1 in" in newcomer.run("builder build qwen3.5-122b-tf5")
        for number, title in enumerate(TITLES):
            upstream.commit(title, **{f"part{number}": f"{title!r}\n"})
        _pull_request(upstream)
        yield newcomer
    remove_all(endpoint, repository)


def _start(user: User) -> None:
    project = projects.make(user.root, user.repository)
    for kind in ("dockerfiles/small", "mods/template", "recipes"):
        for file in sorted((project.root / kind).iterdir()):
            file.unlink()
        (project.root / kind).rmdir()
    definition = project.root / "dockerfiles/tf5"
    projects.write(definition / "image.yaml", IMAGE.format(repository=user.repository, url=user.upstream.url))
    projects.write(definition / "Dockerfile.j2", DOCKERFILE)
    model = "Intel/Qwen3.5-122B-A10B-int4-AutoRound"
    projects.add_recipe(project.root, "qwen3.5-122b-tf5", user.repository, model, [])


def _pull_request(upstream: Upstream) -> None:
    upstream.git("checkout", "--quiet", "-b", "drafter", "v0.19.1")
    projects.write(upstream.work / "drafter.py", "tokens = 5\n")
    upstream.git("add", ".")
    upstream.git("commit", "--quiet", "--message", "[Spec Decode] A block-diffusion drafter")
    upstream.git("push", "--quiet", "origin", "HEAD:refs/pull/40898/head")
    upstream.git("checkout", "--quiet", "main")


@pytest.mark.long
@pytest.mark.parametrize("name", ["find-what-broke", "pin-a-pull-request", "read-images-lock"])
def test_every_example_prints_what_the_page_says(name: str, user: User, request: pytest.FixtureRequest) -> None:
    examples.check(PAGES / f"{name}.md", user.run, write=request.config.getoption("--write-golden"))


@pytest.fixture
def stick() -> Iterator[Path]:
    """A folder whose path is as long as that on the page, so that lines fold as they do for its reader."""
    folder = Path(f"/tmp/{secrets.token_hex(4)[:7]}")
    assert len(str(folder)) == len(STICK)
    folder.mkdir()
    yield folder
    shutil.rmtree(folder)


@pytest.mark.long
def test_the_examples_of_a_machine_without_a_network(
    user: User, tmp_path: Path, stick: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """From the first import on, they are run on the other machine."""
    far = User(tmp_path / "far", user.repository, user.upstream)
    for folder in ("dockerfiles", "mods", "recipes"):
        shutil.copytree(user.root / folder, far.root / folder)
    with registries.node(*shared.bridge(4)) as node:
        at = user

        def run(line: str) -> str:
            nonlocal at
            if line.startswith("builder import-image"):
                at = far
                monkeypatch.setenv("DOCKER_HOST", node.host)
            return at.run(line.replace(STICK, str(stick))).replace(str(stick), STICK)

        examples.check(PAGES / "without-a-network.md", run, write=request.config.getoption("--write-golden"))


def test_the_examples_of_writing_a_mod(tmp_path: Path, endpoint: Endpoint, request: pytest.FixtureRequest) -> None:
    """On the shipped mods and pins; nothing is built."""
    project = cpu_image.project(tmp_path, "vllm-node-cpu")

    def run(line: str) -> str:
        return terminal.text(terminal.run(line, project.root, terminal.with_builder(os.environ)))

    examples.check(PAGES / "write-a-mod.md", run, write=request.config.getoption("--write-golden"))


def test_the_examples_of_recipes_of_others(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    project = projects.make(tmp_path / "project", SHIPPED)

    def run(line: str) -> str:
        return terminal.text(terminal.run(line, project.root, terminal.with_builder(os.environ)))

    examples.check(PAGES / "recipes-of-others.md", run, write=request.config.getoption("--write-golden"))
