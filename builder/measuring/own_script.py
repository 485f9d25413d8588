"""A project's own probe, run against a served model: as often as its figures spread, in limited time and with limited
output."""

from __future__ import annotations

import json
import math
import shutil
import time
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from builder import timestamp
from builder.errors import MeasuringError
from builder.evidence.record import Figure, Finding
from builder.measuring import api_key, bounded_process, outcome, repetition
from builder.measuring.outcome import MeasuringProgress, Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.definitions.own_probe import OwnProbe
    from builder.events import Report
    from builder.evidence.record import Verdict
    from builder.measuring.bounded_process import EndedProcess
    from builder.measuring.served_model import ServedModel

PASSED, FAILED, UNCLEAR = 0, 1, 125
# A script needs a home and its tools; the user's tokens are no business of a project's.
_VARIABLES = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "USER", "VIRTUAL_ENV")


@dataclass(frozen=True)
class _Try:
    """One run of the script: its verdict, the reason where it did not pass, and what it measured."""

    verdict: Verdict
    reason: str
    values: Mapping[str, float]


def probe(served: ServedModel, own: OwnProbe, environ: Mapping[str, str], report: Report) -> Outcome:
    """Runs the probe until its results tell enough. Every way in which a script can go wrong is a failure that says so;
    raises MeasuringError where there is no such program."""
    began, started = time.monotonic(), timestamp.now()
    tries: list[_Try] = []
    series: defaultdict[str, list[float]] = defaultdict(list)
    outputs: list[bytes] = []
    while _needs_more(tries, series):
        report(MeasuringProgress(own.name, len(tries) / repetition.MOST, None))
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
    return Outcome(
        kind="probe",
        name=own.name,
        version=own.name,
        set=own.digest,
        started=started,
        seconds=time.monotonic() - began,
        verdict=outcome.verdict_of(findings),
        figures=tuple(
            Figure(name, {}, own.figures[name].unit, own.figures[name].better, tuple(values))
            for name, values in sorted(series.items())
        ),
        findings=findings,
        counts={"runs": len(tries), "failed": sum(each.verdict == "fail" for each in tries)},
        raw=b"\n".join(outputs),
    )


def _needs_more(tries: list[_Try], series: Mapping[str, list[float]]) -> bool:
    """True while the runs do not tell enough. A script that goes wrong is tried once more and not ten times."""
    if any(each.verdict == "unclear" for each in tries):
        return False
    failed = [each for each in tries if each.verdict == "fail"]
    if len(failed) > 1 and len(failed) == len(tries):
        return False
    return repetition.needs_more([each.verdict == "pass" for each in tries]) or (
        not failed and repetition.needs_more_values(list(series.values()))
    )


def _run(served: ServedModel, own: OwnProbe, environ: Mapping[str, str]) -> EndedProcess:
    values = {"{address}": served.address, "{model}": served.name}
    argv = list(own.command)
    for mark, value in values.items():
        argv = [word.replace(mark, value) for word in argv]
    variables = {name: environ[name] for name in _VARIABLES if name in environ}
    variables |= {
        "BUILDER_ADDRESS": served.address,
        "BUILDER_MODEL": served.name,
        "BUILDER_CONTEXT": str(served.context),
        "NO_PROXY": "*",
        "no_proxy": "*",
        "PYTHONDONTWRITEBYTECODE": "1",
        **api_key.passed_on(served.key),
    }
    if not _exists(argv[0], own, variables.get("PATH")):
        raise MeasuringError(
            f"the probe {own.name} cannot be started: there is no program {argv[0]}",
            hint="`command` is run in the probe's folder, without a shell: ./NAME is an executable file there",
        )
    return bounded_process.run(argv, folder=own.folder, environ=variables, seconds=own.seconds)


def _exists(program: str, own: OwnProbe, path: str | None) -> bool:
    return bool(shutil.which(str(own.folder / program) if "/" in program else program, path=path))


def _judged(ended: EndedProcess, own: OwnProbe) -> _Try:
    if ended.cause == "time":
        return _Try("fail", f"it had not ended after {own.seconds} s", {})
    if ended.cause == "output":
        return _Try("fail", f"it printed more than {bounded_process.LARGEST_OUTPUT >> 20} MiB", {})
    if ended.exit_code == UNCLEAR:
        return _Try("unclear", ended.last_lines or "it ended with 125", {})
    if ended.exit_code not in {PASSED, FAILED}:
        how = f"by signal {-ended.exit_code}" if ended.exit_code < 0 else f"with {ended.exit_code}"
        return _Try("fail", f"it ended {how}, which is none of 0, 1 and 125: {ended.last_lines}".rstrip(": "), {})
    try:
        values, fault = read_figures(ended.output, own), ""
    except ValueError as error:
        values, fault = {}, str(error)
    if ended.exit_code == FAILED:
        return _Try("fail", ended.last_lines or "it ended with 1", values)
    return _Try("fail" if fault else "pass", fault, values)


def read_figures(output: bytes, own: OwnProbe) -> dict[str, float]:
    """The figures in the last line of a script's output. A script that has none prints what it likes. Raises ValueError
    where they are missing, or no numbers."""
    if not own.figures:
        return {}
    lines = output.decode(errors="replace").strip().splitlines()
    try:
        printed: Any = json.loads(lines[-1]) if lines else None
    except (ValueError, RecursionError):
        printed = None
    if not isinstance(printed, dict):
        last = lines[-1][:200] if lines else "nothing"
        raise ValueError(f"its last line is no JSON object with its figures: {last}")  # noqa: TRY004
    values = {}
    for name in own.figures:
        value = printed.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"the figure {name} is no number: {str(value)[:200]}")  # noqa: TRY004
        if not math.isfinite(value) or abs(value) > 1e30:
            raise ValueError(f"the figure {name} is {value}: no figure can be that")
        values[name] = float(value)
    return values
