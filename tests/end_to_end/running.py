"""The command, and containers of what it built."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import docker
from docker.models.containers import Container

from builder.engine import images
from builder.engine.endpoint import Endpoint
from builder.project import Project
from tests.conftest import command


def builder(project: Project, *arguments: str) -> str:
    """What ``builder`` printed; it must end with 0."""
    done = subprocess.run(command(project, *arguments), capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@contextmanager
def started(
    endpoint: Endpoint, image: str, argv: list[str], folders: dict[Path, str], **options: Any
) -> Iterator[Container]:
    """A container of ``image`` that runs ``argv``, with ``folders`` mounted; removed in every case."""
    client = docker.DockerClient(base_url=endpoint.host, timeout=120)
    volumes = {str(folder): {"bind": place, "mode": "rw"} for folder, place in folders.items()}
    container = client.containers.run(image, argv, entrypoint=[], detach=True, volumes=volumes, **options)
    try:
        yield container
    finally:
        container.remove(force=True, v=True)
        client.close()


def run_in(endpoint: Endpoint, image: str, argv: list[str], folders: dict[Path, str]) -> str:
    """What ``argv`` printed; it must end with 0."""
    with started(endpoint, image, argv, folders, network_mode="none") as container:
        code = container.wait(timeout=600)["StatusCode"]
        said = container.logs().decode()
    assert code == 0, said
    return said


def layers(endpoint: Endpoint, image: str) -> tuple[str, ...]:
    """The digests of the image's layers, the lowest first."""
    found = images.inspect(endpoint, image)
    assert found is not None
    return found.layers


def answer(endpoint: Endpoint, image: str, code: str) -> Any:
    """The JSON that Python code printed last, in a container of ``image``."""
    return json.loads(run_in(endpoint, image, ["python3", "-c", code], {}).splitlines()[-1])
