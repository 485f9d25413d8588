"""A sandbox for measurements: has its own projects and images, and removes them at the end."""

from __future__ import annotations

import io
import secrets
import subprocess
import sys
import tarfile
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.measuring import run
from builder.base.project import Project
from builder.engine import images
from builder.engine.client import Endpoint, environment
from tests import cpu_image, projects
from tests.conftest import remove_all

if TYPE_CHECKING:
    from collections.abc import Iterator


BUILDER = str(Path(sys.executable).parent / "builder")
DEBIAN = "debian:bookworm-slim"


@dataclass(frozen=True)
class Sandbox:
    """An engine, a temporary folder, and a name prefix. Images with this prefix are removed at the end."""

    endpoint: Endpoint
    root: Path
    prefix: str

    @property
    def docker(self) -> str:
        """The docker command of the engine."""
        beside = Path(self.endpoint.buildx[0]).with_name("docker")
        return str(beside) if beside.exists() else "docker"

    def run(self, argv: list[str], cwd: Path | None = None) -> None:
        """Runs a command with the engine; the command must succeed."""
        run(argv, cwd or self.root, environment(self.endpoint))

    def builder(self, project: Project, *arguments: str) -> None:
        """Runs ``builder`` on a project as a user would."""
        run([BUILDER, *arguments], project.root)

    def project(self, name: str, base: str = DEBIAN) -> Project:
        """Makes a small project on ``base`` with one mod and the repository ``PREFIX-NAME``."""
        project = projects.make(self.root / name, f"{self.prefix}-{name}")
        definition = project.dockerfiles / "small/image.yaml"
        projects.write(definition, definition.read_text(encoding="utf-8").replace(DEBIAN, base))
        return project

    def cpu(self) -> str:
        """Builds the shipped cpu image with vLLM (about 5 GB), unless it is in the cache."""
        repository = f"{self.prefix}-cpu"
        project = cpu_image.project(self.root / "cpu", repository)
        self.builder(project, "build", "cpu")
        return f"{repository}:1"

    def tiny_image(self, name: str) -> None:
        """Makes an image with one small, unique layer."""
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            content = name.encode()
            entry = tarfile.TarInfo("name")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
        argv = [self.docker, "-H", self.endpoint.host, "import", "-", name]
        subprocess.run(argv, input=packed.getvalue(), check=True, capture_output=True)


@contextmanager
def sandbox(endpoint: Endpoint) -> Iterator[Sandbox]:
    """Makes a sandbox for the duration of the block."""
    with tempfile.TemporaryDirectory(prefix="builder-bench-") as folder:
        own = Sandbox(endpoint, Path(folder), f"builder-bench-{secrets.token_hex(4)}")
        try:
            yield own
        finally:
            repositories = {images.split_tag(tag)[0] for tag in images.image_tags(endpoint, [f"{own.prefix}*"])}
            for repository in sorted(repositories):
                remove_all(endpoint, repository)
