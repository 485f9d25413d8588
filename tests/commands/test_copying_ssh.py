"""copy to a node that is reached by ssh: the registry on this machine comes to it through a reverse tunnel."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from builder.base import processes
from builder.base.project import Project
from builder.engine import images
from builder.engine.client import Endpoint, environment
from tests import projects, registries, shared
from tests.conftest import BASE, Command, remove_all
from tests.registries import Node

if TYPE_CHECKING:
    from collections.abc import Iterator


pytestmark = [pytest.mark.engine, pytest.mark.full]

SSHD = f"""\
FROM {BASE}
RUN apt-get update -q && apt-get install -qy --no-install-recommends openssh-server && mkdir -p /run/sshd
"""
SSHD_CONFIG = """\
Port {port}
ListenAddress 127.0.0.1
HostKey /keys/host
AuthorizedKeysFile /keys/person.pub
StrictModes no
PermitRootLogin prohibit-password
SetEnv DOCKER_HOST=unix:///node/docker.sock
"""


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with registries.node(*shared.bridge(8)) as started:
        yield started


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory, endpoint: Endpoint, node: Node) -> Iterator[dict[str, str]]:
    """The address of a node behind a real sshd, and a PATH whose ssh has the key to it."""
    folder = tmp_path_factory.mktemp("ssh")
    docker = str(Path(endpoint.buildx[0]).with_name("docker")) if "/" in endpoint.buildx[0] else "docker"
    environ = {**os.environ, **environment(endpoint)}

    def run(*argv: str, text: str = "") -> str:
        done = subprocess.run(argv, env=environ, input=text, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    (folder / "keys").mkdir()
    for name in ("host", "person"):
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "keys" / name))
    port = processes.free_port()
    projects.write(folder / "keys/sshd_config", SSHD_CONFIG.format(port=port))
    image = f"builder-test-sshd:{port}"
    projects.write(folder / "image/Dockerfile", SSHD)
    run(*endpoint.buildx, "build", "-q", "--provenance=false", "-t", image, str(folder / "image"))
    real = Path(os.environ.get("BUILDER_ENGINE_HOME") or "/var/lib/builder-engine", "root/usr/bin/docker")
    client = str(real) if real.exists() else shutil.which("docker")
    mounts = [f"{folder}/keys:/keys:ro", f"{node.environ['BUILDER_ENGINE_RUN']}:/node", f"{client}:/usr/bin/docker:ro"]
    volumes = [part for mount in mounts for part in ("-v", mount)]
    argv = [docker, "run", "-d", "--rm", "--network", "host", *volumes, image]
    container = run(*argv, "/usr/sbin/sshd", "-D", "-e", "-f", "/keys/sshd_config")
    wrapper = folder / "bin/ssh"
    known = "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null"
    projects.write(wrapper, f'#!/bin/sh\nexec {shutil.which("ssh")} -i {folder}/keys/person {known} "$@"\n')
    wrapper.chmod(0o755)
    try:
        end = time.monotonic() + 120
        check = [str(wrapper), "-p", str(port), "root@127.0.0.1", "docker version"]
        while subprocess.run(check, capture_output=True).returncode:
            assert time.monotonic() < end, run(docker, "logs", container)
            time.sleep(0.1)
        yield {"host": f"ssh://root@127.0.0.1:{port}", "PATH": f"{wrapper.parent}:{os.environ['PATH']}"}
    finally:
        run(docker, "rm", "-f", container)
        images.remove_image(endpoint, image)


def test_a_node_behind_ssh_gets_the_image_through_a_tunnel(
    small: Project, builder: Command, repository: str, node: Node, machine: dict[str, str], endpoint: Endpoint
) -> None:
    registries.grow(small, 2000, "one")
    builder("build", "chat")
    registries.configure(small, nodes={"far": machine["host"], "closed": "ssh://root@127.0.0.1:9"})
    with registries.image(endpoint) as registry_image:
        environ = {"PATH": machine["PATH"], "BUILDER_REGISTRY_IMAGE": registry_image}
        done = builder("copy", f"{repository}:1", "far", "closed", code=1, environ=environ)
    assert f"{repository}:1 is on far, and latest there" in done.stdout
    assert "is not on closed: " in done.stderr
    here, there = (images.inspect_image(engine, f"{repository}:1") for engine in (endpoint, node.endpoint))
    assert here
    assert there
    assert images.fingerprint(there) == images.fingerprint(here)
    assert f"{repository}:1" in builder("nodes", code=1, environ=environ).stdout
    remove_all(node.endpoint, repository)
