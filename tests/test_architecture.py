"""Rules of the architecture that the import linter cannot express."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

COMMAND_LINE = Path(__file__).parents[1] / "builder/cli"
# What the command line may import whatever it is; from any other part of the package it takes types alone.
OPEN_TO_THE_COMMAND_LINE = frozenset(
    {"cli", "commands", "errors", "events", "humanize", "project", "suggestions", "workspace"}
)
TYPE_NAME = re.compile(r"[A-Z][A-Za-z0-9]*[a-z][A-Za-z0-9]*")


def imports_at_run_time(tree: ast.AST) -> Iterator[tuple[int, str, str]]:
    """Every import that is executed: its line, the module, and the name taken from it; ``if TYPE_CHECKING`` is left
    out."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            yield from imports_at_run_time(ast.Module(node.orelse, []))
        elif isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, node.module or "", alias.name) for alias in node.names)
        else:
            yield from imports_at_run_time(node)


def decisions(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The imports with which the command line could decide something: modules and functions below the commands."""
    for line, module, name in imports_at_run_time(tree):
        top, *rest = module.split(".")
        part = rest[0] if rest else name
        if top == "builder" and part not in OPEN_TO_THE_COMMAND_LINE and not TYPE_NAME.fullmatch(name):
            yield line, f"{module} {name}".strip()


def test_the_command_line_decides_nothing() -> None:
    decided = [
        f"{path.name}:{line}: {text}"
        for path in sorted(COMMAND_LINE.glob("*.py"))
        for line, text in decisions(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert decided == [], "the command line calls commands and prints what they return"


@pytest.mark.parametrize(
    ("source", "texts"),
    [
        ("from builder.plan import explain", ["builder.plan explain"]),
        ("from builder.plan.explain import short", ["builder.plan.explain short"]),
        ("from builder.lock.schema import NAMES", ["builder.lock.schema NAMES"]),
        ("import builder.lock.reading", ["builder.lock.reading"]),
        ("def f():\n    from builder.engine.client import endpoint", ["builder.engine.client endpoint"]),
        ("from builder.building.request import BuildRequest", []),
        ("from builder.commands import build as command\nfrom builder import humanize\nimport json", []),
        ("if TYPE_CHECKING:\n    from builder.plan import explain\nelse:\n    import builder.plan", ["builder.plan"]),
    ],
)
def test_the_check_finds_what_it_is_for(source: str, texts: list[str]) -> None:
    assert [text for _, text in decisions(ast.parse(source))] == texts
