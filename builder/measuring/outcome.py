"""The outcome of a measurement, and the evidence that it becomes once it is known what it belongs to."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from builder import humanize
from builder.events import Stage
from builder.evidence.record import Evidence

if TYPE_CHECKING:
    from builder.evidence.record import Figure, Finding, Kind, Subject, Verdict


@dataclass(frozen=True)
class Outcome:
    """A measurement of the kind ``kind``, called ``name``, by the tool ``version`` with the ``set`` (a digest); what it
    measured and found. ``raw`` is the whole output of its tool."""

    kind: Kind
    name: str
    version: str
    set: str
    started: str
    seconds: float
    verdict: Verdict
    figures: tuple[Figure, ...] = ()
    findings: tuple[Finding, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    sampling: Mapping[str, int | float | str] = field(default_factory=dict)
    raw: bytes = b""

    def evidence(self, subject: Subject) -> Evidence:
        """The evidence of this measurement; `evidence.store` keeps it, with ``raw``."""
        return Evidence(
            kind=self.kind,
            name=self.name,
            version=self.version,
            set=self.set,
            started=self.started,
            seconds=round(self.seconds, 3),
            subject=subject,
            verdict=self.verdict,
            sampling=self.sampling,
            counts=self.counts,
            figures=self.figures,
            findings=self.findings,
        )


@dataclass(frozen=True)
class MeasuringProgress(Stage):
    """A measurement that goes on: the share that is done, and the seconds that are left, where they are known."""

    share: float
    seconds_left: float | None

    def __str__(self) -> str:
        left = "" if self.seconds_left is None else f", {humanize.duration(self.seconds_left)} left"
        return f"{self.name}: {self.share:.0%}{left}"


def verdict_of(findings: tuple[Finding, ...]) -> Verdict:
    """The verdict over all findings: the worst of theirs."""
    verdicts = {finding.verdict for finding in findings}
    return "fail" if "fail" in verdicts else "unclear" if "unclear" in verdicts else "pass"


def digest(content: Any) -> str:
    """The digest of content that JSON can hold."""
    text = json.dumps(content, sort_keys=True)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
