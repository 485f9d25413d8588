"""Proofs of images that cannot be proven, and of one whose process was killed: each tells why, and leaves nothing.

The images' Python is a script of a few lines, so that it does at once whatever a real one might do.
"""

from __future__ import annotations

import json
import signal
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from builder.engine import containers
from builder.numbered import identity
from tests import projects
from tests.conftest import Command, command

if TYPE_CHECKING:
    from builder.engine.client.endpoint import Endpoint
    from builder.project import Project

pytestmark = pytest.mark.engine

# `installed.find_python` asks it what it is, and whether it has vLLM; then it runs the driver, of one model or another.
PYTHON = "#!/bin/sh\n"
PYTHON += """\
case "$*" in
*version_info*) echo /usr/bin/python3; exit ;;
*find_spec*) exit 1 ;;
esac
if grep -q 8192 "$3/work.json"; then sleep 100; fi
echo "no module named json" >&2
exit 3
"""
RECIPE = """\
recipe_version: "1"
name: {name}
model: /models/{name}-model
container: {repository}
command: vllm serve /models/{name}-model --max-model-len {length}
"""
APPEARS_SECONDS = 30.0


@pytest.fixture
def project(small: Project, repository: str, builder: Command) -> Project:
    """Number 1 has no Python, number 2 one that runs nothing."""
    for name, length in (("slow", 8192), ("quick", 4096)):
        projects.write(small.recipes / f"{name}.yaml", RECIPE.format(name=name, repository=repository, length=length))
    projects.add_mod(small.root, "python", "install -m 755 python3 /usr/bin/python3\n", {"python3": PYTHON})
    builder("build", "small")
    builder("build", "small", "--mod", "python")
    return small


def own_containers(project: Project, endpoint: Endpoint) -> list[str]:
    label = f"{identity.PROJECT}={identity.existing(project)}"
    return [container["Id"] for container in containers.listing(endpoint, label)]


def test_what_cannot_be_proven_says_why_and_a_killed_proof_leaves_nothing(
    project: Project, endpoint: Endpoint, repository: str, builder: Command
) -> None:
    without = builder("prove", f"{repository}:1", "quick", code=7)
    assert f"{repository}:1 has no Python 3, so no vLLM either" in without.stderr
    assert "builder probe" in without.stderr

    with subprocess.Popen(
        command(project, "prove", f"{repository}:2", "slow"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        end = time.monotonic() + APPEARS_SECONDS
        while not own_containers(project, endpoint) and time.monotonic() < end:
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
    assert len(own_containers(project, endpoint)) == 1
    assert len(list(project.work.iterdir())) == 1

    began = time.monotonic()
    proven = json.loads(builder("prove", f"{repository}:2", "quick", "--json", code=1).stdout)
    assert time.monotonic() - began < APPEARS_SECONDS  # it once looked for a state that never came, for an hour
    (proof,) = proven["proofs"]
    assert proof["verdict"] == "unclear"
    (finding,) = proof["findings"]
    assert "its Python ended with 3 before the work was done:\nno module named json" in finding["text"]
    assert not own_containers(project, endpoint)
    assert not list(project.work.iterdir())
