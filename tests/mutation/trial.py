"""The trial of a mutant: the tests that reach it, until one fails."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.mutation import plugin
from tests.mutation.mutants import Mutant
from tests.mutation.reach import MeasuredTest, Reach

_BATCHES = (30, 200)  # most mutants die in the first tests: the files of the others need not be imported
_MEMORY = 6 << 30  # bytes of a process: a mutant may fill a list without end
_START = 120.0  # seconds in which pytest imports and ends, on a busy machine


@dataclass(frozen=True)
class Trial:
    """What became of a mutant: "killed" by a test with these markers, "survived", or "not reached". ``by`` is the test,
    or says what else ended the run; ``cut`` tells that there were more tests than the time allows."""

    state: str
    by: str = ""
    marks: tuple[str, ...] = ()
    tests: int = 0
    cut: bool = False


def try_mutant(copy: Path, mutant: Mutant, reach: Reach, budget: float) -> Trial:
    """Tries a mutant in a copy of the checkout, with tests of ``budget`` seconds at most."""
    chosen, cut = _within(budget, reach.of(mutant))
    if not chosen:
        return Trial("not reached")
    file = copy / mutant.path
    text = file.read_text(encoding="utf-8")
    _write(file, mutant.apply(text))
    try:
        for batch in _batches(chosen):
            if killer := _run(copy, batch):
                marks = next((test.marks for test in batch if test.name == killer), frozenset())
                return Trial("killed", killer, tuple(sorted(marks)), len(chosen), cut)
    finally:
        _write(file, text)
    return Trial("survived", tests=len(chosen), cut=cut)


def _within(budget: float, tests: list[MeasuredTest]) -> tuple[list[MeasuredTest], bool]:
    chosen: list[MeasuredTest] = []
    seconds = 0.0
    for test in tests:
        seconds += test.seconds
        if chosen and seconds > budget:
            return chosen, True
        chosen.append(test)
    return chosen, False


def _batches(tests: list[MeasuredTest]) -> list[list[MeasuredTest]]:
    first, second = _BATCHES
    batches = [tests[:first], tests[first : first + second], tests[first + second :]]
    return [batch for batch in batches if batch]


def _write(file: Path, text: str) -> None:
    file.write_text(text, encoding="utf-8")
    # Python takes a compiled file for that of any text of the same length in the same second.
    for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*.pyc"):
        compiled.unlink()


def _run(copy: Path, tests: list[MeasuredTest]) -> str:
    """Runs tests in this order; the first one that fails, or what else went wrong. Empty where all pass."""
    seconds = sum(test.seconds for test in tests)
    each = int(30 + 10 * max(test.seconds for test in tests))
    with tempfile.TemporaryDirectory() as folder:
        notes, names = Path(folder, "notes.jsonl"), Path(folder, "tests.txt")
        names.write_text("\n".join(test.name for test in tests), encoding="utf-8")
        files = sorted({test.name.partition("::")[0] for test in tests})
        argv = [".venv/bin/python", "-m", "pytest", "-p", "tests.mutation.plugin", "-p", "no:cacheprovider"]
        argv += ["-x", "-q", "--no-header", "--tb=line", f"--timeout={each}", *files]
        # Python keeps what it compiles, whatever the environment says: each trial imports all of it.
        kept = {"PYTHONDONTWRITEBYTECODE": ""}
        environ = {**os.environ, **kept, plugin.NOTES: str(notes), plugin.TESTS: str(names)}
        process = subprocess.Popen(
            argv,
            cwd=copy,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        resource.prlimit(process.pid, resource.RLIMIT_DATA, (_MEMORY, _MEMORY))
        try:
            output, _ = process.communicate(timeout=_START + each + 4 * seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return "no end: the time is up"
        # No test is collected where all of them are gone: nothing can be said.
        if process.returncode in (0, 5):
            return ""
        noted = [json.loads(line) for line in notes.read_text().splitlines()] if notes.exists() else []
        said = " | ".join(output.strip().splitlines()[-3:])
        return next((str(note["test"]) for note in noted if not note["passed"]), f"exit {process.returncode}: {said}")
