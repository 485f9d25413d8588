"""The images that are made while another one is tried: none that is needed waits for one that is not."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from builder.bisecting.candidate import BisectCandidate
from builder.bisecting.difference import BisectSubject
from builder.commands.bisect_parts import making, spans
from builder.commands.bisect_parts.making import CandidateImage
from builder.commands.bisect_parts.steps import BisectContext, CandidatesAhead
from builder.engine.client.endpoint import Endpoint
from builder.events import ignore
from builder.workspace import Workspace
from tests.commands.bisect_parts.test_spans import BISECTION, project

if TYPE_CHECKING:
    from builder.commands.bisect_parts.spans import NumberSpan

FAILS, PASSES, LATER = (BisectCandidate(1, 2, (unit,)) for unit in ("a", "b", "c"))


def test_an_image_that_is_needed_does_not_wait_for_one_that_no_longer_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, ends, made = threading.Event(), threading.Event(), []

    def make(_workspace: Workspace, _span: NumberSpan, candidate: BisectCandidate) -> CandidateImage:
        made.append(candidate)
        if candidate == FAILS:
            begun.set()
            assert ends.wait(60)
        return CandidateImage(candidate.taken[0])

    monkeypatch.setattr(making, "make", make)
    own = project(tmp_path)
    workspace = Workspace(own, Endpoint("unix:///nowhere", (), "a test"), {}, ignore)
    read = spans.reader(own, BISECTION, "")
    shared = BisectContext(read, BisectSubject((1, 2), lambda old, new: read(old, new).axes))
    with ThreadPoolExecutor(max_workers=1) as pool:
        ahead = CandidatesAhead(workspace, shared, pool)
        ahead.ahead((FAILS, PASSES))
        assert begun.wait(60)
        assert ahead.image(PASSES).tag == "b"  # beside the other one, which goes on
        ahead.ahead((LATER,))
        ends.set()
        assert ahead.image(LATER).tag == "c"
    assert made == [FAILS, PASSES, LATER]
