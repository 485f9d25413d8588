"""The run that a proof is compared with: that of the number before, or what was accepted since."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from builder.evidence import store
from builder.lock.model import ImageName
from builder.proving.judging import Reference

if TYPE_CHECKING:
    from builder.evidence.record import Evidence
    from builder.lock.model import Lock
    from builder.project import Project


def find(project: Project, lock: Lock, repository: str, number: int | None, model: str) -> Reference | None:
    """The behaviour that a proof of ``model`` with this number (None for one that is being built) is compared with: the
    last run of the highest number up to it that passed or was accepted; else of the images that the model was paired
    with before."""
    numbers = sorted(lock.images[repository].numbers if repository in lock.images else (), reverse=True)
    names = [ImageName(repository, each) for each in numbers if number is None or each <= number]
    paired = lock.models.get(model)
    names += [each.image for each in ((paired.pairing, *paired.previous) if paired else ()) if each.image not in names]
    for name in names:
        for run in reversed(store.look(project, name).runs):
            if _counts(run, model) and not (name.repository == repository and number and name.number > number):
                return Reference(str(name), run.goldens, _texts(project, run))
    return None


def _counts(run: Evidence, model: str) -> bool:
    is_reference = run.verdict in {"pass", "unclear"} and bool(run.goldens)
    return run.kind == "prove" and not run.foreign and run.subject.model == model and is_reference


def _texts(project: Project, run: Evidence) -> dict[str, str]:
    content = store.raw(project, run.raw) if run.raw else None
    if content is None:
        return {}
    try:
        texts = json.loads(content)["texts"]
    except (ValueError, KeyError, TypeError):
        return {}
    return {key: text for key, text in texts.items() if isinstance(text, str)} if isinstance(texts, dict) else {}
