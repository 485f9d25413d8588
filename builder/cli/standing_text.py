"""The standing of images and the verdict of findings in one word, which is coloured beside: the word alone says it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.cli import terminal_text

if TYPE_CHECKING:
    from builder.evidence.overview import ImageEvidence
    from builder.evidence.record import Finding
    from builder.evidence.standing import Standing
    from builder.lock.model import Status

_COLOURS = {"proven": "green", "changed": "yellow", "failed": "red", "stale": "yellow"}


def word(standing: Standing | None) -> str:
    """The standing, empty where there is none to tell."""
    return terminal_text.styled(standing, fg=_COLOURS.get(standing)) if standing else ""


def mark(status: Status) -> str:
    """The mark of an image or a pairing as it is shown: images.lock and `--json` call one that is missing `untested`,
    which says nothing of its proof."""
    return "unmarked" if status == "untested" else status


def beside_model(evidence: ImageEvidence | None, model: str) -> str:
    """The standing of an image with one of its models, where it is not the one that is shown of the image."""
    own = evidence.standing_with(model) if evidence else None
    return word(own) if evidence and own != evidence.standing else ""


def finding_word(finding: Finding) -> str:
    """The verdict of one finding. One that passes is a limit of a template that others publish, or a note on what the
    figures of a benchmark leave out."""
    if finding.verdict != "pass":
        return finding.verdict
    return "note" if finding.check in {"tokens", "pp"} else "limit"
