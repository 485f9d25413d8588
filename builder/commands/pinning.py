"""The pin and unpin verbs: an image that is pinned stays when others are pruned."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from builder.events import WAITING, Report
from builder.lock import reading, writing
from builder.numbered import names

if TYPE_CHECKING:
    from builder.lock.model import ImageName
    from builder.project import Project


def run(project: Project, text: str, *, pinned: bool, report: Report) -> tuple[ImageName, bool]:
    """Sets whether the image called ``text`` is pinned; returns its name and whether that changed anything.

    Raises UsageError where images.lock has no such image.
    """
    name, _ = names.numbered(project, reading.of(project), text)
    with writing.writing(project.lock, on_wait=lambda: report(WAITING)) as transaction:
        _, now = names.numbered(project, transaction.lock, str(name))
        if now.pinned == pinned:
            return name, False
        transaction.commit(transaction.lock.with_image(name, replace(now, pinned=pinned)))
    return name, True
