"""The scenarios of the real `canitoolcall probe`, on a model that knows no tools."""

from __future__ import annotations

import json
import os

import pytest

from builder import events
from builder.errors import MeasuringError
from builder.measuring import canitoolcall
from builder.measuring.bounded_process import EndedProcess
from tests.measuring.openai_server import Behaviour, serving


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_model_that_knows_no_tools_fails_its_scenarios() -> None:
    with serving(Behaviour(prefill=0, token=0)) as served:
        done = canitoolcall.probe(served, os.environ, events.ignore)
    assert (done.verdict, done.version) == ("fail", "canitoolcall 0.1.1")
    checks = {(finding.check, finding.at) for finding in done.findings}
    assert ("single-call", "whole") in checks
    assert ("single-call", "streamed") in checks
    assert "no-call" not in {check for check, _ in checks}
    assert done.counts["fail"] >= len({check for check, _ in checks})
    assert json.loads(done.raw)["summary"] == done.counts


@pytest.mark.parametrize("raw", [b"", b"[]", b"{}", b'{"outcomes": [{}], "summary": {}}'])
def test_what_is_no_report_is_no_measurement(raw: bytes) -> None:
    with pytest.raises(MeasuringError, match="wrote no report"):
        canitoolcall._read(EndedProcess(2, "itself", b"", b"usage", 1), raw)
