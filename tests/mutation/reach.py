"""Which tests reach a mutant: measured once with coverage, the processes that tests start included.

A measurement is a folder: ``notes.jsonl`` has a line for each test (how long it takes, its markers), ``lines.sqlite``
the lines of the program that it ran, noted by coverage under `plugin.context`.
"""

from __future__ import annotations

import ast
import json
import os
import re
import sqlite3
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from coverage.numbits import numbits_to_nums

from tests.mutation import plugin
from tests.mutation.mutants import Mutant

_CONFIGURATION = f"""\
[run]
source_pkgs = builder
data_file = {{folder}}/data/lines
parallel = true
context = ${{{{{plugin.CONTEXT}-}}}}
disable_warnings = no-data-collected,module-not-imported,module-not-measured,dynamic-conflict
"""


@dataclass(frozen=True)
class MeasuredTest:
    """A test that passes, with the seconds it takes and its markers."""

    name: str
    seconds: float
    marks: frozenset[str]


def measure(copy: Path, folder: Path, arguments: list[str]) -> None:
    """Runs the tests that the ``arguments`` of pytest choose, in a copy of the checkout, and adds what they reach."""
    (folder / "data").mkdir(parents=True, exist_ok=True)
    configuration = folder / "coveragerc"
    configuration.write_text(_CONFIGURATION.format(folder=folder), encoding="utf-8")
    environ = {
        **os.environ,
        "COVERAGE_PROCESS_START": str(configuration),
        plugin.NOTES: str(folder / "notes.jsonl"),
        plugin.CONTEXT: "",
    }
    argv = [".venv/bin/python", "-m", "pytest", "-p", "tests.mutation.plugin", "-q", *arguments]
    subprocess.run(argv, cwd=copy, env=environ)
    combine = [".venv/bin/coverage", "combine", "--quiet", "--append", f"--data-file={folder / 'lines.sqlite'}"]
    subprocess.run([*combine, *(folder / "data").iterdir()], cwd=copy, check=True)


class Reach:
    """What was measured. Its lines are those of the program at that time: where it changed since, measure again."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.root, self.folder = root, folder
        self._by_file: dict[str, dict[str, frozenset[int]]] = {}

    @cached_property
    def tests(self) -> dict[str, MeasuredTest]:
        """Each test that passed when it was measured last, by its context."""
        found: dict[str, MeasuredTest] = {}
        for line in (self.folder / "notes.jsonl").read_text(encoding="utf-8").splitlines():
            entry = json.loads(line)
            context = plugin.context(entry["test"])
            found.pop(context, None)
            if entry["passed"]:
                found[context] = MeasuredTest(entry["test"], entry["seconds"], frozenset(entry["marks"]))
        return found

    def of(self, mutant: Mutant) -> list[MeasuredTest]:
        """The tests to try a mutant with, the fastest first of each kind: those of its package that reach it, the
        others of its package, which may see it through a fixture that another test reached first, and those elsewhere
        that reach it. Empty where none does.

        Outside of functions a mutant is reached by whoever reaches a function that names what it assigns, or else any
        function of its file."""
        if mutant.names:
            contexts = {context for path, lines in self._naming(mutant) for context in self._reaching(path, lines)}
        else:
            contexts = self._reaching(mutant.path, frozenset(mutant.lines))
        if not contexts and not mutant.in_function:
            contexts = self._reaching(mutant.path, _function_lines(self.root / mutant.path))
        contexts &= self.tests.keys()
        folder = f"tests/{Path(mutant.path).parent.name}/"  # tests/plan/ for builder/plan/making.py
        own = {context for context, test in self.tests.items() if test.name.startswith(folder)}
        kinds = [contexts & own, own - contexts, contexts - own] if contexts else []
        return [test for kind in kinds for test in sorted(map(self.tests.__getitem__, kind), key=lambda t: t.seconds)]

    def _naming(self, mutant: Mutant) -> Iterator[tuple[str, frozenset[int]]]:
        named = re.compile("|".join(rf"\b{name}\b" for name in mutant.names))
        private = all(name.startswith("_") for name in mutant.names)
        for file in [self.root / mutant.path] if private else sorted(self.root.glob("builder/**/*.py")):
            lines = enumerate(file.read_text(encoding="utf-8").splitlines(), start=1)
            naming = frozenset(number for number, line in lines if named.search(line))
            if naming:
                yield str(file.relative_to(self.root)), naming & _function_lines(file)

    def _reaching(self, path: str, lines: frozenset[int]) -> set[str]:
        if path not in self._by_file:
            self._by_file[path] = self._read(path)
        return {context for context, reached in self._by_file[path].items() if reached & lines}

    def _read(self, path: str) -> dict[str, frozenset[int]]:
        reached: dict[str, frozenset[int]] = {}
        with sqlite3.connect(self.folder / "lines.sqlite") as connection:
            rows = connection.execute(
                "select context.context, line_bits.numbits from line_bits join file on file.id = line_bits.file_id"
                " join context on context.id = line_bits.context_id where file.path like ?",
                (f"%/{path}",),
            )
            for context, numbits in rows:
                reached[context] = reached.get(context, frozenset()) | frozenset(numbits_to_nums(numbits))
        return reached


@cache
def _function_lines(file: Path) -> frozenset[int]:
    """The lines of a file that run when a function does, not when it is imported."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.Lambda)]
    starts = [(node, node.body[0] if isinstance(node.body, list) else node.body) for node in functions]
    return frozenset(n for node, first in starts for n in range(first.lineno, (node.end_lineno or node.lineno) + 1))
