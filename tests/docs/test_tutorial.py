"""The tutorial is true: every command of it, run in order on the real cpu image, prints what stands there.

``pytest tests/docs/test_tutorial.py --write-golden`` writes the outputs into the page anew.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from builder.engine.endpoint import Endpoint
from builder.project import Project
from docs import examples, terminal
from tests import projects
from tests.conftest import remove_all
from tests.cpu_image import project

pytestmark = [pytest.mark.engine, pytest.mark.image]

PAGE = projects.REPOSITORY_ROOT / "docs/tutorial.md"
SHIPPED = "vllm-node-cpu"


@pytest.fixture
def cpu(tmp_path: Path, endpoint: Endpoint) -> Iterator[Project]:
    """The shipped project; its image has a name of this test's that is as long as the shipped one, as tables show."""
    repository = "docs-" + secrets.token_hex(4)
    assert len(repository) == len(SHIPPED)
    yield project(tmp_path, repository, "recipes/qwen3-0.6b-cpu.yaml")
    remove_all(endpoint, repository)


def test_every_command_prints_what_the_page_says(cpu: Project, request: pytest.FixtureRequest) -> None:
    definition = (cpu.root / "dockerfiles/cpu/image.yaml").read_text(encoding="utf-8")
    repository = definition.partition("repository: ")[2].split()[0]

    def run(line: str) -> str:
        ran = terminal.run(line.replace(SHIPPED, repository), cpu.root, terminal.with_builder(os.environ))
        return terminal.text(ran).replace(repository, SHIPPED)

    examples.hold(PAGE, run, write=request.config.getoption("--write-golden"))
