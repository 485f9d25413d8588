"""Every message on a recipe is explained: those in the program are looked for in its source."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from builder.commands import explaining, recipes
from tests import projects

if TYPE_CHECKING:
    from collections.abc import Iterator


DEFINITIONS = projects.REPOSITORY_ROOT / "builder/definitions"
IMAGE_WORDS = projects.REPOSITORY_ROOT / "builder/serving/image_words.py"
MODULES = ("command.py", "recipe.py", "recipe_problems.py", "recipe_v2.py", "shell.py")
# What takes a message, by the place of that among its arguments.
TAKING = {"Problem": 1, "CommandProblem": 2, "report": 2}
# Put together from messages that are explained, or from what others say.
PASSED_ON = frozenset({"{}", "`defaults`: {}", "{}: {}", "`{}`: {}", "{} {}: {}", "in the value of {{}}: {}"})
PASSED_ON |= {"no volume mounts {}; {}", "{}: vLLM refuses that for a hybrid model such as this one"}


def template(node: ast.expr) -> str | None:
    """The text of a message with {} for each value in it."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)  # type: ignore[misc]
    return None


def messages() -> Iterator[tuple[str, str]]:
    """Every message that is written out in the modules that judge recipes, with its place."""
    for path in (*(DEFINITIONS / module for module in MODULES), IMAGE_WORDS):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            value: ast.expr | None = None
            if isinstance(node, ast.Call):
                name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
                place = TAKING.get(name)
                value = node.args[place] if place is not None and len(node.args) > place else None
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                value = node.value if node.targets[0].id == "message" else None
            text = template(value) if value is not None else None
            if text and text not in PASSED_ON:
                yield f"{path.name}:{getattr(value, 'lineno', 0)}", text


@pytest.mark.parametrize(("place", "text"), [pytest.param(*pair, id=pair[0]) for pair in messages()])
def test_a_message_is_explained(place: str, text: str) -> None:
    sample = text.replace("{}", "x")
    assert explaining.find_note(sample), f"builder/commands/recipe_notes.yaml lacks {text!r}"


def test_no_two_explanations_are_of_one_message() -> None:
    says = [note.says for note in explaining.every_note()]
    assert len(says) == len(set(says))


def test_what_the_command_prints_is_explained(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    path = project.recipes / "chat.yaml"
    text = path.read_text(encoding="utf-8").replace("mods:", "extra: 1\nenv: {API_KEY: abc}\nmods:")
    projects.write(path, text.replace("--port 8000", "--port 8,000 --chat-template no.jinja"))
    (checked,) = recipes.check_recipes(project, ())
    told = [*checked.problems, *checked.notes]
    assert len(told) >= 3
    for problem in told:
        note = explaining.find_note(f"note: {problem}")
        assert note, problem
        assert note.keeps is (problem in checked.problems), problem
