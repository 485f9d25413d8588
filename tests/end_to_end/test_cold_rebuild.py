"""The cpu image built again from its build directory alone, where nothing of the first build is left."""

from __future__ import annotations

import os
import re
import subprocess
from typing import TYPE_CHECKING

import pytest

from builder.engine import images
from builder.engine.client import Endpoint
from tests import cpu_image, registries, shared
from tests.commands import second_engine
from tests.conftest import BASE, run_command

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = [pytest.mark.engine, pytest.mark.image, pytest.mark.timeout(1800)]


@pytest.mark.long
def test_a_number_comes_back_the_same_without_any_cache(tmp_path: Path, endpoint: Endpoint, repository: str) -> None:
    """On an engine of its own, which has nothing but the base."""
    project = cpu_image.project(tmp_path / "project", repository)
    cpu_image.builder(project, "build", "cpu")
    first = images.inspect_image(endpoint, f"{repository}:1")
    with registries.node(*shared.bridge(10)) as node:
        environ = {**node.environ, "DOCKER_HOST": node.host}
        second_engine.load(endpoint.host, environ, BASE)

        def rebuild(code: int = 0) -> subprocess.CompletedProcess[str]:
            return run_command(project, "rebuild", f"{repository}:1", code=code, environ=environ, timeout=840)

        assert rebuild().stdout.endswith(": the same content, tagged again\n")
        # The engine's id of an image covers its whole manifest: compressed layers, configuration and dates.
        again = images.inspect_image(node.endpoint, f"{repository}:1")
        assert first is not None
        assert again is not None
        assert again.id == first.id

        index = project.builds / repository / "1/distribution-packages.txt"
        text = index.read_text()
        assert re.match(r"# installed \d{8}T\d{6}Z\n", text)
        package = re.search(r"^Package: curl\nVersion: (.*)\n(?:.+\n)*SHA256: (.*)$", text, re.MULTILINE)
        assert package
        index.write_text(text.replace(package[2], "0" * 64))
        argv = [*endpoint.buildx, "prune", "--all", "--force", "--filter", "type=regular"]
        subprocess.run(argv, env={**os.environ, "DOCKER_HOST": node.host}, check=True, capture_output=True)
        error = rebuild(code=6).stderr
        assert "which no archive has any more" in error
        assert f"curl={package[1]}" in error
