"""docs/reliability.md has each command that writes, and each command that writes is tried."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import click

from builder.cli.main import cli
from tests.crash import table
from tests.crash.judging import Outcome, Record
from tests.crash.places import Place
from tests.crash.scenarios import SCENARIOS

if TYPE_CHECKING:
    from collections.abc import Iterator

# Commands that write nothing, or not in the project: to a machine, to a registry, to what serves.
ELSEWHERE = {
    *(
        *("advisories show", "bases", "mirror", "recipes convert", "why"),
        "completion",
        "diff",
        "why",
        "doctor",
        "explain",
        "help",
        "list",
        "logs",
        "matrix",
        "schema",
        "show",
        "status",
        "verify",
    ),
    *("checkpoints list", "checkpoints plan", "checkpoints show", "checkpoints verify"),
    *("mods check", "mods list", "nodes check", "recipes check", "recipes list", "recipes show"),
    *("copy", "pull", "push", "restart", "run", "stop"),
    # What serves, and then one file of evidence, which is there whole or not at all.
    *("bench", "checkpoints compare", "compare", "probe", "prove"),
    # One file that is there whole or not at all.
    *("advisories update", "report"),
    # Build, pull, rebuild, copy, download and run, one after the other.
    "up",
    # What serves; tests/commands/test_upgrade.py kills it at each of its stages.
    "upgrade",
    # The same, and its own journal; tests/commands/test_bisect.py kills it between answers.
    *("bisect start", "bisect good", "bisect bad", "bisect skip", "bisect status", "bisect stop"),
}
# Commands that another name of the table stands for.
UNDER = {"rollback": "rollback MODEL", "recipes update": "mods update"}

PLACE = Place("file", "builder", "write", "x")


def commands(group: click.Group, before: str = "") -> Iterator[str]:
    """Every command of the command line, by its words."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from commands(command, f"{before}{name} ")
        else:
            yield before + name


def test_every_command_that_writes_is_tried() -> None:
    tried = {scenario.name for scenario in SCENARIOS}
    assert {name for name in commands(cli) if UNDER.get(name, name) not in tried} == ELSEWHERE


def outcome(fate: str, record: Record, code: int, *broken: str) -> Outcome:
    return Outcome(PLACE, fate, code, record, broken)


def test_a_row_counts_outcomes() -> None:
    io_error = errno.errorcode[errno.EIO]
    outcomes = (outcome("killed", "old", -9), outcome("killed", "new", -9), outcome("killed after", "between", -9, "x"))
    row = table.Row("build", 2, (*outcomes, outcome(io_error, "old", 8), outcome(io_error, "new", 0)))
    assert str(row) == "| `build` | 2 | 3 | 2 | 1 |"


def test_rows_are_replaced_in_their_order() -> None:
    page = f"before\n\n{table.HEAD}\nafter\n"
    second = table.with_rows(page, [table.Row("keep", 1, ())])
    both = table.with_rows(second, [table.Row("build", 2, ()), table.Row("keep", 3, ())])
    assert [*table.rows(both)] == ["build", "keep"]
    assert "| `keep` | 3 |" in both
    assert both.startswith("before\n")
    assert both.endswith("|\n\nafter\n")
