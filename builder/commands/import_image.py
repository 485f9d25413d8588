"""The import-image command: adds a numbered image from a file that `export-image` wrote on another machine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import IO, TYPE_CHECKING

from builder.building import work_folder
from builder.distribution import archive, archive_reading
from builder.engine import image_archive, images
from builder.errors import ImageStateError, LockError, TransferError
from builder.events import Message, Report, delayed_progress
from builder.evidence import requirements, traveling
from builder.lock import merging, reading
from builder.numbered import build_directory, images_lock, reserved_slots
from builder.numbered.images_lock import RECORD, Candidate
from builder.plan import layout
from builder.storage import regular_file

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
    """The imported image. ``layers`` were read from the file, ``bytes`` in all; none where all of it was here
    ``already``. ``current`` is true if it is the current number; ``models`` are those that the import paired with
    it, ``evidence`` how many runs of others are new here."""

    image: ImageName
    already: bool
    layers: int
    bytes: int
    current: bool
    models: tuple[str, ...]
    evidence: int = 0


def run(workspace: Workspace, path: Path) -> ImportedImage:
    """Adds the number that the file holds: image, build directory, record. What is current or paired here stays so.

    Raises UsageError and TransferError for a file that cannot be read or is not whole; ImageStateError where the number
    has other content here. Nothing is changed then.
    """
    with archive_reading.opened(path) as (contents, file):
        work_folder.recover(workspace)
        lock = reading.of(workspace.project)
        _refuse_conflict(workspace, lock, contents)
        is_present = images.inspect(workspace.engine, str(contents.name)) is not None
        directory = build_directory.path_of(workspace.project, contents.name)
        if is_present and lock.image(contents.name) and directory.exists():
            return _with_evidence(workspace, path, contents, _imported(contents, lock, lock, already=True))
        with work_folder.create(workspace, contents.name.repository, contents.build) as job:
            if is_present:
                images.tag(workspace.engine, str(contents.name), job.tag)
            else:
                _load(workspace.engine, path, contents, file, job, workspace.report)
            after = _adopt(workspace, contents, job)
    return _with_evidence(workspace, path, contents, _imported(contents, lock, after, already=is_present))


def _with_evidence(workspace: Workspace, path: Path, contents: Archive, imported: ImportedImage) -> ImportedImage:
    """Keeps the evidence in the file, as that of others."""
    count = traveling.take(workspace.project, contents.name, contents.evidence, f"archive {path.name}")
    return replace(imported, evidence=count)


def _imported(contents: Archive, before: Lock, after: Lock, *, already: bool) -> ImportedImage:
    current = after.images[contents.name.repository].current == contents.name.number
    models = tuple(model for model in after.models_on(contents.name) if model not in before.models)
    layers = () if already else contents.image.layers
    return ImportedImage(contents.name, already, len(layers), sum(layer.size for layer in layers), current, models)


def _refuse_conflict(workspace: Workspace, lock: Lock, contents: Archive) -> None:
    """Raises ImageStateError where the number is another image in images.lock, in the engine or in builds/."""
    _refuse_recorded(lock, contents)
    details = images.inspect(workspace.engine, str(contents.name))
    if details is not None and images.fingerprint(details) != contents.fingerprint:
        raise ImageStateError(
            f"{contents.name} in this engine has other content than the one in the file: not overwritten",
            hint=f"`builder verify` says whose it is; `docker image rm {contents.name}` lets it go",
        )
    folder = build_directory.path_of(workspace.project, contents.name)
    if folder.exists() and contents.build and not _same(folder, contents):
        raise ImageStateError(
            f"{workspace.project.relative(folder)} is another build than the one in the file: not overwritten",
            hint="it belongs to an image of this project, or was changed: `git status` shows that",
        )


def _refuse_recorded(lock: Lock, contents: Archive) -> None:
    recorded = lock.image(contents.name)
    if recorded is not None and recorded.fingerprint != contents.fingerprint:
        raise ImageStateError(
            f"{contents.name} is another image here, built {recorded.built}: a number is never given to other content",
            hint="two machines that build need a repository each, or one images.lock: build it there anew as"
            " another number, and export that",
        )


def _same(folder: Path, contents: Archive) -> bool:
    """True if the build directory is that of the file. The part of images.lock in it may differ: it is no input."""
    try:
        existing = {
            file.relative_to(folder).as_posix(): regular_file.read(file, layout.LARGEST_FILE)
            for file in build_directory.files(folder)
        }
    except OSError:
        return False
    archived = {path: file.content for path, file in contents.build.items()}
    return {**existing, RECORD: b""} == {**archived, RECORD: b""}


def _load(endpoint: Endpoint, path: Path, contents: Archive, file: IO[bytes], job: WorkFolder, report: Report) -> None:
    """Loads the image into the engine under the temporary tag of the work folder. Raises TransferError where it is not
    the image that the file's record describes."""
    size, pieces = archive.load_stream(contents, file, path, job.tag)
    image_archive.load(endpoint, size, _with_progress(pieces, size, f"{contents.name}", report))
    details = images.inspect(endpoint, job.tag)
    if details is not None and images.fingerprint(details) == contents.fingerprint:
        return
    raise TransferError(f"{path} is damaged: its image is not the one that its record tells of")


