"""The cpu image built again from its build directory alone, where nothing of the first build is left."""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING

import pytest

from builder.engine import images
from builder.engine.client import Endpoint, environment
from tests import cpu_image
from tests.conftest import run_command

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


pytestmark = [pytest.mark.engine, pytest.mark.image, pytest.mark.alone]


@pytest.fixture
def prune(endpoint: Endpoint) -> Callable[..., None]:
    """Removes BuildKit's whole cache, or what a filter chooses of it."""

    def run(*arguments: str) -> None:
        argv = [*endpoint.buildx, "prune", "--all", "--force", *arguments]
        subprocess.run(argv, env=environment(endpoint), check=True, capture_output=True)

    return run


@pytest.mark.long
def test_a_number_comes_back_the_same_without_any_cache(
    tmp_path: Path, endpoint: Endpoint, repository: str, prune: Callable[..., None]
) -> None:
    project = cpu_image.project(tmp_path / "project", repository)
    cpu_image.builder(project, "build", "cpu")
    first = images.inspect_image(endpoint, f"{repository}:1")
    for tag in ("1", "latest"):
        images.remove_image(endpoint, f"{repository}:{tag}")
    prune()
    assert cpu_image.builder(project, "rebuild", f"{repository}:1").endswith(": the same content, tagged again\n")
    # The engine's id of an image covers its whole manifest: compressed layers, configuration and dates.
    again = images.inspect_image(endpoint, f"{repository}:1")
    assert first is not None
    assert again is not None
    assert again.id == first.id

    index = project.builds / repository / "1/distribution-packages.txt"
    text = index.read_text()
    assert re.match(r"# installed \d{8}T\d{6}Z\n", text)
    package = re.search(r"^Package: curl\nVersion: (.*)\n(?:.+\n)*SHA256: (.*)$", text, re.MULTILINE)
    assert package
    index.write_text(text.replace(package[2], "0" * 64))
    prune("--filter", "type=regular")
    error = run_command(project, "rebuild", f"{repository}:1", code=6).stderr
    assert "which no archive provides now" in error
    assert re.search(r"The last answer: https?://\S+/curl_", error)
    assert f"curl={package[1]}" in error
