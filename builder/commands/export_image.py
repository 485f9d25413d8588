"""The export-image command: writes a numbered image to a file, for machines without a common network."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.building import work_folder
from builder.distribution import archive, archived_build, foreign_files, registry
from builder.distribution.archive import RequiredImage
from builder.engine import image_archive, images
from builder.engine.client import versions
from builder.engine.registry import oci_layout, push_receiver, tunnel
from builder.errors import FileProblemsError, TransferError, UsageError
from builder.events import Message, Report, delayed_progress
from builder.evidence import traveling
from builder.lock import reading
from builder.numbered import build_directory, build_files, names
from builder.plan import layout
from builder.plan.model import StagedFile
from builder.storage import large_file, regular_file, tar_stream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from collections.abc import Set as AbstractSet
    from pathlib import Path

    from builder.building.work_folder import WorkFolder
    from builder.engine.client.endpoint import Endpoint
    from builder.engine.registry.oci_layout import Descriptor, Manifest
    from builder.engine.registry.push_receiver import PushReceiver
    from builder.engine.registry.transfer import LayerProgress
    from builder.lock.model import ImageName, NumberedImage
    from builder.project import Project
    from builder.storage.tar_stream import Writer
    from builder.workspace import Workspace


@dataclass(frozen=True)
class ExportedArchive:
    """The image that was written, into a file of ``size`` bytes with ``layers`` layers, and the image that the other
    machine has to have."""

    image: ImageName
    size: int
    layers: int
    needs: ImageName | None


@dataclass(frozen=True)
class _WrittenContent:
    """The part of the image that was written: the layers among ``blobs`` are in the file, the others are left out."""

    top: Descriptor
    image: Manifest
    blobs: frozenset[str]


def run(workspace: Workspace, text: str, path: Path, since: int | None, *, replace: bool) -> ExportedArchive:
    """Writes the image called ``text`` into the file ``path``; with ``since``, without the layers that this number of
    the same repository has.

    Raises UsageError for an unknown number and for a file that exists, unless ``replace``; ImageStateError where the
    engine lacks an image; TransferError where the file could not be written. There is no file then.
    """
    lock = reading.of(workspace.project)
    name, recorded = names.numbered(workspace.project, lock, text)
    registry.require_present(workspace.engine, name, recorded)
    needs = None
    if since is not None:
        other, before = names.numbered(workspace.project, lock, f"{name.repository}:{since}")
        if other == name:
            raise UsageError(
                f"{name} cannot be left out of itself", hint="--since takes a number that the other machine has"
            )
        registry.require_present(workspace.engine, other, before)
        needs = RequiredImage(other, before.fingerprint)
    build = _build_files(workspace.project, name, recorded, workspace.report)
    evidence = _evidence(workspace, name, recorded)
    work_folder.remove_stale(workspace)
    with large_file.written(path, replace=replace) as file:
        writer = tar_stream.Writer(file)
        writer.add(oci_layout.LAYOUT, oci_layout.LAYOUT_CONTENT)
        with work_folder.create(workspace, name.repository, {}) as job:
            content = _write(workspace.engine, job, name, needs.image if needs else None, writer, workspace.report)
        if needs is None:
            for member, small in oci_layout.index_files(content.top, content.image, str(name)).items():
                writer.add(member, small)
        archive.write_metadata(writer, name, archive.lock_excerpt(lock, name), build, needs, content.top, evidence)
        size = writer.finish()
    layers = sum(layer.digest in content.blobs for layer in content.image.layers)
    return ExportedArchive(name, size, layers, needs.image if needs else None)


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


def _write(
    endpoint: Endpoint, job: WorkFolder, name: ImageName, before: ImageName | None, writer: Writer, report: Report
) -> _WrittenContent:
    begun: set[str] = set()
    written: set[str] = set()
    lock = threading.Lock()

    def take(digest: str, size: int, pieces: Iterator[bytes]) -> None:
        with lock:
            if oci_layout.digest_of(oci_layout.blob_name(digest)) is None or digest in begun:
                raise ValueError(f"the engine hands over {digest} as a blob")
            begun.add(digest)
        if writer.stream(oci_layout.blob_name(digest), size, pieces) != digest:
            raise ValueError(f"the engine's content of {digest} is another")
        written.add(digest)

    try:
        if versions.store(endpoint) == "classic":
            top, manifests = _saved(endpoint, name, before, take, report)
        else:
            top, manifests = _pushed(endpoint, job, name, before, take, report)
            for digest, content in manifests.items():
                take(digest, len(content), iter([content]))
        image = oci_layout.only_image(top, manifests.__getitem__)
        may_lack = {layer.digest for layer in image.layers} if before else set()
        _require_all(begun, written, oci_layout.blob_sizes(top, manifests.__getitem__).keys(), may_lack)
    except (ValueError, KeyError, TypeError) as error:
        raise TransferError(f"{name} was not written: {error}", hint="try again") from None
    return _WrittenContent(top, image, frozenset(written))


def _require_all(
    begun: AbstractSet[str], written: AbstractSet[str], referenced: AbstractSet[str], may_lack: AbstractSet[str]
) -> None:
    """Raises ValueError unless exactly the blobs of the image were written, each as a whole."""
    if wrong := sorted((begun - written) | (begun - referenced)):
        raise ValueError(f"the engine handed over {wrong[0]} in part, or without need")
    if lacking := sorted(referenced - written - may_lack):
        raise ValueError(f"the engine did not hand over {lacking[0]}")


def _saved(
    endpoint: Endpoint, name: ImageName, before: ImageName | None, take: push_receiver.ReceiveBlob, report: Report
) -> tuple[Descriptor, dict[str, bytes]]:
    """Reads the image from the classic store, which names a layer by its uncompressed content."""
    details = images.inspect(endpoint, str(name))
    other = images.inspect(endpoint, str(before)) if before else None
    total = details.size if details else 0
    on_progress = delayed_progress(report, str(name))
    left_out = set(other.layers) if other else set()
    return image_archive.save(
        endpoint, str(name), left_out.__contains__, take, lambda size: on_progress(size, max(size, total))
    )


def _pushed(
    endpoint: Endpoint,
    job: WorkFolder,
    name: ImageName,
    before: ImageName | None,
    take: push_receiver.ReceiveBlob,
    report: Report,
) -> tuple[Descriptor, dict[str, bytes]]:
    """Reads the image from the containerd store. Only a manifest names its compressed layers: that of ``before`` is
    read first."""
    left_out: set[str] = set()
    if before:
        with push_receiver.serving(lambda _: True, take) as receiver:
            top = _push(endpoint, job, before, receiver, lambda _: None)
        left_out = {layer.digest for layer in oci_layout.only_image(top, receiver.get).layers}
    on_progress = delayed_progress(report, str(name))
    with push_receiver.serving(left_out.__contains__, take) as receiver:
        top = _push(endpoint, job, name, receiver, lambda amount: on_progress(amount.current, amount.total))
    return top, receiver.manifests


def _push(
    endpoint: Endpoint,
    job: WorkFolder,
    name: ImageName,
    receiver: PushReceiver,
    on_progress: Callable[[LayerProgress], None],
) -> Descriptor:
    details = images.inspect(endpoint, str(name))
    with tunnel.to_loopback(endpoint, receiver.port) as port:
        target = registry.Registry(f"127.0.0.1:{port}", private=True)
        reference = f"{target.repository(name)}:{name.number}"
        job.note_extra_tag(reference)
        try:
            registry.push_under_name(endpoint, target, name, str(name), reference, on_progress)
        except TransferError:
            if receiver.errors:
                raise receiver.errors[0] from None
            raise
    if receiver.top is None or details is None or receiver.top.digest != details.id:
        raise ValueError("the engine handed over another image")
    return receiver.top
