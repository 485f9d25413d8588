"""The keep and release commands: an image that is kept stays when others are pruned. They import nothing heavy."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from builder.lock import lock_file
from builder.numbers import images_lock, status

if TYPE_CHECKING:
    from builder.lock.model import ImageName
    from builder.numbers.workspace import Workspace


def keep_image(workspace: Workspace, text: str, *, kept: bool) -> tuple[ImageName, bool]:
    """Keeps or releases the image called ``text``; returns its name, and true if that changed anything. Raises
    UsageError where images.lock has no such image."""
    name, _ = status.named_number(workspace.project, lock_file.read_project_lock(workspace.project), text)
    with images_lock.transaction(workspace) as transaction:
        _, image = status.named_number(workspace.project, transaction.lock, str(name))
        if image.pinned == kept:
            return name, False
        transaction.commit(transaction.lock.with_image(name, replace(image, pinned=kept)))
    return name, True
