"""The scenarios of `canitoolcall probe`, a process of its own, against a served model."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder import timestamp
from builder.errors import MeasuringError
from builder.evidence.record import Finding
from builder.measuring import api_key, bounded_process, outcome, python_tool
from builder.measuring.outcome import MeasuringProgress, Outcome
from builder.measuring.python_tool import CANITOOLCALL

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.events import Report
    from builder.measuring.bounded_process import EndedProcess
    from builder.measuring.served_model import ServedModel

NAME = CANITOOLCALL.name
_SECONDS = 1800.0
_REQUEST_SECONDS = "300"
_WRONG = frozenset({"fail", "error"})


def probe(served: ServedModel, environ: Mapping[str, str], report: Report) -> Outcome:
    """Runs the scenarios, each whole and streamed. Raises MeasuringError where the tool cannot be had, or its report
    cannot be read."""
    began, started = time.monotonic(), timestamp.now()
    with tempfile.TemporaryDirectory(prefix="builder-") as name:
        folder = Path(name)
        python_tool.require(CANITOOLCALL, environ, folder)
        file = folder / "report.json"
        variables = {"HOME": name, "NO_PROXY": "*", "no_proxy": "*"}
        report(MeasuringProgress(NAME, 0, None))
        ended = bounded_process.run(
            [
                *CANITOOLCALL.argv(variables),
                *("probe", "--base-url", served.address, "--model", served.name, "--json", str(file)),
                *("--timeout", _REQUEST_SECONDS, "--concurrency", "1"),
                # A node is spoken to without TLS, as by every client of it.
                *(("--api-key-env", api_key.PASSED_ON, "--allow-insecure") if served.key else ()),
            ],
            folder=folder,
            environ={**python_tool.environ_of_uv(environ), **api_key.passed_on(served.key)},
            seconds=_SECONDS,
        )
        raw = file.read_bytes()[: 16 << 20] if file.is_file() else b""
    findings, counts = _read(ended, raw)
    return Outcome(
        kind="probe",
        name=NAME,
        version=str(CANITOOLCALL),
        set=digest(),
        started=started,
        seconds=time.monotonic() - began,
        verdict=outcome.verdict_of(findings),
        findings=findings,
        counts=counts,
        sampling={"temperature": 0},
        raw=raw,
    )


def digest() -> str:
    """The digest of the scenarios, which a version of the tool has for good."""
    return outcome.digest(str(CANITOOLCALL))


def _read(ended: EndedProcess, raw: bytes) -> tuple[tuple[Finding, ...], dict[str, int]]:
    if ended.cause == "time":
        return (Finding("answers", "", "fail", f"its scenarios were not done after {_SECONDS / 60:g} minutes"),), {}
    try:
        return parse(raw)
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError):
        raise MeasuringError(
            f"{CANITOOLCALL} ended with {ended.exit_code} and wrote no report: {ended.last_lines}"
        ) from None


def parse(raw: bytes) -> tuple[tuple[Finding, ...], dict[str, int]]:
    """The scenarios that went wrong, and how many had which result. Raises ValueError, LookupError, TypeError,
    AttributeError or OverflowError for what is no report."""
    content: Any = json.loads(raw)
    findings = tuple(
        Finding(str(each["scenario_id"])[:100], _place(each), "fail", str(each["detail"] or each["status"])[:2000])
        for each in content["outcomes"]
        if each["status"] in _WRONG
    )
    return findings, {str(name): max(int(count), 0) for name, count in content["summary"].items()}


def _place(outcome_of: Mapping[str, Any]) -> str:
    if outcome_of["check"] != "scenario":
        return str(outcome_of["check"]).replace("_", " ")
    return "streamed" if outcome_of["stream"] else "whole"
