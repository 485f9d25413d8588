"""Proofs of images that cannot be proven, and of those whose process was killed: each tells why, and leaves nothing.

The images' Python is a script of a few lines, so that it does at once whatever a real one might do.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from builder.engine import containers
from builder.evidence import run_record
from builder.lock.model import ImageName
from builder.numbers import claims
from tests import projects
from tests.conftest import Command, command

if TYPE_CHECKING:
    from collections.abc import Callable

    from builder.base.project import Project
    from builder.engine.client import Endpoint


pytestmark = pytest.mark.engine

# `installed.find_python` asks it what it is, and whether it has vLLM; then it runs the driver.
PYTHON = "#!/bin/sh\n"
PYTHON += """\
case "$*" in
*version_info*) echo /usr/bin/python3; exit ;;
*find_spec*) exit 1 ;;
esac
sleep 3
echo "no module named json" >&2
exit 3
"""
RECIPE = """\
recipe_version: "1"
name: {name}
model: Org/{name}
container: {repository}
mods: [mods/python]
command: vllm serve Org/{name}
"""
# Nothing is asked of the hub: a tokenizer stands in.
OFFLINE = {"HF_HUB_OFFLINE": "1"}
LONGEST_SECONDS = 600.0


@pytest.fixture
def project(small: Project, repository: str, builder: Command) -> Project:
    """Number 1 has a Python that runs nothing, and two models."""
    projects.add_mod(small.root, "python", "install -m 755 python3 /usr/bin/python3\n", {"python3": PYTHON})
    for name in ("first", "second"):
        projects.write(small.recipes / f"{name}.yaml", RECIPE.format(name=name, repository=repository))
        builder("build", name)
    return small


def own_containers(project: Project, endpoint: Endpoint) -> list[str]:
    label = f"{claims.PROJECT}={claims.existing_identity(project)}"
    return [container["Id"] for container in containers.container_listing(endpoint, label)]


def kill(project: Project, arguments: tuple[str, ...], moment: Callable[[], bool]) -> None:
    """Kills a command when ``moment`` has come."""
    with subprocess.Popen(
        command(project, *arguments), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL, env={**os.environ, **OFFLINE},
    ) as process:  # fmt: skip
        end = time.monotonic() + LONGEST_SECONDS
        while not moment() and process.poll() is None and time.monotonic() < end:
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL


def test_an_image_without_a_python_is_an_error_that_says_so(small: Project, repository: str, builder: Command) -> None:
    builder("build", "small")
    told = builder("prove", f"{repository}:1", "chat", code=7, environ=OFFLINE).stderr
    assert f"{repository}:1 has no Python 3, so no vLLM either" in told
    assert "`builder probe`" in told
    assert not list(small.work.iterdir())


@pytest.mark.long
def test_a_killed_proof_leaves_a_container_that_the_next_proof_removes(
    project: Project, endpoint: Endpoint, repository: str, builder: Command
) -> None:
    image = ImageName(repository, 1)

    kill(project, ("prove", str(image), "Org/first"), lambda: bool(own_containers(project, endpoint)))
    assert not run_record.of_image(project, image)
    assert len(own_containers(project, endpoint)) == len(list(project.work.iterdir())) == 1

    # It once waited for an hour for a state that a Python which had ended would never write.
    began = time.monotonic()
    builder("prove", str(image), code=1, environ=OFFLINE)
    assert time.monotonic() - began < LONGEST_SECONDS
    runs = run_record.of_image(project, image)
    assert sorted(str(run.subject.model) for run in runs) == ["Org/first", "Org/second"]
    for run in runs:
        assert run.verdict == "unclear"
        assert [finding.text for finding in run.findings] == [
            "no proof is possible with an image without vLLM: "
            "its Python ended with 3 before the work was done:\nno module named json"
        ]
    assert not own_containers(project, endpoint)
    assert not list(project.work.iterdir())
