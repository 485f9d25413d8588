"""Runs third-party programs with limited time and output. A project's own probe is such a program."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from builder.base import processes, words
from builder.base.errors import MeasuringError
from builder.base.values import dataclass
from builder.evidence import statistics
from builder.evidence.run_record import Figure, Finding, Verdict
from builder.lab.measure import measurement

if TYPE_CHECKING:
    from builder.base.events import Report
    from builder.definitions.configuration import OwnProbe
    from builder.lab.measure.measurement import ServedModel


LARGEST_OUTPUT = 1 << 20
_TICK_SECONDS = 0.25
_GRACE_SECONDS = 5.0

_Cause: TypeAlias = Literal["itself", "time", "output"]


@dataclass(frozen=True)
class EndedProcess:
    """A process that ended by ``itself``, or was ended for its ``time`` or ``output``. ``exit_code`` is negative for a
    signal."""

    exit_code: int
    cause: _Cause
    output: bytes
    messages: bytes

    @property
    def last_lines(self) -> str:
        text = (self.messages.strip() or self.output.strip()).decode(errors="replace")
        return "\n".join(text.splitlines()[-5:])


def run_bounded(
    argv: Sequence[str],
    *,
    folder: Path,
    environ: Mapping[str, str],
    seconds: float,
    tick: Callable[[], None] | None = None,
) -> EndedProcess:
    """Runs ``argv`` in ``folder`` for at most ``seconds`` and `LARGEST_OUTPUT` bytes, then ends all processes of its
    session. ``tick`` is called several times a second; an error from ``tick`` ends the process. If the program is
    missing, raises OSError, or returns exit code 127."""
    end = time.monotonic() + seconds
    cause: _Cause | None = None
    with processes.memory_file() as output, processes.memory_file() as messages:
        process = subprocess.Popen(
            [*processes.tied_to_parent(), *argv],
            cwd=folder,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=messages,
            start_new_session=True,
        )
        try:
            while cause is None:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_TICK_SECONDS)
                if sum(os.fstat(file.fileno()).st_size for file in (output, messages)) > LARGEST_OUTPUT:
                    cause = "output"
                elif process.returncode is not None:
                    cause = "itself"
                elif time.monotonic() > end:
                    cause = "time"
                elif tick:
                    tick()
        finally:
            _end_group(process)
        kept = [os.pread(file.fileno(), LARGEST_OUTPUT, 0) for file in (output, messages)]
    return EndedProcess(process.returncode, cause, *kept)


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Ends the process and the rest of its group, first with SIGTERM, then with SIGKILL."""
    with suppress(ProcessLookupError, PermissionError, subprocess.TimeoutExpired):
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(_GRACE_SECONDS)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


# A project's own probe, which runs more often if its results differ.

PASSED, FAILED, UNCLEAR = 0, 1, 125
_LARGEST_FIGURE = 1e30  # the maximum in the schema of evidence
# A script needs a home and its tools, but not the user's tokens.
_VARIABLES = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "USER", "VIRTUAL_ENV")


class _Try(NamedTuple):
    verdict: Verdict
    reason: str
    values: Mapping[str, float] = {}


def run_own_probe(
    served: ServedModel, own: OwnProbe, environ: Mapping[str, str], report: Report
) -> measurement.Outcome:
    """Runs the probe until there are enough results. A script with an invalid result counts as failed. Raises
    MeasuringError if the program is missing."""
    began, started = time.monotonic(), words.now()
    tries: list[_Try] = []
    series: defaultdict[str, list[float]] = defaultdict(list)
    outputs: list[bytes] = []
    while _needs_more(tries, series):
        report(measurement.MeasuringProgress(own.name, len(tries) / statistics.MOST_REPEATS, None))
        ended = _run(served, own, environ)
        outputs.append(ended.output + ended.messages)
        tries.append(_judged(ended, own))
        for name, value in tries[-1].values.items():
            series[name].append(value)
    findings = tuple(
        Finding("script", f"run {number}", each.verdict, each.reason)
        for number, each in enumerate(tries, start=1)
        if each.verdict != "pass"
    )
    return measurement.Outcome(
        kind="probe",
        name=own.name,
        version=own.name,
        set=own.digest,
        started=started,
        seconds=time.monotonic() - began,
        verdict=measurement.verdict_of(findings),
        figures=tuple(
            Figure(name, {}, own.figures[name].unit, own.figures[name].better, tuple(values))
            for name, values in sorted(series.items())
        ),
        findings=findings,
        counts={"runs": len(tries), "failed": sum(each.verdict == "fail" for each in tries)},
        raw=b"\n".join(outputs),
    )


