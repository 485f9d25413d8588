"""Three machines that are linked, and the stand-in for vLLM on two of them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from builder.base.project import Project
from builder.engine.client import Endpoint
from tests import linked, projects
from tests.commands import second_engine
from tests.commands.serving import Kitchen
from tests.conftest import run_command
from tests.linked import Linked

NAMES = ("one", "two", "three")
Builder = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def link(tmp_path_factory: pytest.TempPathFactory, endpoint: Endpoint, built: tuple[Project, str]) -> Iterator[Linked]:
    """Three machines, of which the first two have both numbers."""
    with linked.linked(endpoint, tmp_path_factory.mktemp("link"), 1, 3) as made:
        for each in made.machines[:2]:
            environ = {**each.node.environ, "DOCKER_HOST": each.node.host}
            second_engine.load(endpoint.host, environ, f"{built[1]}:1", f"{built[1]}:2")
        yield made


@pytest.fixture
def builder(kitchen: Kitchen, link: Linked) -> Builder:
    def run(*arguments: str, code: int = 0, **more: str) -> subprocess.CompletedProcess[str]:
        environ = {**kitchen.environ, **link.environ, "COLUMNS": "80", **more}
        return run_command(kitchen.project, *arguments, code=code, environ=environ)

    return run


def configure(kitchen: Kitchen, link: Linked, **more: Any) -> None:
    """Writes builder.yaml with the three machines, reached by ssh, and ``more`` in each."""
    lines = [
        f"  {name}:  # machine {rank}\n    engine: {made.engine}\n    models: {made.folder}/home/models\n"
        for rank, (name, made) in enumerate(zip(NAMES, link.machines, strict=True))
    ]
    text = "".join(
        [line + "".join(f"    {key}: {json.dumps(value)}\n" for key, value in more.items()) for line in lines]
    )
    projects.write(kitchen.project.root / "builder.yaml", f"nodes:\n{text}")


def nodes(kitchen: Kitchen) -> dict[str, Any]:
    loaded = yaml.safe_load((kitchen.project.root / "builder.yaml").read_text())
    return dict(loaded["nodes"])
