"""The export-image command: writes a numbered image to a file, for machines without a common network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.distribution import archive, archived_build, foreign_files, registry
from builder.engine import image_archive, images
from builder.engine.registry import oci_layout
from builder.errors import FileProblemsError, TransferError
from builder.events import Message, Report, delayed_progress
from builder.evidence import traveling
from builder.lock import reading
from builder.numbered import build_directory, build_files, names
from builder.plan import layout
from builder.plan.model import StagedFile
from builder.storage import large_file, regular_file, tar_stream

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from builder.engine.client.endpoint import Endpoint
    from builder.engine.registry.oci_layout import Descriptor, Manifest
    from builder.lock.model import ImageName, NumberedImage
    from builder.project import Project
    from builder.storage.tar_stream import Writer
    from builder.workspace import Workspace


@dataclass(frozen=True)
class ExportedArchive:
    """The image that was written, into a file of ``size`` bytes with ``layers`` layers."""

    image: ImageName
    size: int
    layers: int


def run(workspace: Workspace, text: str, path: Path, *, replace: bool) -> ExportedArchive:
    """Writes the image called ``text`` into the file ``path``.

    Raises UsageError for an unknown number and for a file that exists, unless ``replace``; ImageStateError where the
    engine lacks the image; TransferError where the file could not be written. There is no file then.
    """
    lock = reading.of(workspace.project)
    name, recorded = names.numbered(workspace.project, lock, text)
    registry.require_present(workspace.engine, name, recorded)
    build = _build_files(workspace.project, name, recorded, workspace.report)
    evidence = _evidence(workspace, name, recorded)
    with large_file.written(path, replace=replace) as file:
        writer = tar_stream.Writer(file)
        writer.add(oci_layout.LAYOUT, oci_layout.LAYOUT_CONTENT)
        top, image = _write_blobs(workspace.engine, name, writer, workspace.report)
        for member, small in oci_layout.index_files(top, image, str(name)).items():
            writer.add(member, small)
        archive.write_metadata(writer, name, archive.lock_excerpt(lock, name), build, top, evidence)
        size = writer.finish()
    return ExportedArchive(name, size, len(image.layers))


def _evidence(workspace: Workspace, name: ImageName, recorded: NumberedImage) -> dict[str, str]:
    """The runs of the number that another machine takes; the user is told of files that are none."""
    runs, problems = traveling.of_image(workspace.project, name, recorded.fingerprint)
    for problem in problems:
        workspace.report(Message(f"{problem}: it stays behind"))
    return traveling.files(runs)


def _build_files(project: Project, name: ImageName, recorded: NumberedImage, report: Report) -> dict[str, StagedFile]:
    """The files of the number's build directory that another machine takes; the user is told of those left out."""
    folder = build_directory.path_of(project, name)
    if not folder.is_dir():
        report(Message(f"the build directory of {name} is gone: it goes without"))
        return {}
    try:
        files = _recorded_files(project, name, recorded)
    except (FileProblemsError, OSError) as error:
        report(Message(f"the build directory of {name} is damaged, and goes without: {error}"))
        return {}
    for path in [path for path in files if foreign_files.unwelcome(path)]:
        report(Message(f"{project.relative(folder / path)} goes without: {foreign_files.unwelcome(path)}"))
        del files[path]
    if fault := archived_build.fault(name, recorded, files):
        report(Message(f"the build directory of {name} goes without: {fault}"))
        return {}
    return files


def _recorded_files(project: Project, name: ImageName, recorded: NumberedImage) -> dict[str, StagedFile]:
    if recorded.adopted is None:
        return build_files.read(build_directory.read(project, name))
    folder = build_directory.path_of(project, name)
    present = [file for file in (layout.ADOPTED, layout.RECORD) if (folder / file).exists()]
    return {file: StagedFile(regular_file.read(folder / file, layout.LARGEST_FILE)) for file in present}


def _write_blobs(endpoint: Endpoint, name: ImageName, writer: Writer, report: Report) -> tuple[Descriptor, Manifest]:
    """Writes every blob of the image as the engine saves it, each compared with its digest."""
    details = images.inspect(endpoint, str(name))
    total = details.size if details else 0
    on_progress = delayed_progress(report, str(name))

    def take(digest: str, size: int, pieces: Iterator[bytes]) -> None:
        if writer.stream(oci_layout.blob_name(digest), size, pieces) != digest:
            raise ValueError(f"the engine's content of {digest} is another")

    try:
        return image_archive.save(endpoint, str(name), take, lambda size: on_progress(size, max(size, total)))
    except (ValueError, KeyError, TypeError) as error:
        raise TransferError(f"{name} was not written: {error}", hint="try again") from None
