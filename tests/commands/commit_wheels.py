"""A project whose vLLM comes as a wheel: releases on a package index, and a wheel of each commit on one of its own, as
vLLM publishes them. A fault is planted in one commit; some commits have no wheel."""

from __future__ import annotations

import platform
import shutil
import subprocess
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from uv import find_uv_bin

from builder.base.project import Project
from builder.engine import bake_run, images
from builder.lab.bisect import points
from tests import projects, shared, shipped_files
from tests.commands import git_upstream
from tests.conftest import remove_all, run_command
from tests.sources import wheelhouse

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from builder.engine.client import Endpoint
    from tests.commands.git_upstream import Upstream


COMMITS, PLANTED = 400, 261
# Runs of commits that were never built, and those with wheels of the other machine type alone.
MISSING = (*range(100, 104), *range(195, 203))
ELSEWHERE = (*range(299, 302),)
# From this commit on vLLM needs another torch.
TORCH_MOVES = 230
MACHINE = platform.machine()
OTHER = "aarch64" if MACHINE == "x86_64" else "x86_64"
IMAGE = """\
repository: {repository}
description: vLLM as a wheel
platform: host
base: {repository}-base:1
sources: {{vllm: {source}}}
python: {{version: "3.11", glibc: "2.36", packages: [], as_of: today}}
serve: {{gpus: none, ipc: private, shm_size: 64m}}
"""
DOCKERFILE = """\
{{% import "_parts/metadata.j2" as parts_metadata %}}
{{% import "_parts/mods.j2" as parts_mods %}}
{{% import "_parts/python.j2" as parts_python %}}
FROM scratch AS find-links
FROM {{{{ base }}}} AS base
{{{{ parts_python.install_beside(definition, python, arch) }}}}
ENV NUMBER={number}
{{{{ parts_metadata.write(workspace) }}}}
{{{{ parts_mods.bake(mods, workspace, "base") }}}}
"""
OTHER_DEFINITION = """\
repository: {repository}-source
description: says where the source is
platform: host
base: {repository}-base:1
sources: {{vllm: {{git: "{url}", ref: main}}}}
"""
JUDGE = "docker run --rm \"$BUILDER_IMAGE\" python3 -c 'import sys, vllm.tools; sys.exit(vllm.tools.ANSWER)'\n"


@dataclass(frozen=True)
class WheelPlanting:
    """A project with the fault planted; ``commits`` are those of the main line, the first and the last one releases.
    ``index`` is the address of a commit's index, with ``COMMIT`` in its place."""

    project: Project
    repository: str
    commits: tuple[str, ...]
    index: str
    judge: Path
    environ: dict[str, str]

    def builder(self, *arguments: str) -> str:
        return run_command(self.project, *arguments, environ=self.environ, timeout=600).stdout

    def build(self, source: str, number: int) -> None:
        """Builds a number with vLLM from ``source``, which also differs in its template."""
        folder = self.project.root / "dockerfiles/trial"
        projects.write(folder / "image.yaml", IMAGE.format(repository=self.repository, source=source))
        projects.write(folder / "Dockerfile.j2", DOCKERFILE.format(number=number))
        self.builder("build", "trial")

    def wheel(self, place: int) -> Path:
        """The wheel of a commit."""
        return next((self.judge.parent / "index" / self.commits[place]).glob("*.whl"))

    def of_commit(self, place: int) -> str:
        """The wheel of a commit as image.yaml names it."""
        return f'{{wheel: vllm, index: "{self.index.replace("COMMIT", self.commits[place])}"}}'


