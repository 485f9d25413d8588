"""docs/reliability.md has each command that writes, and each command that writes is tried."""

from __future__ import annotations

import errno

from tests import projects
from tests.crash import table
from tests.crash.judging import Outcome, Record
from tests.crash.places import Place
from tests.crash.scenarios import SCENARIOS

# Commands that write nothing, or not in the project: to a machine, to a registry, to what serves.
ELSEWHERE = {
    *("completion", "diff", "diff_lock", "doctor", "listing", "logs", "mods_check", "mods_check_pinned", "mods_list"),
    *("nodes", "nodes_check", "recipes_check", "recipes_list", "recipes_show", "schemas", "show", "status", "verify"),
    *("checkpoints_list", "checkpoints_plan", "checkpoints_show", "checkpoints_verify"),
    *("copy", "pull", "push", "restart", "run", "stop", "version", "explain"),
    # What serves, and then one file of evidence, which is there whole or not at all.
    *("bench", "checkpoints_compare", "probe", "prove"),
    # Build, pull, rebuild, copy, download and run, one after the other.
    "up",
    # What `up`, `run` and `rollback` call: pull, copy and rebuild.
    "bringing_back",
    # Reading alone, or one file that is there whole or not at all.
    *("matrix", "report"),
    # What serves; tests/commands/test_upgrade.py kills it at each of its stages.
    "upgrade",
    # The same, and its own journal; tests/commands/test_bisect.py kills it between answers.
    *("bisect", "bisect_mark", "bisect_status", "bisect_stop"),
}  # fmt: skip
# Commands that another name of the table stands for.
UNDER = {"lock_update": "lock", "lock_recover": "lock --recover", "lock_renumber": "lock --renumber"}
UNDER |= {"mods_add": "mods add", "mods_new": "mods new"}
UNDER |= {"mods_pin": "mods pin", "mods_update": "mods update", "nodes_discover": "nodes discover"}
UNDER |= {"recipes_add": "recipes add", "import_image": "import-image", "export_image": "export-image"}
UNDER |= {"rollback": "rollback MODEL", "init_update": "init --update", "checkpoints_build": "checkpoints build"}

PLACE = Place("file", "builder", "write", "x")


def test_every_command_that_writes_is_tried() -> None:
    modules = {path.stem for path in (projects.REPOSITORY_ROOT / "builder/commands").glob("[a-z]*.py")}
    tried = {scenario.name for scenario in SCENARIOS}
    assert {name for name in modules if UNDER.get(name, name) not in tried} == ELSEWHERE


def outcome(fate: str, record: Record, code: int, *broken: str) -> Outcome:
    return Outcome(PLACE, fate, code, record, broken)


def test_a_row_counts_outcomes() -> None:
    io_error = errno.errorcode[errno.EIO]
    outcomes = (outcome("killed", "old", -9), outcome("killed", "new", -9), outcome("killed after", "between", -9, "x"))
    row = table.Row("build", 2, (*outcomes, outcome(io_error, "old", 8), outcome(io_error, "new", 0)))
    assert str(row) == "| `build` | 2 | 3 | 1 | 1 | 1 | 2 | 1 | 1 | 1 |"


def test_rows_are_replaced_in_their_order() -> None:
    page = f"before\n\n{table.HEAD}\nafter\n"
    second = table.with_rows(page, [table.Row("pin", 1, ())])
    both = table.with_rows(second, [table.Row("build", 2, ()), table.Row("pin", 3, ())])
    assert [*table.rows(both)] == ["build", "pin"]
    assert "| `pin` | 3 |" in both
    assert both.startswith("before\n")
    assert both.endswith("|\n\nafter\n")
