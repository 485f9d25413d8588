"""The images that have answered for a model on this machine, how long they took to start, and those that another one
took the place of.

Kept in the state folder by model and fingerprint. Where it is deleted nothing is known to have answered: an image that
does not start is then put back at most once more.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from builder import humanize
from builder.storage import regular_file, state_file

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.lock.model import Lock
    from builder.project import Project

Outcome = Literal["answered", "replaced"]
_LARGEST = 64 << 20
_MOST_IMAGES = 200  # of a model; the latest are kept
# A candidate compiles what the current image has compiled before, so that its start may take several times as long.
_TIMES = 5
LEAST_SECONDS = 15 * 60.0
_LONGEST_START = 24 * 3600.0
# A first start may download the model and compile all of it.
_SECONDS_WITHOUT_A_RECORD = 60 * 60.0


@dataclass(frozen=True)
class StartLimit:
    """The ``seconds`` in which a candidate has to answer, and where that number comes from."""

    seconds: float
    reason: str


def outcomes(project: Project, model: str) -> Mapping[str, str]:
    """The outcome of each image that was started for a model, by its fingerprint."""
    return {fingerprint: outcome for fingerprint, (outcome, _) in _of_model(project, model).items()}


def start_limit(project: Project, lock: Lock, model: str | None) -> StartLimit:
    """The limit for a candidate of ``model`` to answer: five times the longest recorded start of the image that
    the model is paired with, at least 15 minutes; an hour where no start of that image is recorded."""
    paired = lock.models.get(model or "")
    current = lock.image(paired.pairing.image) if paired else None
    seconds = _of_model(project, model or "").get(current.fingerprint, ("", 0.0))[1] if current else 0.0
    if paired is None or not seconds:
        return StartLimit(_SECONDS_WITHOUT_A_RECORD, "no start of the current image is recorded")
    if _TIMES * seconds < LEAST_SECONDS:
        return StartLimit(LEAST_SECONDS, f"{paired.pairing.image} took {humanize.duration(seconds)}")
    return StartLimit(_TIMES * seconds, f"{_TIMES} times the {humanize.duration(seconds)} of {paired.pairing.image}")


def record(project: Project, model: str, fingerprint: str, outcome: Outcome, seconds: float = 0.0) -> None:
    """Records the outcome of an image, and the longest of the ``seconds`` that it took to answer; nothing is written
    where both are known."""
    of_model = _of_model(project, model)
    before = of_model.pop(fingerprint, ("", 0.0))
    latest = (outcome, max(seconds, before[1]))
    if latest == before:
        return
    of_model[fingerprint] = latest
    kept = list(of_model.items())[-_MOST_IMAGES:]
    entries = {each: {"outcome": latest_outcome, "seconds": round(took, 1)} for each, (latest_outcome, took) in kept}
    state_file.write(project.answered, json.dumps({**_read(project), model: entries}, indent=1).encode())


def _of_model(project: Project, model: str) -> dict[str, tuple[str, float]]:
    """The outcome and the seconds of each image of a model, by its fingerprint. Earlier versions wrote the outcome
    alone."""
    recorded = _read(project).get(model)
    entries: dict[str, tuple[str, float]] = {}
    for fingerprint, entry in recorded.items() if isinstance(recorded, dict) else ():
        fields = entry if isinstance(entry, dict) else {"outcome": entry}
        seconds = fields.get("seconds")
        # Anybody may have written the file, and a wait with a limit that is no time has no end.
        took = seconds if isinstance(seconds, int | float) and seconds is not True else 0.0
        took = took if 0 < took < _LONGEST_START else 0.0
        entries[fingerprint] = (str(fields.get("outcome")), took)
    return entries


def _read(project: Project) -> dict[str, object]:
    try:
        content = json.loads(regular_file.read(project.answered, _LARGEST))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
