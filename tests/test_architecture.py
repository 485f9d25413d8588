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
# Parts from which the command line may import anything. From all other parts, it may import only types.
OPEN_TO_THE_COMMAND_LINE = frozenset(
    {"cli", "commands", *(f"base.{name}" for name in ("errors", "events", "words", "project", "records", "redaction"))}
    | {"numbers.workspace"}
)
TYPE_NAME = re.compile(r"[A-Z][A-Za-z0-9]*[a-z][A-Za-z0-9]*")


def imports_at_run_time(tree: ast.AST) -> Iterator[tuple[int, str, str]]:
    """Each import that is executed: its line, the module, and the imported name. Imports under ``if TYPE_CHECKING`` are
    left out."""
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
    """The imports with which the command line could make decisions: modules and functions below the commands."""
    for line, module, name in imports_at_run_time(tree):
        top, *rest = [*module.split("."), name]
        is_open = not OPEN_TO_THE_COMMAND_LINE.isdisjoint({".".join(rest[:1]), ".".join(rest[:2])})
        if top == "builder" and not is_open and not TYPE_NAME.fullmatch(name):
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
        ("from builder.base.files import short", ["builder.base.files short"]),
        ("from builder.lock.schema import NAMES", ["builder.lock.schema NAMES"]),
        ("import builder.lock.reading", ["builder.lock.reading"]),
        ("def f():\n    from builder.engine.client import endpoint", ["builder.engine.client endpoint"]),
        ("from builder.building.request import BuildRequest", []),
        ("from builder.commands import build as command\nfrom builder.base import words\nimport json", []),
        ("if TYPE_CHECKING:\n    from builder.plan import explain\nelse:\n    import builder.plan", ["builder.plan"]),
    ],
)
def test_the_check_finds_what_it_is_for(source: str, texts: list[str]) -> None:
    assert [text for _, text in decisions(ast.parse(source))] == texts


# The calls that write to the terminal. Only `output` makes them, after making control characters visible.
PRINTING = frozenset({"echo", "secho", "style", "confirm", "prompt", "print", "write", "writelines", "pager"})
OF_THE_EDGE = frozenset({"output.py"})


def prints(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The calls that print without `output`, and the texts of live displays that `output` did not make safe."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        owner, _, name = called.rpartition(".")
        if called == "print" or (owner in {"click", "sys.stdout", "sys.stderr"} and name in PRINTING):
            yield node.lineno, called
        texts = [keyword.value for keyword in node.keywords if keyword.arg == "description"]
        texts += node.args[:1] if name in {"add_task", "print"} and owner in {"progress", "console"} else []
        for text in texts:
            is_harmless = isinstance(text, ast.Call) and ast.unparse(text.func).endswith(("task_text", "visible"))
            if not (
                is_harmless or isinstance(text, ast.Constant) or (isinstance(text, ast.Name) and text.id.isupper())
            ):
                yield node.lineno, f"{called}: {ast.unparse(text)}"


def test_all_that_is_printed_passes_the_edge() -> None:
    printed = [
        f"{path.name}:{line}: {text}"
        for path in sorted(COMMAND_LINE.glob("*.py"))
        if path.name not in OF_THE_EDGE
        for line, text in prints(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert printed == [], "print with builder.cli.output, which makes control characters visible"


@pytest.mark.parametrize(
    ("source", "texts"),
    [
        ("click.echo(x)", ["click.echo"]),
        ("print(x)", ["print"]),
        ("sys.stderr.write(x)", ["sys.stderr.write"]),
        ("progress.add_task(name, total=None)", ["progress.add_task: name"]),
        ("progress.update(task, description=escape(x))", ["progress.update: escape(x)"]),
        ("console.print(text)", ["console.print: text"]),
        ("progress.add_task(task_text(x))\nconsole.print(visible(x))\nprint_result(x)\nsys.stdout.isatty()", []),
    ],
)
def test_the_check_of_printing_finds_what_it_is_for(source: str, texts: list[str]) -> None:
    assert [text for _, text in prints(ast.parse(source))] == texts
