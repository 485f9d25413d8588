"""Commands that move a numbered image between machines as a file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING

from builder.base import files, tar_stream, words
from builder.base.errors import FileProblemsError, ImageStateError, LockError, TransferError
from builder.base.events import Message, Report, delayed_progress
from builder.base.values import dataclass, replace
from builder.building import work_folder
from builder.engine import archives, images
from builder.evidence import requirements
from builder.lock import layout, lock_file, merging
from builder.moving import archive, traveling_caches
from builder.numbers import adopted, build_directory, images_lock, status
from builder.plan import plan_model
from builder.plan.plan_model import StagedFile

if TYPE_CHECKING:
    from builder.base.project import Project
    from builder.base.tar_stream import Writer
    from builder.building.work_folder import WorkFolder
    from builder.engine.archives import Descriptor, Manifest
    from builder.engine.client import Endpoint
    from builder.lock.model import ImageName, Lock, NumberedImage, Pins
    from builder.moving.archive import Archive
    from builder.numbers.workspace import Workspace


# The export-image command: writes a numbered image to a file, for machines without a common network.


def export_image(
    workspace: Workspace, text: str, path: Path, *, replace: bool, with_caches: bool = False
) -> tuple[ImageName, int, int]:
    """Writes the image called ``text`` to the file ``path``. ``with_caches`` adds the compile caches that its next
    start here would use. Returns the image's name, and the bytes and layers of the file. Raises UsageError if the
    number is unknown, or if the file exists (unless ``replace``). Raises ImageStateError if the engine lacks the image.
    Raises TransferError if the export fails; no file remains."""
    lock = lock_file.read_project_lock(workspace.project)
    name, recorded = status.named_number(workspace.project, lock, text)
    adopted.require_present(workspace.engine, name, recorded)
    build = _build_files(workspace.project, name, recorded, workspace.report)
    caches = None
    if with_caches:
        caches = traveling_caches.find_traveling_caches(workspace.project, workspace.environment, name, recorded)
        nothing = f"no compile caches to export: {name} has not compiled anything here yet"
        workspace.report(Message(f"with {caches[0].text}" if caches else nothing))
    with files.written_large_file(path, replace=replace) as file:
        writer = tar_stream.Writer(file)
        writer.add(archives.LAYOUT, archives.LAYOUT_CONTENT)
        top, image = _write_blobs(workspace.engine, name, writer, workspace.report)
        for member, small in archives.index_files(top, image, str(name)).items():
            writer.add(member, small)
        archive.write_metadata(writer, name, archive.lock_excerpt(lock, name), build, top, caches)
        size = writer.finish()
    return name, size, len(image.layers)


def _build_files(project: Project, name: ImageName, recorded: NumberedImage, report: Report) -> dict[str, StagedFile]:
    """The files of the number's build directory. Empty, with a reported reason, if another machine would reject
    them."""
    folder = build_directory.path_of(project, name)
    try:
        if recorded.adopted is None:
            contents = build_directory.read_build_files(build_directory.read_build_directory(project, name))
        else:
            present = [file for file in (plan_model.ADOPTED, plan_model.RECORD) if (folder / file).exists()]
            largest = plan_model.LARGEST_FILE
            contents = {file: StagedFile(files.read_plain_file(folder / file, largest)) for file in present}
        fault = archive.build_fault(name, recorded, contents)
    except (FileProblemsError, OSError) as error:
        fault = str(error)
    if fault:
        report(Message(f"the archive will not contain the build directory of {name}: {fault}"))
    return {} if fault else contents


def _write_blobs(endpoint: Endpoint, name: ImageName, writer: Writer, report: Report) -> tuple[Descriptor, Manifest]:
    """Writes every blob of the image from the engine, and compares each with its digest."""
    details = images.inspect_image(endpoint, str(name))
    total = details.size if details else 0
    on_progress = delayed_progress(report, str(name))

    def take(digest: str, size: int, pieces: Iterator[bytes]) -> None:
        if writer.stream(archives.blob_name(digest), size, pieces) != digest:
            raise ValueError(f"the engine has different content for {digest}")

    try:
        return archives.save_archive(endpoint, str(name), take, lambda size: on_progress(size, max(size, total)))
    except (ValueError, KeyError, TypeError) as error:
        message = f"{name} was not exported: the engine sent an unexpected archive ({error})"
        raise TransferError(message, hint="run the command again") from None


# The import-image command: adds a numbered image from a file of `export-image` on another machine.


@dataclass(frozen=True)
class ImportedImage:
    """The imported image. ``layers`` and ``bytes`` count what was read from the file: 0 if the engine had the image
    ``already``. ``lacked`` is true if images.lock lacked the number. ``models`` are newly paired with it."""

    image: ImageName
    already: bool
    layers: int
    bytes: int
    current: bool
    models: tuple[str, ...]
    lacked: bool


def import_image(workspace: Workspace, path: Path) -> ImportedImage:
    """Adds the number in the file, with its image, build directory and record. Existing current numbers and pairings
    stay. Raises UsageError or TransferError if the file is unreadable or incomplete, ImageStateError if the number has
    different content here. After an error, nothing is changed."""
    with archive.opened(path) as (contents, file):
        name = contents.name
        work_folder.recover(workspace)
        before = after = lock_file.read_project_lock(workspace.project)
        _refuse_conflict(workspace, before, contents)
        already = images.inspect_image(workspace.engine, str(name)) is not None
        if not (already and before.image(name) and build_directory.path_of(workspace.project, name).exists()):
            with work_folder.create(workspace, name.repository, contents.build) as job:
                if already:
                    images.tag_image(workspace.engine, str(name), job.tag)
                else:
                    _load(workspace.engine, path, contents, file, job, workspace.report)
                after = _adopt(workspace, contents, job)
        if contents.caches:
            inside = contents.compiled
            traveling_caches.take(workspace, name, contents.caches, lambda path: tar_stream.pieces(file, inside[path]))
    layers = () if already else contents.image.layers
    size = sum(layer.size for layer in layers)
    current = after.images[name.repository].current == name.number
    models = tuple(model for model in after.models_on(name) if model not in before.models)
    return ImportedImage(name, already, len(layers), size, current, models, before.image(name) is None)


def _refuse_conflict(workspace: Workspace, lock: Lock, contents: Archive) -> None:
    """Raises ImageStateError if the number means a different image in images.lock, in the engine or in builds/."""
    recorded = lock.image(contents.name)
    if recorded is not None and recorded.fingerprint != contents.fingerprint:
        raise ImageStateError(
            f"{contents.name} is a different image here, built {recorded.built}: a number never changes its content",
            hint="share one images.lock between the machines, or use a different repository on each; then build the"
            " image again on the other machine, and export the new number",
        )
    details = images.inspect_image(workspace.engine, str(contents.name))
    if details is not None and images.fingerprint(details) != contents.fingerprint:
        message = f"{contents.name} in this engine differs from the image in the archive, and was not overwritten"
        hint = f"`{adopted.frees(contents.name)}` frees the name; then import again"
        raise ImageStateError(message, hint=hint)
    folder = build_directory.path_of(workspace.project, contents.name)
    if folder.exists() and contents.build and not _same(folder, contents):
        message = f"{workspace.project.relative(folder)} differs from the build in the archive, and was not overwritten"
        hint = (
            "`git status` shows whether the folder was edited: restore it with git, or move it away; then import again"
        )
        raise ImageStateError(message, hint=hint)


def _same(folder: Path, contents: Archive) -> bool:
    """True if the build directory equals the build directory in the file. Its excerpt of images.lock may differ,
    because it is not an input of the build."""
    try:
        existing = {
            file.relative_to(folder).as_posix(): files.read_plain_file(file, plan_model.LARGEST_FILE)
            for file in build_directory.build_directory_files(folder)
        }
    except OSError:
        return False
    archived = {path: file.content for path, file in contents.build.items()}
    return {**existing, images_lock.RECORD: b""} == {**archived, images_lock.RECORD: b""}


def _load(endpoint: Endpoint, path: Path, contents: Archive, file: IO[bytes], job: WorkFolder, report: Report) -> None:
    """Loads the image into the engine under the temporary tag of the work folder. Raises TransferError if the image
    differs from the record in the file."""
    size, pieces = archive.load_stream(contents, file, path, job.tag)
    on_progress = delayed_progress(report, str(contents.name))

    def with_progress() -> Iterator[bytes]:
        loaded = 0
        for piece in pieces:
            yield piece
            loaded += len(piece)
            on_progress(loaded, size)

    archives.load_archive(endpoint, size, with_progress())
    details = images.inspect_image(endpoint, job.tag)
    if details is None or images.fingerprint(details) != contents.fingerprint:
        hint = "copy the archive again, or export the number again"
        raise TransferError(f"{path} is damaged: its image does not match its record", hint=hint)


def _adopt(workspace: Workspace, contents: Archive, job: WorkFolder) -> Lock:
    """Gives the loaded image its number from the other machine; returns the new images.lock."""
    details = images.inspect_image(workspace.engine, job.tag)
    if details is None:
        message = f"another program removed {contents.name} from the engine during the import"
        raise ImageStateError(message, hint="run the command again")
    with images_lock.transaction(workspace) as transaction:
        _refuse_conflict(workspace, transaction.lock, contents)
        after = _with_archive(workspace, transaction.lock, contents)
        transaction.place(contents.name, job.tag, job.directory, details.id, images.fingerprint(details))
        transaction.commit(after)
        return transaction.lock


def _with_archive(workspace: Workspace, lock: Lock, contents: Archive) -> Lock:
    """Returns ``lock`` with the number of the archive. A model without a pairing is paired with the number if the
    number has the required evidence. The number becomes current if its repository has no current number and no model
    lacks evidence. Pins of the build are used only where ``lock`` has none."""
    name = contents.name
    after = merging.adopt(lock, replace(contents.part, pins=_pins(contents)))
    after = after.with_image(name, replace(after.images[name.repository].numbers[name.number], pruned=None))
    waiting = {
        model
        for model in after.models_on(name)
        if model not in lock.models
        and requirements.missing(workspace.project, after, name, model, environ=workspace.environment)
    }
    for model in sorted(waiting):
        lacks = f"{name} lacks what {model} requires, so it does not serve that model yet"
        workspace.report(Message(f"{lacks}: `builder pair {words.shell_word(model)} {name}` says what is missing"))
    after = replace(after, models={model: paired for model, paired in after.models.items() if model not in waiting})
    if after.images[name.repository].current or waiting:  # `latest` also waits, as after a build
        return after
    return after.with_current(name)


def _pins(contents: Archive) -> dict[str, dict[str, Pins]]:
    record = contents.build.get(images_lock.RECORD)

    def load(_path: str, digest: str) -> bytes | None:
        file = contents.build.get(layout.name_of_copy(digest))
        return file.content if file else None

    try:
        return lock_file.parse_bytes(record.content, images_lock.RECORD, load).pins if record else {}
    except LockError:
        return {}
