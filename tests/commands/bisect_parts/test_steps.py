"""The images that are made while another one is tried: none that is needed waits for one that is not."""

from __future__ import annotations

import threading

from builder.commands.bisect_trying import CandidatesAhead
from builder.lab.bisect.search import BisectCandidate

FAILS, PASSES, LATER = (BisectCandidate(1, 2, (unit,)) for unit in ("a", "b", "c"))


def test_an_image_that_is_needed_does_not_wait_for_one_that_no_longer_is() -> None:
    begun, ends, made = threading.Event(), threading.Event(), []

    def make(candidate: BisectCandidate) -> tuple[str, str]:
        made.append(candidate)
        if candidate == FAILS:
            begun.set()
            assert ends.wait(60)
        return candidate.taken[0], ""

    with CandidatesAhead(make, make) as ahead:
        ahead.prepare((FAILS, PASSES))
        assert begun.wait(60)
        assert ahead.image(PASSES) == ("b", "")  # beside the other one, which goes on
        ahead.prepare((LATER,))
        ends.set()
        assert ahead.image(LATER) == ("c", "")
    assert made == [FAILS, PASSES, LATER]