@contextmanager
def planting(endpoint: Endpoint, folder: Path, base: str, *, torch: bool = False) -> Iterator[WheelPlanting]:
    """A project with the fault planted, and no number yet; everything that it makes is gone at the end. With ``torch``
    the wheels need one, and not all the same, and the commit before the fault has none."""
    repository = shared.unique_name()
    with ExitStack() as stack:
        upstream = stack.enter_context(git_upstream.serving(folder / "git"))
        commits = _history(upstream)
        wheels = _wheels(folder / "index", commits, torch=torch)
        served = stack.enter_context(wheelhouse.serving(wheels, host=_gateway()))
        for name in (repository, f"{repository}-base"):
            stack.callback(remove_all, endpoint, name)
        _make_base(endpoint, folder / "base", base, f"{repository}-base:1")
        project = Project(folder / "project")
        shutil.copytree(shipped_files.project().root / "dockerfiles/_parts", project.root / "dockerfiles/_parts")
        index = f"{served.url}/COMMIT/cu130"
        projects.write(project.root / "builder.yaml", f'commit_wheels: "{index}"\n')
        other = OTHER_DEFINITION.format(repository=repository, url=upstream.url)
        projects.write(project.root / "dockerfiles/source/image.yaml", other)
        projects.write(project.root / "dockerfiles/source/Dockerfile.j2", "FROM {{ base }}\n")
        judge = folder / "judge.sh"
        projects.write(judge, f"#!/bin/sh\n{JUDGE}")
        judge.chmod(0o755)
        environ = {
            "PIP_INDEX_URL": f"{served.url}/simple",
            "PIP_FIND_LINKS": "",
            "UV_CACHE_DIR": str(folder / "uv-cache"),
            "HOME": str(folder / "home"),
        }
        stack.callback(_remove_candidates, endpoint, project)
        yield WheelPlanting(project, repository, commits, index, judge, environ)


def _gateway() -> str:
    """The address at which steps of a build reach this machine."""
    asked = ["docker", "network", "inspect", "bridge", "--format", "{{(index .IPAM.Config 0).Gateway}}"]
    return subprocess.run(asked, check=True, capture_output=True, text=True).stdout.strip()


def _make_base(endpoint: Endpoint, context: Path, base: str, name: str) -> None:
    """A base image with Python and uv."""
    context.mkdir()
    shutil.copy2(find_uv_bin(), context / "uv")
    projects.write(context / "Dockerfile", f"FROM {base}:1\nCOPY uv /usr/local/bin/uv\n")
    projects.write(context / "bake.json", '{"target": {"image": {"context": "."}}}')
    bake_run.bake_targets(
        endpoint, context, names={"image": name}, log_path=context / "log",
        on_event=lambda _: None, environ={},
    )  # fmt: skip


def _remove_candidates(endpoint: Endpoint, project: Project) -> None:
    for tag in images.image_tags(endpoint, [points.candidate_repository(project)]):
        images.remove_image(endpoint, tag)


def _history(upstream: Upstream) -> tuple[str, ...]:
    """The main line, of which the first commit and the last one have the tag of a release."""

    def changes(number: int) -> str:
        files = {"vllm/number": f"{number}\n"} | (_tools(number) if number in (0, PLANTED) else {})
        return git_upstream.written(files)

    commits = upstream.write_main(
        COMMITS,
        lambda number: "[Core] Cache `answers`" if number == PLANTED else f"commit {number}",
        changes,
        {"v0.31.0": 0, "v0.32.0": COMMITS - 1},
    )
    return tuple(commits)


def _tools(number: int) -> dict[str, str]:
    return {"vllm/__init__.py": "", "vllm/tools.py": f"ANSWER = {int(number >= PLANTED)}\n"}


def _wheels(folder: Path, commits: tuple[str, ...], *, torch: bool) -> Path:
    """The releases on an index, and an index for each commit that has a wheel."""

    def wheel(folder: Path, version: str, number: int, machine: str) -> Path:
        commit = commits[number][:9]
        files = {**_tools(number), "vllm/_version.py": f"__commit_id__ = commit_id = 'g{commit}'\n"}
        needs = (f"torch=={2 if number >= TORCH_MOVES else 1}.0",) if torch else ()
        return wheelhouse.make_wheel(folder, "vllm", version, f"cp38-abi3-manylinux_2_31_{machine}", needs, files)

    wheelhouse.make_wheel(folder, "uv", "1.0")
    for version in ("1.0", "2.0"):
        wheelhouse.make_wheel(folder, "torch", version)
    for version, number in (("0.31.0", 0), ("0.32.0", COMMITS - 1)):
        wheel(folder, version, number, MACHINE)
    wheelhouse.make_simple_index(folder)
    for number, commit in enumerate(commits):
        if number not in MISSING and not (torch and number == PLANTED - 1):
            machine = OTHER if number in ELSEWHERE else MACHINE
            own = folder / commit
            made = wheel(own, f"0.31.1.dev{number}+g{commit[:9]}.cu130", number, machine)
            wheelhouse.make_commit_index(own, [made])
    return folder
