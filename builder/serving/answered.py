"""The images that have answered for a model on this machine, and those that another one took the place of.

Kept in the state folder by model and fingerprint. Where it is deleted nothing is known to have answered: an image that
does not start is then put back at most once more.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Literal

from builder.storage import state_file

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.project import Project

Outcome = Literal["answered", "replaced"]
_MOST_IMAGES = 200  # of a model; the latest are kept


def outcomes(project: Project, model: str) -> Mapping[str, str]:
    """The outcome of each image that was started for a model, by its fingerprint."""
    of_model = _read(project).get(model)
    return of_model if isinstance(of_model, dict) else {}


def record(project: Project, model: str, fingerprint: str, outcome: Outcome) -> None:
    """Records the outcome of an image; nothing is written where that is known."""
    everything = _read(project)
    before = everything.get(model)
    of_model = dict(before) if isinstance(before, dict) else {}
    if of_model.get(fingerprint) == outcome:
        return
    of_model.pop(fingerprint, None)
    of_model[fingerprint] = outcome
    everything[model] = dict(list(of_model.items())[-_MOST_IMAGES:])
    state_file.write(project.answered, json.dumps(everything, indent=1).encode())


def _read(project: Project) -> dict[str, object]:
    try:
        content = json.loads(project.answered.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}
