"""Errors of the system with the name of the file that they are about, which it leaves out where the file is open."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Gives every OSError of the block that names no file the name of ``path``."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            error.filename = str(path)
        raise
