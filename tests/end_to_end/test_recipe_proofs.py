"""The proof of every shipped recipe on the real cpu image, as far as it goes without the Hub: the template that its
mods bring and its parsers, with a tokenizer that stands in. The files say so of themselves."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from builder.base.project import Project
from builder.definitions import recipe
from builder.engine.client import Endpoint
from tests import program, projects, shared
from tests.conftest import command, remove_all
from tests.cpu_image import builder, project
from tests.end_to_end.test_serving import RECIPE

if TYPE_CHECKING:
    from collections.abc import Iterator


pytestmark = [pytest.mark.engine, pytest.mark.image, pytest.mark.full, pytest.mark.timeout(3600)]


@pytest.fixture
def cpu(tmp_path: Path, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    repository = f"{shared.unique_name()}-cpu"
    yield project(tmp_path / "project", repository, RECIPE)
    remove_all(endpoint, repository)


def test_every_recipe_with_a_template_of_ours_is_proven(cpu: Project) -> None:
    image = builder(cpu, "build", RECIPE, "--no-prove").split()[1]
    names: dict[str | None, str] = {}
    for name, shipped in recipe.readable_recipes(cpu):
        if "--chat-template " in shipped.command and not shipped.checkpoint:
            text = re.sub(r"(?m)^container: .*$", f"container: {image.partition(':')[0]}", shipped.text)
            projects.write(cpu.recipes / f"{name}.yaml", text)
            names.setdefault(shipped.model, name)
    assert len(names) == 6
    argv = command(cpu, "prove", image, *names.values(), "--json")
    done = program.run(argv)
    proofs = json.loads(done.stdout)["proofs"]
    assert [(proof["model"], proof["verdict"]) for proof in proofs] == [(model, "pass") for model in names]
    assert {finding["verdict"] for proof in proofs for finding in proof["findings"]} <= {"pass"}
