"""Mutation tests of the heart: ``make test-mutants``, or ``python -m tests.mutation measure|run|table|show``.

``measure STAGE [TESTS]`` notes what the tests of a stage reach, ``run STAGE`` tries the mutants that this stage has not
tried and none has killed yet, ``table`` tells how many are left, ``show`` which. All of it is kept in
``.builder/mutation``.
"""

from __future__ import annotations

import argparse
import json
import queue
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

from builder.base import yaml_file
from tests.mutation import copies, mutants, reach, trial
from tests.mutation.mutants import Mutant

CHECKOUT = Path(__file__).resolve().parent.parent.parent
STATE = CHECKOUT / ".builder" / "mutation"
EQUIVALENT = Path(__file__).parent / "equivalent.yaml"

AREAS = {
    "numbers": "builder/numbers/*.py",
    "lock": "builder/lock/*.py",
    "plan": "builder/plan/*.py",
    "rollback": "builder/commands/rollback*.py",
    "prune": "builder/commands/keeping.py",
}
STAGES = {
    "fast": "not engine and not image and not slow and not long and not full",
    "rest": "(engine or slow) and not image and not long and not full",
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("do", choices=("measure", "run", "table", "show"))
    parser.add_argument("stage", nargs="?", choices=tuple(STAGES), default="fast")
    parser.add_argument("tests", nargs="*", help="paths of the tests to measure: all of the stage")
    parser.add_argument("--areas", nargs="+", choices=tuple(AREAS), default=list(AREAS))
    parser.add_argument("--count", type=int, default=300, help="the mutants of all areas together")
    parser.add_argument("--seed", default="1", help="another seed chooses other mutants")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=200, help="of tests for a mutant, at most")
    parser.add_argument("--again", action="store_true", help="also those that the stage did not kill before")
    parser.add_argument("--only", default="", help="those whose key contains this, killed ones too")
    options = parser.parse_args()
    if options.do == "measure":
        copy = copies.make(CHECKOUT, STATE / f"measured-{options.stage}")
        processes = [f"--numprocesses={options.processes}"] if options.processes > 1 else []
        reach.measure(copy, STATE / options.stage, ["-m", STAGES[options.stage], *processes, *options.tests])
    elif options.do == "run":
        _run(options)
    else:
        _tell(options)


def _paths() -> dict[str, str]:
    """The files under test, each with its area."""
    found = ((area, path) for area, pattern in AREAS.items() for path in sorted(CHECKOUT.glob(pattern)))
    return {str(path.relative_to(CHECKOUT)): area for area, path in found}


def _sampled(options: argparse.Namespace) -> Iterator[tuple[str, Mutant]]:
    paths = _paths()
    for mutant in mutants.sample(CHECKOUT, list(paths), options.count, options.seed):
        if paths[mutant.path] in options.areas and options.only in mutant.key:
            yield paths[mutant.path], mutant


def _results() -> dict[str, dict[str, Any]]:
    """What is known of each mutant: by stage, the last trial."""
    found: dict[str, dict[str, Any]] = {}
    file = STATE / "results.jsonl"
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
        entry = json.loads(line)
        found.setdefault(entry["mutant"], {})[entry["stage"]] = entry
    return found


def _equivalent() -> set[str]:
    """The keys of the mutants that nobody can tell from the program; their file has the reasons."""
    named = yaml_file.load(EQUIVALENT.read_text(encoding="utf-8"), EQUIVALENT.name)
    return {_plain(entry["mutant"]) for entry in named}


def _plain(key: str) -> str:
    return " ".join(key.split())


def _is_wanted(result: dict[str, Any], options: argparse.Namespace) -> bool:
    if any(entry["state"] == "killed" for entry in result.values()):
        return False
    return bool(options.again or options.stage not in result)


def _run(options: argparse.Namespace) -> None:
    results, equivalent = _results(), _equivalent()
    waiting = [
        mutant
        for _, mutant in _sampled(options)
        if _plain(mutant.key) not in equivalent and (options.only or _is_wanted(results.get(mutant.key, {}), options))
    ]
    measured = reach.Reach(CHECKOUT, STATE / options.stage)
    folders: queue.Queue[Path] = queue.Queue()

    def attempt(mutant: Mutant) -> None:
        folder = folders.get()
        try:
            result = trial.try_mutant(folder, mutant, measured, options.seconds)
        finally:
            folders.put(folder)
        with (STATE / "results.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps({"mutant": mutant.key, "stage": options.stage, **asdict(result)}) + "\n")
        print(f"{result.state:12}{mutant.line:4} {mutant.key}  {result.by}", flush=True)  # noqa: T201

    with tempfile.TemporaryDirectory(dir=STATE) as made, ThreadPoolExecutor(options.processes) as pool:
        for number in range(options.processes):
            folders.put(copies.make(CHECKOUT, Path(made, str(number))))
        list(pool.map(attempt, waiting))
    _tell(options)


_COLUMNS = ("mutants", *STAGES, "survived", "not reached", "not tried", "equivalent")


def _fate(mutant: Mutant, result: dict[str, Any], equivalent: set[str]) -> str:
    """The column of a mutant: the stage that killed it, or what became of it in the last stage."""
    states = {stage: entry["state"] for stage, entry in result.items()}
    if _plain(mutant.key) in equivalent:
        return "equivalent"
    if killed := [stage for stage in STAGES if states.get(stage) == "killed"]:
        return killed[0]
    if states.keys() != STAGES.keys():
        return "not tried"
    return "survived" if "survived" in states.values() else "not reached"


def _tell(options: argparse.Namespace) -> None:
    results, equivalent = _results(), _equivalent()
    rows = {area: dict.fromkeys(_COLUMNS, 0) for area in AREAS}
    for area, mutant in _sampled(options):
        fate = _fate(mutant, results.get(mutant.key, {}), equivalent)
        rows[area]["mutants"] += 1
        rows[area][fate] += 1
        if options.do == "show" and fate not in (*STAGES, "equivalent"):
            print(f"{fate:12} {mutant.path}:{mutant.line}  {mutant.key}")  # noqa: T201
    rows["all"] = {column: sum(row[column] for row in rows.values()) for column in _COLUMNS}
    print(f"{'area':10}" + "".join(f"{column:>12}" for column in _COLUMNS) + f"{'killed':>10}")  # noqa: T201
    for area, row in rows.items():
        counted = row["mutants"] - row["equivalent"]
        share = f"{100 * sum(row[stage] for stage in STAGES) / counted:.0f} %" if counted else ""
        print(f"{area:10}" + "".join(f"{value:12}" for value in row.values()) + f"{share:>10}")  # noqa: T201


if __name__ == "__main__":
    main()
