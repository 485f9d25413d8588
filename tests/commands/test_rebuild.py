from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from builder.engine import images
from builder.engine.client.endpoint import Endpoint, environment
from builder.lock import reading
from builder.project import Project
from tests import projects
from tests.conftest import Command

pytestmark = pytest.mark.engine


def test_a_number_is_built_again_though_templates_and_mods_have_moved_on(
    small: Project, builder: Command, endpoint: Endpoint, repository: str
) -> None:
    builder("build", "chat")
    before = small.lock.read_bytes()
    projects.write(small.root / "mods/template/chat.jinja", "version two\n")
    projects.write(small.root / "dockerfiles/small/Dockerfile.j2", "FROM {{ nothing }}\n")
    for tag in ("1", "latest"):
        images.remove(endpoint, f"{repository}:{tag}")
    output = builder("rebuild", f"{repository}:1").stdout
    assert output.startswith(f"{repository}:1 built again in ")
    assert output.endswith(": the same content, tagged again\n")
    details = images.inspect(endpoint, f"{repository}:1")
    assert details is not None
    assert images.fingerprint(details) == reading.read(small.lock).images[repository].numbers[1].fingerprint
    assert small.lock.read_bytes() == before


def test_other_content_is_said_and_not_kept(
    small: Project, builder: Command, endpoint: Endpoint, repository: str
) -> None:
    builder("build", "chat")
    built = images.inspect(endpoint, f"{repository}:1")
    projects.write(small.builds / repository / "1/mods/template/chat.jinja", "edited since\n")
    output = builder("rebuild", "small", code=1).stdout
    assert "other content, which was not kept" in output
    assert images.inspect(endpoint, f"{repository}:1") == built
    # Its own: others may be building in this engine.
    assert images.tags(endpoint, [f"builder-work:{repository}-*"]) == {}


def test_a_build_directory_is_complete_without_this_program(
    small: Project, builder: Command, endpoint: Endpoint
) -> None:
    builder("build", "chat")
    directory = next(small.builds.glob("*/1"))
    argv = [*endpoint.buildx, "bake", "-f", "bake.json", "--set", "image.output=type=cacheonly"]
    env = {**os.environ, **environment(endpoint)}
    subprocess.run(argv, cwd=directory, env=env, check=True, capture_output=True)


def test_a_build_directory_that_is_gone_is_said(small: Project, builder: Command, repository: str) -> None:
    builder("build", "chat")
    shutil.rmtree(small.builds)
    assert f"builds/{repository}/1 is gone" in builder("rebuild", "small", code=7).stderr
