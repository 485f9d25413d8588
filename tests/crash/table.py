"""The table of docs/reliability.md: what became of each command, wherever it was ended.

``python -m tests.crash.table`` does what `test_every_place` does, and writes it down: for all commands or those named,
whose rows it replaces.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from builder.engine import client as endpoints
from tests import projects, shared
from tests.crash.judging import Outcome
from tests.crash.scenarios import SCENARIOS, Scenario
from tests.crash.trial import Errors, outcomes

PAGE = projects.REPOSITORY_ROOT / "docs/reliability.md"
HEAD = """\
| command | places | killed | failed | broken |
|---|---|---|---|---|
"""


@dataclass(frozen=True)
class Row:
    """A command in the table: how many places it has, and the outcomes at them."""

    name: str
    places: int
    outcomes: tuple[Outcome, ...]

    def __str__(self) -> str:
        killed = sum(outcome.fate.startswith("killed") for outcome in self.outcomes)
        broken = sum(bool(outcome.broken) for outcome in self.outcomes)
        cells = [f"`{self.name}`", self.places, killed, len(self.outcomes) - killed, broken]
        return "| " + " | ".join(map(str, cells)) + " |"


def rows(text: str) -> dict[str, str]:
    """The rows of a page, by their commands."""
    lines = text.partition(HEAD)[2].partition("\n\n")[0].splitlines()
    return {line.split("`")[1]: line for line in lines if line.startswith("| `")}


def with_rows(text: str, new: Iterable[Row]) -> str:
    """A page with these rows in place of those that it has for the same commands, in the order of `SCENARIOS`."""
    before, _, after = text.partition(HEAD)
    rest = re.sub(r"\A(\|.*\n)*\n*", "", after)
    all_rows = rows(text) | {row.name: str(row) for row in new}
    table = [all_rows[scenario.name] for scenario in SCENARIOS if scenario.name in all_rows]
    return before + HEAD + "\n".join([*table, "", rest])


def run(scenario: Scenario, errors: Errors) -> Row:
    """Ends a command at each of its places, on the engine that answers."""
    shared.folder()
    endpoint = endpoints.find_endpoint(os.environ) if scenario.engine else None
    with tempfile.TemporaryDirectory() as folder, scenario.trial(Path(folder), endpoint) as trial:
        whole = trial.whole()
        return Row(scenario.name, len(whole.places), tuple(counted(outcomes(trial, whole, errors), len(whole.places))))


def counted(trials: Iterable[Outcome], places: int) -> Iterator[Outcome]:
    """The same outcomes, each told as it comes: a row takes up to half an hour."""
    for number, outcome in enumerate(trials, 1):
        print(f"\r{number} runs at {places} places", end="", file=sys.stderr, flush=True)  # noqa: T201
        yield outcome
    print(file=sys.stderr)  # noqa: T201


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commands", nargs="*")
    choices: tuple[Errors, ...] = get_args(Errors)
    parser.add_argument("--errors", choices=choices, default="each", help="which errors of the system each place meets")
    arguments = parser.parse_args()
    for scenario in SCENARIOS:
        if arguments.commands and scenario.name not in arguments.commands:
            continue
        row = run(scenario, arguments.errors)
        print(row, flush=True)  # noqa: T201
        for outcome in row.outcomes:
            if outcome.broken:
                print(outcome, flush=True)  # noqa: T201
        PAGE.write_text(with_rows(PAGE.read_text(encoding="utf-8"), [row]), encoding="utf-8")


if __name__ == "__main__":
    main()
