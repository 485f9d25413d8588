"""The real cpu image in tests: a project with a unique image name, and containers of the image."""

from __future__ import annotations

import json
import shutil
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import docker
from docker.models.containers import Container

from builder.base.project import Project
from builder.engine.client import Endpoint
from builder.lock import lock_file, text
from builder.lock.model import Lock
from tests import projects, shipped_files
from tests.conftest import run_command

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def project(root: Path, repository: str, *recipes: str) -> Project:
    """Makes a project with the shipped definitions, mods and recipes, and the committed pins except the pins of bases.
    The cpu image is called ``repository``, also in ``recipes``."""
    for folder in ("dockerfiles", "mods", "recipes", "checkpoints"):
        shutil.copytree(shipped_files.project().root / folder, root / folder)
    return renamed(root, repository, *recipes)


def renamed(root: Path, repository: str, *recipes: str) -> Project:
    """Renames the cpu image of the project at ``root``, which has the shipped files, and writes its pins."""
    for file in (root / "dockerfiles/cpu/image.yaml", *(root / recipe for recipe in recipes)):
        projects.write(file, file.read_text(encoding="utf-8").replace("vllm-node-cpu", repository))
    shipped = lock_file.read_lock(shipped_files.project().lock).pins
    # The committed pin of a base names the image that the committer's engine had.
    pins = {
        name: {platform: replace(pin, base=None) for platform, pin in platforms.items()}
        for name, platforms in shipped.items()
    }
    projects.write(root / "images.lock", text.dump_lock(Lock(pins=pins)))
    return Project(root)


def builder(project: Project, *arguments: str) -> str:
    """The output of the command. Its exit code must be 0. The first build downloads gigabytes."""
    return run_command(project, *arguments, timeout=840).stdout


@contextmanager
def started(
    endpoint: Endpoint, image: str, argv: list[str], folders: dict[Path, str], **options: Any
) -> Iterator[Container]:
    """Yields a container of ``image`` that runs ``argv`` with ``folders`` mounted. The container is always removed."""
    client = docker.DockerClient(base_url=endpoint.host, timeout=120)
    volumes = {str(folder): {"bind": place, "mode": "rw"} for folder, place in folders.items()}
    container = client.containers.run(image, argv, entrypoint=[], detach=True, volumes=volumes, **options)
    try:
        yield container
    finally:
        container.remove(force=True, v=True)
        client.close()


def run_in(endpoint: Endpoint, image: str, argv: list[str], folders: dict[Path, str]) -> str:
    """The output of ``argv``. Its exit code must be 0."""
    with started(endpoint, image, argv, folders, network_mode="none") as container:
        code = container.wait(timeout=600)["StatusCode"]
        output = container.logs().decode()
    assert code == 0, output
    return output


def answer(endpoint: Endpoint, image: str, argv: list[str], folders: dict[Path, str]) -> Any:
    """The JSON object that ``argv`` printed on one line, between messages of vLLM."""
    output = run_in(endpoint, image, argv, folders)
    return json.loads(next(line for line in reversed(output.splitlines()) if line.startswith("{")))
