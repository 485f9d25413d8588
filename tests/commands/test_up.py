"""One command from a recipe to an answering server: what is missing is made, and nothing twice."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from builder.base.project import Project
from builder.engine import images
from tests import hub_server, json_outputs, projects
from tests.commands.serving import MODEL
from tests.conftest import run_command

if TYPE_CHECKING:
    from pathlib import Path

    from builder.engine.client import Endpoint
    from tests.commands.serving import Kitchen


def up(project: Project, environ: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_command(project, *arguments, environ=environ)


def outcomes(document: dict[str, Any]) -> dict[str, str]:
    return {part["part"]: part["outcome"] for part in document["parts"]}


@pytest.mark.engine
def test_from_a_recipe_alone_to_a_server(kitchen: Kitchen, endpoint: Endpoint) -> None:
    with hub_server.serve() as hub:
        hub.add(MODEL, {"config.json": b"{}", "model.safetensors": b"w" * 5000})
        environ = {**kitchen.environ, "HF_ENDPOINT": hub.url}
        fresh = Project(kitchen.project.root.with_name("fresh"))
        for part in ("dockerfiles", "mods", "recipes"):
            shutil.copytree(kitchen.project.root / part, fresh.root / part)

        first = up(fresh, environ, "up", "chat")
        assert "ready after" in first.stdout
        image = first.stdout.partition("serves from ")[2].partition(",")[0]
        told = [line.partition(":")[0] for line in first.stderr.splitlines()]
        assert [each for each in told if each in {"image", "model", "server"}] == ["image", "model", "server"]

        again = json_outputs.parsed("up", up(fresh, environ, "up", MODEL, "--json").stdout)
        assert outcomes(again) == {"image": "here", "model": "here", "server": "here"}
        assert (again["server"]["image"], again["server"]["already"]) == (image, True)

        up(fresh, environ, "stop", "chat")
        images.remove_image(endpoint, image)
        third = up(fresh, environ, "up", "chat", "--json")
        assert f"{image} had lost its tag in this engine" in third.stderr  # `latest` kept the image
        later = json_outputs.parsed("up", third.stdout)
        assert outcomes(later) == {"image": "here", "model": "here", "server": "started"}
        assert later["server"]["image"] == image


def test_what_cannot_be_served_is_refused_before_anything_is_done(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    assert "image definition" in run_command(project, "up", "small", code=2).stderr
