"""The pin and unpin commands: an image that is pinned stays when others are pruned."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from builder.lock import reading
from builder.numbered import images_lock, names

if TYPE_CHECKING:
    from builder.lock.model import ImageName
    from builder.workspace import Workspace


def run(workspace: Workspace, text: str, *, pinned: bool) -> tuple[ImageName, bool]:
    """Pins or unpins the image called ``text``; returns its name, and true if that changed anything.

    Raises UsageError where images.lock has no such image.
    """
    name, _ = names.numbered(workspace.project, reading.of(workspace.project), text)
    with images_lock.transaction(workspace) as transaction:
        _, image = names.numbered(workspace.project, transaction.lock, str(name))
        if image.pinned == pinned:
            return name, False
        transaction.commit(transaction.lock.with_image(name, replace(image, pinned=pinned)))
    return name, True
