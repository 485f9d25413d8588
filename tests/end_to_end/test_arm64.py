"""The platform of a DGX Spark, linux/arm64, on any machine: Debian's arm64 packages, run by QEMU where need be, for a
small image, and for tf5-wheel with all of CUDA's wheels for arm64."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml
from packaging.version import Version

from builder.base.project import Project
from builder.engine import images
from builder.engine.client import Endpoint, environment
from builder.lock import lock_file
from builder.lock.model import ImageName
from tests import program, projects, shared, shipped_files
from tests.conftest import SCRIPTS, command, remove_all
from tests.cpu_image import builder, run_in
from tests.end_to_end.running import answer

if TYPE_CHECKING:
    from collections.abc import Iterator


pytestmark = [pytest.mark.engine, pytest.mark.full, pytest.mark.timeout(7200)]

PLATFORM = "linux/arm64"
REGISTRATION = Path("/proc/sys/fs/binfmt_misc/builder-aarch64")
MAKE = """\
. "$0/lib/common.sh"
exec mmdebstrap --quiet --variant=minbase --architectures=arm64 bookworm root.tar "deb $(debian_mirror) bookworm main"
"""
DOCKERFILE = "FROM scratch\nADD root.tar /\nENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n"
MOD = """\
description: says which processor it was baked on
run: run.sh
check: [{file: chat.jinja, contains: version}, {run: check.sh}]
"""
SHIPPED_MODS = ["enable-hybrid-int4fp8", "fix-qwen3.5-enhanced-chat-template"]  # without those that import torch
# Of two that Python finds, such as Debian's own setuptools after the locked one, the first counts.
INSTALLED = """\
import importlib.metadata as metadata, json, platform, re
found = [*metadata.distributions()]
names = {re.sub("[-_.]+", "-", one.metadata["Name"]).lower(): one.version for one in reversed(found)}
print(json.dumps([platform.machine(), names]))
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
    lock = lock_file.read_lock(project.lock)
    (repository,) = lock.images
    assert f"built {repository}:2" in said
    assert "mod template: changed" in said
    assert [lock.images[repository].numbers[number].platform for number in (1, 2)] == [PLATFORM, PLATFORM]
    found = images.inspect_image(endpoint, f"{repository}:2")
    assert found is not None
    assert found.platform == PLATFORM
    argv = ["sh", "-c", "cat chat.jinja processor; uname -m"]
    assert run_in(endpoint, f"{repository}:2", argv, {}).split() == ["version", "two", "aarch64", "aarch64"]
    builder(project, "rollback", "chat")
    assert lock_file.read_lock(project.lock).models["Org/Model-1B"].pairing.image == ImageName(repository, 1)
    listed = json.loads(builder(project, "list", "--json"))["images"]
    assert [(one["number"], one["state"], one["platform"]) for one in listed] == [
        (2, "present", PLATFORM),
        (1, "present", PLATFORM),
    ]
    assert "the same content" in builder(project, "rebuild", f"{repository}:1")


def test_a_check_that_does_not_hold_ends_the_build(project: Project) -> None:
    projects.write(project.mods / "template/check.sh", "echo 'no GPU here'; exit 1\n")
    done = program.run(command(project, "build", "chat"))
    assert done.returncode == 6
    assert "check of mod template: check.sh fails" in done.stderr
    assert "no GPU here" in done.stderr
    assert not project.lock.exists() or not lock_file.read_lock(project.lock).images


@pytest.fixture
def wheels(tmp_path: Path, endpoint: Endpoint, base: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    """The shipped tf5-wheel for the Python of Debian's arm64, and a recipe with shipped mods."""
    made, repository = Project(tmp_path), shared.unique_name()
    shipped = shipped_files.project()
    shutil.copytree(shipped.dockerfiles / "_parts", made.dockerfiles / "_parts")
    shutil.copytree(shipped.dockerfiles / "tf5-wheel", made.dockerfiles / "tf5-wheel")
    for mod in SHIPPED_MODS:
        shutil.copytree(shipped.mods / mod, made.mods / mod)
    file = made.dockerfiles / "tf5-wheel/image.yaml"
    definition = yaml.safe_load(file.read_text(encoding="utf-8"))
    assert definition["platform"] == PLATFORM
    here = {"repository": repository, "base": base}
    definition |= {**here, "python": {**definition["python"], "version": "3.11", "glibc": "2.36"}}
    projects.write(file, yaml.safe_dump(definition))
    projects.add_recipe(tmp_path, "chat", repository, "Org/Model-1B", [f"mods/{mod}" for mod in SHIPPED_MODS])
    # A torch for another processor among the user's wheels is of no use here.
    for variable in ("PIP_FIND_LINKS", "UV_FIND_LINKS"):
        monkeypatch.delenv(variable, raising=False)
    yield made
    remove_all(endpoint, repository)


def test_the_released_wheels_for_a_spark_with_mods(wheels: Project, endpoint: Endpoint) -> None:
    builder(wheels, "lock", "tf5-wheel")
    locked = wheels.lock.read_bytes()
    told = builder(wheels, "build", "chat", "--locked")
    lock = lock_file.read_lock(wheels.lock)
    (repository,) = lock.images
    number = lock.images[repository].numbers[1]
    assert f"built {repository}:1" in told
    assert (number.platform, sorted(number.mods)) == (PLATFORM, SHIPPED_MODS)
    assert lock_file.parse_bytes(locked, "images.lock").pins == lock.pins
    pins = lock.pins["tf5-wheel"][PLATFORM]
    assert pins.python is not None
    processor, installed = answer(endpoint, f"{repository}:1", INSTALLED)
    assert processor == "aarch64"
    locked_versions = {package.name: Version(package.version) for package in pins.python.packages}
    assert {name: Version(installed[name]) for name in locked_versions} == locked_versions
    assert installed["vllm"] == pins.sources["vllm"].version
    assert "the same content" in builder(wheels, "rebuild", f"{repository}:1")
