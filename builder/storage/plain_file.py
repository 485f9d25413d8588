"""Files that no other process reads yet: written plainly, into a folder that is moved or removed as a whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.storage.named_errors import naming

if TYPE_CHECKING:
    from pathlib import Path


def write(path: Path, content: bytes) -> None:
    """Makes ``path`` hold ``content``. Raises OSError, which names ``path``."""
    with naming(path):
        path.write_bytes(content)
