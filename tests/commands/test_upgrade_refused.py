"""What cannot be upgraded, without an engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests import projects
from tests.conftest import WITHOUT_ENGINE, run_command

if TYPE_CHECKING:
    from pathlib import Path


def test_a_definition_and_a_recipe_without_a_model_have_their_own_remedies(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    refused = run_command(project, "upgrade", "small", "--dry-run", code=2, environ=WITHOUT_ENGINE).stderr
    assert "`small` does not name a model" in refused
    assert "`builder build small --update SOURCE` builds it from newer sources" in " ".join(refused.split())
    path = project.recipes / "chat.yaml"
    projects.write(path, projects.replaced(path.read_text(), ("model: Org/Model-1B\n", "")))
    refused = run_command(project, "upgrade", "chat", "--dry-run", code=2, environ=WITHOUT_ENGINE).stderr
    assert "recipes/chat.yaml: `model` names no model on Hugging Face" in refused
    assert "add `model: ORG/NAME` to the recipe" in refused
