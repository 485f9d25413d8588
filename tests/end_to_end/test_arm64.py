"""The platform of a DGX Spark, linux/arm64, on any machine: Debian's arm64 packages, run by QEMU where need be."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from builder.engine import images
from builder.engine.client.endpoint import Endpoint, environment
from builder.lock import reading
from builder.lock.model import ImageName
from builder.project import Project
from tests import projects, shared
from tests.conftest import SCRIPTS, command, remove_all
from tests.cpu_image import builder, run_in

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.engine, pytest.mark.full, pytest.mark.timeout(1800)]

PLATFORM = "linux/arm64"
REGISTRATION = Path("/proc/sys/fs/binfmt_misc/builder-aarch64")
MAKE = """\
. "$0/lib/common.sh"
exec mmdebstrap --quiet --variant=minbase --architectures=arm64 bookworm root.tar "deb $(debian_mirror) bookworm main"
"""
DOCKERFILE = "FROM scratch\nADD root.tar /\nENV PATH=/usr/sbin:/usr/bin:/sbin:/bin\n"
MOD = """\
description: says which processor it was baked on
run: run.sh
check: [{file: chat.jinja, contains: version}, {run: check.sh}]
"""


@pytest.fixture(scope="module")
def base(endpoint: Endpoint, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Debian for arm64; for as long as it is there, so are its programs."""
    folder = tmp_path_factory.mktemp("arm64")
    name = f"{shared.unique_name()}-base"
    was_registered = REGISTRATION.exists()
    subprocess.run([SCRIPTS / "emulation", "up"], check=True)
    try:
        subprocess.run(["apt-get", "install", "-y", "--no-install-recommends", "mmdebstrap", "arch-test"], check=True)
        subprocess.run(["bash", "-c", MAKE, SCRIPTS], cwd=folder, check=True)
        (folder / "Dockerfile").write_text(DOCKERFILE)
        argv = [*endpoint.buildx, "build", "--provenance=false", f"--platform={PLATFORM}", "-t", f"{name}:1", "."]
        subprocess.run(argv, cwd=folder, env=environment(endpoint), check=True)
        yield f"{name}:1"
    finally:
        remove_all(endpoint, name)
        if not was_registered:
            subprocess.run([SCRIPTS / "emulation", "down"], check=True)


@pytest.fixture
def project(tmp_path: Path, endpoint: Endpoint, base: str) -> Iterator[Project]:
    """The small project, for arm64."""
    repository = shared.unique_name()
    made = projects.make(tmp_path, repository)
    file = made.dockerfiles / "small/image.yaml"
    shipped = file.read_text(encoding="utf-8")
    projects.write(
        file, shipped.replace("platform: host", f"platform: {PLATFORM}").replace("debian:bookworm-slim", base)
    )
    script = 'cp chat.jinja "$WORKSPACE_DIR"\nuname -m > "$WORKSPACE_DIR/processor"\n'
    files = {"chat.jinja": "version one\n", "check.sh": '[ "$(uname -m)" = "$(cat processor)" ]\n'}
    projects.add_mod(tmp_path, "template", script, files, MOD)
    yield made
    remove_all(endpoint, repository)


def test_from_a_recipe_to_a_number_and_back(project: Project, endpoint: Endpoint) -> None:
    assert "paired with Org/Model-1B" in builder(project, "build", "chat")
    projects.write(project.mods / "template/chat.jinja", "version two\n")
    said = builder(project, "build", "chat")
    lock = reading.read(project.lock)
    (repository,) = lock.images
    assert f"built {repository}:2" in said
    assert "mod template: changed" in said
    assert [lock.images[repository].numbers[number].platform for number in (1, 2)] == [PLATFORM, PLATFORM]
    found = images.inspect(endpoint, f"{repository}:2")
    assert found is not None
    assert found.platform == PLATFORM
    argv = ["sh", "-c", "cat chat.jinja processor; uname -m"]
    assert run_in(endpoint, f"{repository}:2", argv, {}).split() == ["version", "two", "aarch64", "aarch64"]
    builder(project, "rollback", "chat")
    assert reading.read(project.lock).models["Org/Model-1B"].pairing.image == ImageName(repository, 1)
    listed = json.loads(builder(project, "list", "--json"))["images"]
    assert [(one["number"], one["state"], one["platform"]) for one in listed] == [
        (2, "present", PLATFORM),
        (1, "present", PLATFORM),
    ]
    assert "the same content" in builder(project, "rebuild", f"{repository}:1")


def test_a_check_that_does_not_hold_ends_the_build(project: Project) -> None:
    projects.write(project.mods / "template/check.sh", "echo 'no GPU here'; exit 1\n")
    done = subprocess.run(command(project, "build", "chat"), capture_output=True, text=True)
    assert done.returncode == 6
    assert "check of mod template: check.sh fails" in done.stderr
    assert "no GPU here" in done.stderr
    assert not project.lock.exists() or not reading.read(project.lock).images
