"""The model that `up` brings into the cache, and what it goes on with where the hub does not answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from builder.base.errors import SourceError
from builder.commands import up
from builder.definitions.build_target import find_recipe
from tests import hub_server, projects
from tests.workspaces import NO_ENGINE, workspace

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.hub_server import Hub


MODEL = "Org/Model-1B"
FILES = {"config.json": b"{}", "model.safetensors": b"w" * 5000}


@pytest.fixture
def hub() -> Iterator[Hub]:
    with hub_server.serve() as served:
        yield served


def environ(tmp_path: Path, hub: Hub) -> dict[str, str]:
    return {"HOME": str(tmp_path / "home"), "HF_ENDPOINT": hub.url}


@pytest.mark.slow
def test_it_is_fetched_once(tmp_path: Path, hub: Hub) -> None:
    hub.add(MODEL, FILES)
    project = projects.make(tmp_path / "project")
    here = workspace(project, NO_ENGINE, environ(tmp_path, hub))
    recipe = find_recipe(project, "chat")
    outcomes = [up.ensure_model(here, recipe, "chat", ()).outcome for _ in range(2)]
    assert outcomes == ["downloaded", "here"]


@pytest.mark.slow
def test_a_copy_that_is_here_serves_while_the_hub_is_silent(tmp_path: Path, hub: Hub) -> None:
    project = projects.make(tmp_path / "project")
    here = workspace(project, NO_ENGINE, environ(tmp_path, hub))
    recipe = find_recipe(project, "chat")
    with pytest.raises(SourceError):  # neither there nor here
        up.ensure_model(here, recipe, "chat", ())
    hub.add(MODEL, FILES)
    up.ensure_model(here, recipe, "chat", ())
    hub.status = 403
    part = up.ensure_model(here, recipe, "chat", ())
    assert part.outcome == "left"
    assert "the local copy is used" in part.note


def test_a_folder_is_left_as_it_is(tmp_path: Path, hub: Hub) -> None:
    project = projects.make(tmp_path / "project")
    path = project.recipes / "chat.yaml"
    projects.write(path, path.read_text().replace(MODEL, "/models/mine"))
    here = workspace(project, NO_ENGINE, environ(tmp_path, hub))
    part = up.ensure_model(here, find_recipe(project, "chat"), "chat", ())
    assert (part.subject, part.outcome) == ("/models/mine", "left")
    assert hub.requests == []
