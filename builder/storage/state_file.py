"""Files in the state folder, which make the next run quicker and may vanish at any time: written whole, and with as
little effort as that takes."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from builder.storage import unfinished_file

if TYPE_CHECKING:
    from pathlib import Path


def write(path: Path, content: bytes) -> None:
    """Makes ``path`` hold ``content``, whole or not at all: several processes may write and read it at a time.

    A loss of power may empty it: readers take what they cannot read for missing. A folder that cannot be written to is
    no error: the work is done, only slower next time. What a killed process left beside it is removed.
    """
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with unfinished_file.beside(path) as (file, temporary):
            file.write(content)
            file.flush()
            temporary.replace(path)
