"""Building again without any cache: what is deterministic comes out the same, to the digest."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from builder.base.project import Project
from builder.engine import bake_run, images
from builder.engine.client import Endpoint, environment
from builder.engine.images import ImageDetails
from tests import projects
from tests.conftest import Command, remove_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


pytestmark = pytest.mark.engine

# A file, folders, links, rights, a file of the base that changes and one that goes.
SCRIPT = """\
cp chat.jinja "$WORKSPACE_DIR/chat.jinja"
mkdir -p /opt/kernels/cache
echo compiled > /opt/kernels/cache/one
ln -s one /opt/kernels/cache/two
ln /opt/kernels/cache/one /opt/kernels/cache/three
chmod 0600 /opt/kernels/cache/one
echo 'export KERNELS=/opt/kernels' >> /etc/profile
rm /etc/issue
"""


def use(project: Project, first_step: str) -> None:
    """Gives the image of ``small`` another first step, and a mod that touches the file system in many ways."""
    template = projects.DOCKERFILE.replace(projects.GREETING, first_step)
    assert template != projects.DOCKERFILE
    projects.write(project.root / "dockerfiles/small/Dockerfile.j2", template)
    projects.write(project.root / "mods/template/run.sh", f"set -eu\n{SCRIPT}")


@pytest.fixture
def built_anew(
    small: Project, endpoint: Endpoint, repository: str, tmp_path: Path
) -> Iterator[Callable[[], ImageDetails]]:
    """Builds number 1 from its build directory, by buildx alone and without a cache."""
    name = f"{repository}-anew"

    def build() -> ImageDetails:
        argv = [*endpoint.buildx, "bake", "--no-cache", "-f", bake_run.BAKE_FILE]
        argv += ["--set", f"image.output=type=image,compression=zstd,compression-level=1,name={name}:1"]
        env = {**os.environ, **environment(endpoint)}
        subprocess.run(argv, cwd=small.builds / repository / "1", env=env, check=True, capture_output=True)
        details = images.inspect_image(endpoint, f"{name}:1")
        assert details is not None
        return details

    yield build
    remove_all(endpoint, name)


@pytest.mark.long
def test_an_image_of_deterministic_steps_has_one_digest(
    small: Project, builder: Command, endpoint: Endpoint, repository: str, built_anew: Callable[[], ImageDetails]
) -> None:
    use(small, "")
    builder("build", "chat")
    first = images.inspect_image(endpoint, f"{repository}:1")
    assert first is not None
    # The engine's id covers all of the image: the digest of its manifest, or of its configuration in an older store.
    assert [built_anew().id, built_anew().id] == [first.id, first.id]


@pytest.mark.long
def test_the_layers_of_metadata_and_mods_do_not_depend_on_the_run(
    small: Project, builder: Command, endpoint: Endpoint, repository: str, built_anew: Callable[[], ImageDetails]
) -> None:
    use(small, "RUN cat /proc/sys/kernel/random/uuid > /greeting\n")
    builder("build", "chat")
    base = images.inspect_image(endpoint, "debian:bookworm-slim")
    assert base is not None
    one, two = built_anew().layers, built_anew().layers
    own = len(base.layers)
    assert one[own] != two[own]
    assert len(one[own + 1 :]) == 3  # the metadata, the directory to start in, the mod
    assert one[own + 1 :] == two[own + 1 :]