def _with_progress(pieces: Iterator[bytes], size: int, what: str, report: Report) -> Iterator[bytes]:
    on_progress, loaded = delayed_progress(report, what), 0
    for piece in pieces:
        yield piece
        loaded += len(piece)
        on_progress(loaded, size)


def _adopt(workspace: Workspace, contents: Archive, job: WorkFolder) -> Lock:
    """Gives the loaded image the number that it has on the other machine; returns images.lock after it."""
    details = images.inspect(workspace.engine, job.tag)
    if details is None:
        raise ImageStateError(f"{contents.name} was removed from the engine meanwhile", hint="run it again")
    with images_lock.transaction(workspace) as transaction:
        _refuse_conflict(workspace, transaction.lock, contents)
        after = reserved_slots.added(workspace.project, _with_archive(workspace, transaction.lock, contents))
        candidate = Candidate(job.tag, job.directory, details.id, images.fingerprint(details))
        transaction.place(contents.name, candidate)
        transaction.commit(after)
        return transaction.lock


def _with_archive(workspace: Workspace, lock: Lock, contents: Archive) -> Lock:
    """`with_archive`, without first pairings that require evidence which the image lacks."""
    after = with_archive(lock, contents)
    waiting = {
        model
        for model in after.models_on(contents.name)
        if model not in lock.models
        and requirements.missing(workspace.project, after, contents.name, model, environ=workspace.environment)
    }
    if not waiting:
        return after
    for model in sorted(waiting):
        lacks = f"{contents.name} lacks what {model} requires, and does not serve it yet"
        workspace.report(Message(f"{lacks}: `builder pair {model} {contents.name}` says what is missing"))
    others = {model: paired for model, paired in contents.part.models.items() if model not in waiting}
    after = with_archive(lock, replace(contents, part=replace(contents.part, models=others)))
    repository = lock.images.get(contents.name.repository)
    if repository and repository.current:
        return after
    # As a build does: `latest` waits with the models.
    return after.with_repository(
        contents.name.repository, replace(after.images[contents.name.repository], current=None)
    )


def with_archive(lock: Lock, contents: Archive) -> Lock:
    """Returns ``lock`` with the number of the archive. The number becomes current where its repository has no current
    one; its models are paired with it where they have no pairing, and the pins of its build count where there are
    none."""
    after = merging.adopt(lock, replace(contents.part, pins=_pins(contents)))
    image = after.images[contents.name.repository].numbers[contents.name.number]
    if image.pruned:
        after = after.with_image(contents.name, replace(image, pruned=None))
    if after.images[contents.name.repository].current is None:
        after = after.with_repository(
            contents.name.repository, after.images[contents.name.repository].with_current(contents.name.number)
        )
    return after


def _pins(contents: Archive) -> dict[str, dict[str, Pins]]:
    """The pins that the image was built with, from its build directory."""
    record = contents.build.get(RECORD)
    try:
        return reading.parse_bytes(record.content, RECORD).pins if record else {}
    except LockError:
        return {}
