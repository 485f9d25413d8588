"""Reading an archive of `builder export-image`, which may be damaged, or crafted by anyone."""

from __future__ import annotations

import json
from contextlib import contextmanager
from hashlib import sha256
from typing import IO, TYPE_CHECKING, Any

from builder.distribution import archive, archived_build
from builder.distribution.archive import Archive
from builder.engine.registry import oci_layout
from builder.errors import FileProblemsError, LockError, TransferError, UsageError
from builder.evidence import traveling
from builder.lock import reading
from builder.lock.model import ImageName
from builder.plan import layout
from builder.plan.model import StagedFile
from builder.storage import tar_stream

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from builder.evidence.record import Evidence
    from builder.storage.tar_stream import Member

_OUTSIDE = (oci_layout.LAYOUT, oci_layout.INDEX, oci_layout.DOCKER_INDEX)
_LARGEST_MANIFEST = 16 << 20


@contextmanager
def opened(path: Path) -> Iterator[tuple[Archive, IO[bytes]]]:
    """Opens an archive: its contents, and the file to read the blobs from.

    Raises UsageError where there is no such file, TransferError where it is not a complete archive of this program.
    """
    if path.exists() and not path.is_file():
        raise UsageError(f"{path} is no file", hint="an archive is not read in order: copy it into a file")
    try:
        file = path.open("rb")
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None
    with file:
        try:
            archive_contents = _read(path, file)
        except OSError as error:
            raise archive.unreadable(path, error) from None
        yield archive_contents, file


def _read(path: Path, file: IO[bytes]) -> Archive:
    try:
        members = tar_stream.members(file)
        if archive.SEAL not in members or archive.ABOUT not in members:
            raise _foreign(path, members)
        return _parse(path, file, members)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, LockError) as error:
        raise archive.damaged(path, _reason(error)) from None


def _reason(error: Exception) -> str:
    if isinstance(error, LockError):
        return error.message
    plain = isinstance(error, ValueError) and not isinstance(error, json.JSONDecodeError | UnicodeDecodeError)
    return str(error) if plain else f"its folder {archive.FOLDER} is not what this program writes"


def _foreign(path: Path, members: Mapping[str, Member]) -> TransferError:
    if any(name.startswith(archive.FOLDER) for name in members):
        return archive.damaged(path, "it is cut off")
    return TransferError(
        f"{path} is no archive of `builder export-image`: images.lock cannot tell what is in it",
        hint="`docker load` takes archives of `docker save`",
    )


def _parse(path: Path, file: IO[bytes], members: Mapping[str, Member]) -> Archive:
    about = _about(file, members)
    blobs: dict[str, Member] = {}
    for inside, member in members.items():
        if digest := oci_layout.digest_of(inside):
            blobs[digest] = member
        elif inside not in (*_OUTSIDE, archive.ABOUT, archive.SEAL, *about["files"]):
            raise ValueError(f"it holds `{tar_stream.printable(inside)}`, which does not belong there")
    files = _files(file, members, about["files"])
    part = reading.parse_bytes(files.pop(archive.LOCK).content, archive.LOCK)
    name: ImageName = _name(about["image"])
    if [*part.images] != [name.repository] or [*part.images[name.repository].numbers] != [name.number]:
        raise ValueError(f"its {archive.LOCK} is not about {name}")
    top = oci_layout.descriptor(about["manifest"])

    def get(digest: str) -> bytes:
        if digest not in blobs:
            raise ValueError(f"it lacks {digest}")
        content = _content(file, blobs[digest], _LARGEST_MANIFEST)
        if f"sha256:{sha256(content).hexdigest()}" != digest:
            raise ValueError(f"the content of {digest} does not match")
        return content

    image, sizes = oci_layout.read_image(top, get)
    _require_whole(blobs, sizes)
    build = {inside.removeprefix(archive.BUILD): content for inside, content in files.items()}
    if fault := archived_build.fault(name, part.images[name.repository].numbers[name.number], build):
        raise archive.refused(path, fault)
    evidence = _evidence(path, about, part.images[name.repository].numbers[name.number].fingerprint)
    return Archive(name, part, build, top, image, blobs, evidence)


def _evidence(path: Path, about: Mapping[str, Any], fingerprint: str) -> tuple[Evidence, ...]:
    """The runs of the image with this content. Raises TransferError where the file has anything else for such."""
    try:
        return traveling.read(about.get("evidence", {}), fingerprint, "its evidence")
    except FileProblemsError as error:
        raise archive.refused(path, error.message) from None


def _about(file: IO[bytes], members: Mapping[str, Member]) -> dict[str, Any]:
    content = _content(file, members[archive.ABOUT], layout.LARGEST_FILE)
    if _content(file, members[archive.SEAL], layout.LARGEST_FILE) != archive.seal(content):
        raise ValueError(f"the content of {archive.ABOUT} does not match its checksum")
    about: dict[str, Any] = json.loads(content)
    if about["version"] != archive.VERSION:
        raise ValueError(
            f"it is of version {about['version']}, and this program knows {archive.VERSION}: is there a newer one?"
        )
    return about


def _content(file: IO[bytes], member: Member, largest: int) -> bytes:
    if member.size > largest:
        raise ValueError("a file in it is larger than any that this program writes")
    return b"".join(tar_stream.pieces(file, member))


def _name(text: Any) -> ImageName:
    repository, _, number = text.rpartition(":")
    if not repository or tar_stream.is_unsafe(repository) or not number.isdecimal() or not 0 < int(number) < 10**18:
        raise ValueError("it does not name a numbered image")
    return ImageName(repository, int(number))


def _files(file: IO[bytes], members: Mapping[str, Member], checksums: Mapping[str, str]) -> dict[str, StagedFile]:
    """The files of the folder ``builder/``, verified against ``checksums``."""
    files = {}
    if len(checksums) > layout.MOST_FILES:
        raise ValueError(f"it has more than {layout.MOST_FILES:,} files")
    if sum(members[name].size for name in checksums) > layout.LARGEST_BUILD:
        raise ValueError(f"its files are more than {layout.LARGEST_BUILD:,} bytes")
    for name, digest in checksums.items():
        if name != archive.LOCK and not name.startswith(archive.BUILD):
            raise ValueError(f"`{tar_stream.printable(name)}` does not belong there")
        content = _content(file, members[name], layout.LARGEST_FILE)
        if sha256(content).hexdigest() != digest:
            raise ValueError(f"the content of {tar_stream.printable(name)} does not match its checksum")
        files[name] = StagedFile(content, members[name].executable)
    return files


def _require_whole(blobs: Mapping[str, Member], sizes: Mapping[str, int]) -> None:
    if unknown := sorted(blobs.keys() - sizes.keys()):
        raise ValueError(f"{unknown[0]} in it belongs to no image")
    for digest, size in sizes.items():
        if digest not in blobs:
            raise ValueError(f"it lacks {digest}")
        if blobs[digest].size != size:
            raise ValueError(f"{digest} does not have the size in the manifest")
