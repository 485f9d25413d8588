"""The import-image verb: a numbered image from a file that `export-image` wrote on another machine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import IO, TYPE_CHECKING

from builder.building import work_folder
from builder.distribution import archive, archive_reading
from builder.engine import image_archive, images
from builder.errors import ImageStateError, LockError, TransferError
from builder.events import Report, delayed_progress
from builder.lock import merging, reading
from builder.numbered import build_directory, images_lock
from builder.numbered.images_lock import RECORD, Candidate

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from builder.building.work_folder import WorkFolder
    from builder.distribution.archive import Archive
    from builder.engine.client.endpoint import Endpoint
    from builder.lock.model import ImageName, Lock
    from builder.lock.pins import Pins
    from builder.workspace import Workspace


@dataclass(frozen=True)
class ImportedImage:
    """The image; ``layers`` came from the file with ``bytes`` in all, none where all of it was here ``already``.
    ``current`` says whether it is the current number, ``models`` which ones were paired with it by the import."""

    image: ImageName
    already: bool
    layers: int
    bytes: int
    current: bool
    models: tuple[str, ...]


def run(workspace: Workspace, path: Path) -> ImportedImage:
    """Takes up the number that the file holds: image, build directory, record. What is current or paired here stays so.

    Raises UsageError and TransferError for a file that cannot be read or is not whole; ImageStateError where the number
    has other content here, or the image is missing that the file was made for. Nothing is changed then.
    """
    with archive_reading.opened(path) as (held, file):
        work_folder.recover(workspace)
        lock = reading.of(workspace.project)
        _refuse_other(workspace, lock, held)
        here = images.inspect(workspace.engine, str(held.name)) is not None
        if here and lock.image(held.name) and build_directory.path_of(workspace.project, held.name).exists():
            return _imported(held, lock, lock, already=True)
        with work_folder.create(workspace, held.name.repository, held.build) as job:
            if here:
                images.tag(workspace.engine, str(held.name), job.tag)
            else:
                _require_needed(workspace.engine, path, held)
                _load(workspace.engine, path, held, file, job, workspace.report)
            after = _adopt(workspace, held, job)
    return _imported(held, lock, after, already=here)


def _imported(held: Archive, before: Lock, after: Lock, *, already: bool) -> ImportedImage:
    current = after.images[held.name.repository].current == held.name.number
    models = tuple(model for model in after.models_on(held.name) if model not in before.models)
    size = 0 if already else sum(layer.size for layer in held.layers)
    return ImportedImage(held.name, already, 0 if already else len(held.layers), size, current, models)


def _refuse_other(workspace: Workspace, lock: Lock, held: Archive) -> None:
    """Raises ImageStateError where this number means something else: in images.lock, in the engine or in builds/."""
    _refuse_recorded(lock, held)
    details = images.inspect(workspace.engine, str(held.name))
    if details is not None and images.fingerprint(details) != held.fingerprint:
        raise ImageStateError(
            f"{held.name} in this engine has other content than the one in the file: not overwritten",
            hint=f"`builder verify` says whose it is; `docker image rm {held.name}` lets it go",
        )
    folder = build_directory.path_of(workspace.project, held.name)
    if folder.exists() and held.build and not _same(folder, held):
        raise ImageStateError(
            f"{workspace.project.relative(folder)} is another build than the one in the file: not overwritten",
            hint="it belongs to an image of this project, or was changed: `git status` shows that",
        )


def _refuse_recorded(lock: Lock, held: Archive) -> None:
    recorded = lock.image(held.name)
    if recorded is not None and recorded.fingerprint != held.fingerprint:
        raise ImageStateError(
            f"{held.name} is another image here, built {recorded.built}: a number is never given to other content",
            hint="two machines that build need a repository each, or one images.lock: build it there anew as"
            " another number, and export that",
        )


def _same(folder: Path, held: Archive) -> bool:
    """Whether the build directory is that of the file. Its record of the build may differ: it is not built from."""
    there = {file.relative_to(folder).as_posix(): file.read_bytes() for file in build_directory.files(folder)}
    wanted = {path: file.content for path, file in held.build.items()}
    return {**there, RECORD: b""} == {**wanted, RECORD: b""}


def _require_needed(endpoint: Endpoint, path: Path, held: Archive) -> None:
    if held.needs is None:
        return
    details = images.inspect(endpoint, str(held.needs.image))
    why = f"{path} holds only what {held.name} has beyond {held.needs.image}"
    if details is None:
        raise ImageStateError(f"{why}, which this engine lacks", hint=_whole(held))
    if images.fingerprint(details) != held.needs.fingerprint:
        raise ImageStateError(f"{why}, which has other content in this engine", hint=_whole(held))


def _whole(held: Archive) -> str:
    needs = held.needs.image if held.needs else ""
    return f"import {needs} first, or export all of it, without --since: `builder export-image {held.name} FILE`"


def _load(endpoint: Endpoint, path: Path, held: Archive, file: IO[bytes], job: WorkFolder, report: Report) -> None:
    """Brings the image into the engine under the name of the work. Raises TransferError where it is not the one that
    the file's record tells of."""
    size, pieces = archive.load_stream(held, file, path, job.tag)
    image_archive.load(endpoint, size, _told(pieces, size, f"{held.name}", report))
    details = images.inspect(endpoint, job.tag)
    if details is not None and images.fingerprint(details) == held.fingerprint:
        return
    if held.needs and (details is None or not details.layers):
        raise TransferError(
            f"this engine keeps the layers of {held.needs.image} packed in another way: {path} does not add up to"
            f" {held.name} with them",
            hint=f"export all of it, without --since: `builder export-image {held.name} FILE`",
        )
    raise TransferError(f"{path} is damaged: its image is not the one that its record tells of")


def _told(pieces: Iterator[bytes], size: int, what: str, report: Report) -> Iterator[bytes]:
    tell, came = delayed_progress(report, what), 0
    for piece in pieces:
        yield piece
        came += len(piece)
        tell(came, size)


def _adopt(workspace: Workspace, held: Archive, job: WorkFolder) -> Lock:
    """Gives the loaded image the number that it has on the other machine; returns images.lock after it."""
    details = images.inspect(workspace.engine, job.tag)
    if details is None:
        raise ImageStateError(f"{held.name} was removed from the engine meanwhile", hint="run it again")
    with images_lock.transaction(workspace) as transaction:
        _refuse_other(workspace, transaction.lock, held)
        after = images_lock.with_reserved_slots(workspace.project, adopted(transaction.lock, held))
        transaction.place(held.name, Candidate(job.tag, job.directory, details.id))
        transaction.commit(after)
        return transaction.lock


def adopted(lock: Lock, held: Archive) -> Lock:
    """``lock`` with the number of the archive. Where nothing is current in its repository, the number is; the models
    that nothing serves are paired with it, and the pins of its build are taken where there are none."""
    after = merging.adopt(lock, replace(held.part, pins=_pins(held)))
    image = after.images[held.name.repository].numbers[held.name.number]
    if image.pruned:
        after = after.with_image(held.name, replace(image, pruned=None))
    if after.images[held.name.repository].current is None:
        after = after.with_repository(
            held.name.repository, after.images[held.name.repository].with_current(held.name.number)
        )
    return after


def _pins(held: Archive) -> dict[str, dict[str, Pins]]:
    """What the build directory keeps of the pins that the image was built with."""
    kept = held.build.get(RECORD)
    try:
        return reading.parse_bytes(kept.content, RECORD).pins if kept else {}
    except LockError:
        return {}
