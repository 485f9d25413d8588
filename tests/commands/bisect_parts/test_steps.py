"""The images that are made while another one is tried: none that is needed waits for one that is not."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from builder.base.events import ignore
from builder.commands import bisect_trying
from builder.commands.bisect_trying import BisectContext, CandidateImage, CandidatesAhead
from builder.engine.client import Endpoint
from builder.lab.bisect import points
from builder.lab.bisect.search import BisectCandidate, BisectSubject
from builder.numbers.workspace import Workspace
from tests.commands.bisect_parts.test_points import BISECTION, project

if TYPE_CHECKING:
    from builder.lab.bisect.points import NumberSpan


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

    monkeypatch.setattr(bisect_trying, "make", make)
    own = project(tmp_path)
    workspace = Workspace(own, Endpoint("unix:///nowhere", (), "a test"), {}, ignore)
    read = points.span_reader(own, BISECTION, "")
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
