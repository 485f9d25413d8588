"""Files put into a container over the engine's API: that way they reach one on another machine as well.

https://docs.docker.com/reference/api/engine/ (PutContainerArchive)
"""

from __future__ import annotations

import io
import tarfile
from typing import TYPE_CHECKING

from builder.engine.client import transport
from builder.engine.client.api import quoted
from builder.errors import ImageStateError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import PurePosixPath

    from builder.engine.containers import Container

_IDLE = 300.0
_FOLDER, _FILE = 0o777, 0o644  # whoever the image's user is writes beside them


def put(container: Container, files: Mapping[PurePosixPath, bytes]) -> None:
    """Writes files at their absolute paths, with the folders that they need, but for those that are there. Raises
    ImageStateError where the engine refuses, as for a path through a file."""
    archive = _archive(files)
    target = f"/containers/{quoted(container.id)}/archive?path=/"
    status, body = transport.upload(
        container.endpoint, target, len(archive), [archive], "application/x-tar", _IDLE, method="PUT"
    )
    if status >= 400:
        raise ImageStateError(f"files cannot be put into the container: {body.decode(errors='replace').strip()}")


def _archive(files: Mapping[PurePosixPath, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for folder in sorted({parent for path in files for parent in path.parents if parent.name}):
            entry = tarfile.TarInfo(str(folder).lstrip("/"))
            entry.type, entry.mode = tarfile.DIRTYPE, _FOLDER
            archive.addfile(entry)
        for path, content in files.items():
            entry = tarfile.TarInfo(str(path).lstrip("/"))
            entry.size, entry.mode = len(content), _FILE
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()
