"""The tutorial is true: every command of it, run in order on the real cpu image, prints what stands there.

``pytest tests/docs/test_tutorial.py --write-golden`` writes the outputs into the page anew.
"""

from __future__ import annotations

import os
from collections import defaultdict
from typing import TYPE_CHECKING

import pytest

from builder.base.project import Project
from builder.commands import init
from builder.engine.client import Endpoint
from builder.moving import shipped
from docs import examples, pictures, terminal
from tests import cpu_image, projects, shared, shipped_files
from tests.conftest import remove_all

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


pytestmark = [pytest.mark.engine, pytest.mark.image]

PAGE = projects.REPOSITORY_ROOT / "docs/tutorial.md"
SHIPPED = "vllm-node-cpu"
RECIPE = "recipes/qwen3-0.6b-cpu.yaml"
# What each shows: commands of the page, each with how many like it stand there before.
PICTURES = {
    "build": [(f"builder build {RECIPE} --mod house-rules", 1), ("builder list", 1)],
    "rollback": [
        ("builder mark Qwen/Qwen3-0.6B bad --note 'answers are too short'", 0),
        (f"builder rollback {RECIPE}", 0),
        ("builder mark Qwen/Qwen3-0.6B good --note 'two weeks without a fault'", 0),
        ("builder list --models", 0),
    ],
}


@pytest.fixture
def cpu(tmp_path: Path, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    """A folder that `builder init --all` has made a project, of what git has; its image has a name of this test's that
    is as long as the shipped one, as tables show."""
    repository = "docs-" + shared.token()
    assert len(repository) == len(SHIPPED)
    monkeypatch.setattr(shipped, "shipped_project", shipped_files.project)
    init.init_project(tmp_path / "models", "all", {}, tmp_path)
    yield cpu_image.renamed(tmp_path / "models", repository, RECIPE)
    remove_all(endpoint, repository)


@pytest.mark.long
def test_every_command_prints_what_the_page_says(cpu: Project, request: pytest.FixtureRequest) -> None:
    definition = (cpu.root / "dockerfiles/cpu/image.yaml").read_text(encoding="utf-8")
    repository = definition.partition("repository: ")[2].split()[0]

    screens: dict[str, list[terminal.Screen]] = defaultdict(list)

    def run(line: str) -> str:
        environ = {**terminal.with_builder(os.environ), "HF_HOME": str(cpu.root / ".hf")}  # no model is here yet
        screen = terminal.run(line.replace(SHIPPED, repository), cpu.root, environ)
        screens[line].append(screen)
        return terminal.text(screen).replace(repository, SHIPPED)

    write = request.config.getoption("--write-golden")
    examples.check(PAGE, run, write=write)
    if write:
        for name, commands in PICTURES.items():
            pictures.save(name, [(command, screens[command][nth]) for command, nth in commands], (repository, SHIPPED))


@pytest.mark.parametrize("picture", PICTURES)
def test_a_picture_shows_what_the_page_says(picture: str) -> None:
    """Each line of the page, character for character, but for the times and sizes of another run."""
    outputs: dict[str, list[str]] = defaultdict(list)
    for example in examples.examples(PAGE.read_text(encoding="utf-8")):
        outputs[example.command].append(example.output)
    expected = "\n".join(f"$ {command}\n{outputs[command][nth]}" for command, nth in PICTURES[picture])
    for theme in pictures.THEMES:
        shown = pictures.words((pictures.HERE / f"{picture}-{theme}.svg").read_text(encoding="utf-8"))
        assert _solid(shown) == _solid(expected)
        assert examples.differing_steps(expected, shown) == frozenset()


def _solid(text: str) -> str:
    """``text`` without what wraps it."""
    return "".join(examples.normal(text).split())
