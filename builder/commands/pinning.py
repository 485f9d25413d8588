"""The pin and unpin verbs: an image that is pinned stays when others are pruned."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from builder.lock import reading
from builder.numbered import images_lock, names

if TYPE_CHECKING:
    from builder.lock.model import ImageName
    from builder.workspace import Workspace


def run(workspace: Workspace, text: str, *, pinned: bool) -> tuple[ImageName, bool]:
    """Sets whether the image called ``text`` is pinned; returns its name and whether that changed anything.

    Raises UsageError where images.lock has no such image.
    """
    name, _ = names.numbered(workspace.project, reading.of(workspace.project), text)
    with images_lock.transaction(workspace) as transaction:
        _, now = names.numbered(workspace.project, transaction.lock, str(name))
        if now.pinned == pinned:
            return name, False
        transaction.commit(transaction.lock.with_image(name, replace(now, pinned=pinned)))
    return name, True