def _needs_more(tries: list[_Try], series: Mapping[str, list[float]]) -> bool:
    """True if more results are needed. A script that always fails runs only twice."""
    verdicts = [each.verdict for each in tries]
    failed = verdicts.count("fail")
    if "unclear" in verdicts or 1 < failed == len(tries):
        return False
    is_spread = not failed and statistics.needs_more_values(list(series.values()))
    return is_spread or statistics.needs_more([verdict == "pass" for verdict in verdicts])


def _run(served: ServedModel, own: OwnProbe, environ: Mapping[str, str]) -> EndedProcess:
    argv = [word.replace("{address}", served.address).replace("{model}", served.name) for word in own.command]
    variables = {name: environ[name] for name in _VARIABLES if name in environ} | measurement.passed_on(served.key)
    variables |= {"BUILDER_ADDRESS": served.address, "BUILDER_MODEL": served.name}
    variables |= {"BUILDER_CONTEXT": str(served.context), "NO_PROXY": "*", "no_proxy": "*"}
    variables["PYTHONDONTWRITEBYTECODE"] = "1"
    program = str(own.folder / argv[0]) if "/" in argv[0] else argv[0]
    if not shutil.which(program, path=variables.get("PATH")):
        hint = "`command` runs in the probe's folder, without a shell: ./NAME is an executable file there"
        raise MeasuringError(f"the probe {own.name} cannot be started: {argv[0]} was not found", hint=hint)
    return run_bounded(argv, folder=own.folder, environ=variables, seconds=own.seconds)


def _judged(ended: EndedProcess, own: OwnProbe) -> _Try:
    if ended.cause == "time":
        return _Try("fail", f"it did not end within {own.seconds} s")
    if ended.cause == "output":
        return _Try("fail", f"it printed more than {LARGEST_OUTPUT >> 20} MiB")
    if ended.exit_code == UNCLEAR:
        return _Try("unclear", ended.last_lines or "it ended with exit code 125")
    if ended.exit_code not in {PASSED, FAILED}:
        how = f"by signal {-ended.exit_code}" if ended.exit_code < 0 else f"with exit code {ended.exit_code}"
        return _Try("fail", f"it ended {how}, which is not 0, 1 or 125: {ended.last_lines}".rstrip(": "))
    failure = (ended.last_lines or "it ended with exit code 1") if ended.exit_code == FAILED else ""
    try:
        return _Try("fail" if failure else "pass", failure, read_figures(ended.output, own))
    except ValueError as error:
        return _Try("fail", failure or str(error))


def read_figures(output: bytes, own: OwnProbe) -> dict[str, float]:
    """The figures in the last line of a script's output. Raises ValueError if a figure is missing or not a number."""
    if not own.figures:
        return {}
    last = output.decode(errors="replace").strip().rpartition("\n")[2]
    printed: Any = None
    with suppress(ValueError, RecursionError):
        printed = json.loads(last)
    if not isinstance(printed, dict):
        raise ValueError(f"its last line is not a JSON object with the figures: {last[:200] or 'nothing'}")  # noqa: TRY004
    values = {}
    for name in own.figures:
        value = printed.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"the figure {name} is not a number: {str(value)[:200]}")  # noqa: TRY004
        if not abs(value) <= _LARGEST_FIGURE:  # or not a number at all
            raise ValueError(f"the figure {name} is {value}, which is out of range")
        values[name] = float(value)
    return values
