"""Files put into a container and read from an image over the engine's API: that way they reach another machine as well.

https://docs.docker.com/reference/api/engine/ (PutContainerArchive, ContainerArchive, ContainerExport)
"""

from __future__ import annotations

import io
import tarfile
from typing import TYPE_CHECKING

from builder.engine import containers
from builder.engine.client import transport
from builder.engine.client.api import quoted, raw
from builder.engine.client.errors import EngineAnswerTooLargeError, EngineHTTPError
from builder.errors import ImageStateError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import PurePosixPath

    from builder.engine.client.endpoint import Endpoint
    from builder.engine.containers import Container

_IDLE = 300.0
_TAR_MARGIN = 64 << 10
_FOLDER, _FILE = 0o777, 0o644  # whoever the image's user is writes beside them


def read(endpoint: Endpoint, image: str, path: str, labels: Mapping[str, str], largest: int) -> bytes | None:
    """Returns the content of a file of ``image``, None where it has none of that path. Nothing of the image runs.

    Raises ImageStateError for what is no file, or has more than ``largest`` bytes.
    """
    with containers.created(endpoint, image, labels) as container_id:
        try:
            target = f"/containers/{container_id}/archive"
            packed = raw(endpoint, "GET", target, query={"path": path}, largest=largest + _TAR_MARGIN)
        except EngineHTTPError as error:
            if error.is_not_found:
                return None
            raise
        except EngineAnswerTooLargeError:
            raise ImageStateError(f"{path} of {image} has more than {largest} bytes") from None
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        member = archive.next()
        file = archive.extractfile(member) if member and member.isfile() else None
        if file is None:
            raise ImageStateError(f"{path} of {image} is no file")
        return file.read()


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
