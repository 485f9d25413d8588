"""Names in the package. Names of types and modules are unique. Docstrings begin with what a thing is or does. Variables
say what they contain, and public functions say what they read, run or find."""

from __future__ import annotations

import ast
import functools
import re
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

PACKAGE = Path(__file__).parents[1] / "builder"
# Words that would fit any value.
EMPTY_WORDS = frozenset({"asked", "found", "held", "known", "one", "said"})
# A question word announces an explanation. A docstring should name the thing, or say what it does.
QUESTION = re.compile(r"(What|Whether|How|Where|Why|Which)\b")
# Comments and messages say "the user" instead.
SOMEBODY = re.compile(r"\b(person|people|somebody)\b", re.IGNORECASE)

Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@functools.cache
def modules() -> list[tuple[Path, ast.Module]]:
    """All modules of the package, with their paths relative to the repository."""
    paths = sorted(PACKAGE.rglob("*.py"))
    return [(path.relative_to(PACKAGE.parent), ast.parse(path.read_text(encoding="utf-8"))) for path in paths]


def bound_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """All functions, parameters and assigned variables, with their lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id


def questions(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The first line of each docstring that begins with a question word, with the line of the documented code."""
    for node in ast.walk(tree):
        if isinstance(node, Documented):
            text = ast.get_docstring(node) or ""
            if QUESTION.match(text):
                yield getattr(node, "lineno", 1), text.splitlines()[0]


@pytest.mark.slow
def test_the_name_of_a_type_is_used_once() -> None:
    places = defaultdict(list)
    for path, tree in modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{path}:{node.lineno}")
    assert {name: lines for name, lines in places.items() if len(lines) > 1} == {}


def test_the_name_of_a_module_is_used_once() -> None:
    names = [path.stem for path in PACKAGE.rglob("*.py") if not path.stem.startswith("__")]
    assert sorted(name for name in set(names) if names.count(name) > 1) == []


@pytest.mark.slow
def test_a_public_function_says_what_it_reads_runs_or_finds() -> None:
    nounless = [
        f"{path}:{node.lineno}: {node.name}"
        for path, tree in modules()
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name in {"run", "read", "of", "find", "told", "look"}
    ]
    assert nounless == []


@pytest.mark.slow
def test_docstrings_begin_with_what_a_thing_is_or_does() -> None:
    assert [f"{path}:{number}: {text}" for path, tree in modules() for number, text in questions(tree)] == []


@pytest.mark.slow
def test_functions_and_variables_say_what_they_do_and_hold() -> None:
    empty = [
        f"{path}:{number}: {name}"
        for path, tree in modules()
        for number, name in bound_names(tree)
        if name in EMPTY_WORDS
    ]
    assert empty == []


def test_comments_and_messages_speak_of_the_user() -> None:
    lines = [
        f"{path}:{number}: {line.strip()}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if SOMEBODY.search(line)
    ]
    assert lines == []


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ('def f(said): """Whether it is."""', ["said", "Whether it is."]),
        ('"""What it is."""\nfor one in (): pass', ["one", "What it is."]),
        ('class A:\n    """A thing. What it does is below."""\n    found: int = 1', ["found"]),
        ("[one for one in x]", ["one"]),
        ('"""However it is."""\nx.said = y.found', []),
    ],
)
def test_the_checks_find_what_they_are_for(source: str, lines: list[str]) -> None:
    tree = ast.parse(source)
    names = [name for _, name in bound_names(tree) if name in EMPTY_WORDS]
    assert names + [text for _, text in questions(tree)] == lines
