"""A definition that stands on another: one bake, shared layers, one number."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from builder.base.project import Project
from builder.engine import images
from builder.engine.client import Endpoint, environment
from builder.lock import lock_file
from tests import projects
from tests.conftest import Command

pytestmark = pytest.mark.engine


def layers(endpoint: Endpoint, image: str) -> tuple[str, ...]:
    details = images.inspect_image(endpoint, image)
    assert details is not None
    return details.layers


@pytest.mark.long
def test_the_image_stands_on_the_layers_of_the_one_below(
    small: Project, builder: Command, endpoint: Endpoint, repository: str, top: str
) -> None:
    projects.settle(small)
    builder("build", "small")
    builder("build", "top")
    below, above = layers(endpoint, f"{repository}:1"), layers(endpoint, f"{top}:1")
    assert above[: len(below)] == below
    assert len(above) > len(below)
    lock = lock_file.read_lock(small.lock)
    assert list(lock.images[top].numbers[1].mods) == ["template"]
    assert set(lock.pins) == {"small", "top"}
    assert lock.pins["top"]["linux/amd64" if "linux/amd64" in lock.pins["top"] else "linux/arm64"].base is None


@pytest.mark.long
def test_what_changed_below_is_said_with_the_definitions_name(small: Project, builder: Command, top: str) -> None:
    builder("build", "top")
    assert builder("build", "top").stdout == f"already built as {top}:1\n"
    image = small.root / "dockerfiles/small/image.yaml"
    projects.write(image, image.read_text(encoding="utf-8").replace("hello", "good day"))
    assert "  small: Dockerfile: changed" in builder("build", "top").stdout.splitlines()


@pytest.mark.long
def test_the_build_directory_of_a_chain_is_complete(
    small: Project, builder: Command, endpoint: Endpoint, top: str
) -> None:
    builder("build", "top")
    directory = small.builds / top / "1"
    targets = json.loads((directory / "bake.json").read_text(encoding="utf-8"))["target"]
    assert targets["image"]["contexts"] == {"small": "target:small"}
    assert targets["small"]["context"] == "small"
    argv = [*endpoint.buildx, "bake", "-f", "bake.json", "--set", "image.output=type=cacheonly"]
    subprocess.run(argv, cwd=directory, env={**os.environ, **environment(endpoint)}, check=True, capture_output=True)


def test_a_mod_that_the_image_below_carries_is_not_baked_again(small: Project, builder: Command, top: str) -> None:
    image = small.root / "dockerfiles/small/image.yaml"
    projects.write(image, image.read_text(encoding="utf-8") + "mods: [template]\n")
    builder("build", "top")
    assert not (small.builds / top / "1/mods").exists()
    assert (small.builds / top / "1/small/mods/template/run.sh").is_file()
