"""The keep and release commands: pruning never removes a kept image. They import nothing heavy."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from builder.lock import lock_file
from builder.numbers import images_lock, status

if TYPE_CHECKING:
    from builder.lock.model import ImageName
    from builder.numbers.workspace import Workspace


def keep_image(workspace: Workspace, text: str, *, kept: bool) -> tuple[ImageName, bool]:
    """Keeps or releases the image called ``text``. Returns its name, and true if that changed anything. Raises
    UsageError if images.lock has no such image."""
    name, _ = status.named_number(workspace.project, lock_file.read_project_lock(workspace.project), text)
    with images_lock.transaction(workspace) as transaction:
        _, image = status.named_number(workspace.project, transaction.lock, str(name))
        if image.pinned == kept:
            return name, False
        transaction.commit(transaction.lock.with_image(name, replace(image, pinned=kept)))
    return name, True
