"""A numbered image can be built again from its build directory alone, whatever templates and mods are now."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from builder.base import files
from builder.base.errors import ImageStateError, LockError
from builder.base.events import Message
from builder.building import bake, work_folder
from builder.engine import images, installed
from builder.lock.checking import TAKE_BACK
from builder.numbers import adopted, build_directory
from builder.plan import plan_model

if TYPE_CHECKING:
    from builder.base.project import Project
    from builder.engine.client import Endpoint
    from builder.engine.images import ImageDetails
    from builder.engine.installed import ImageFile
    from builder.lock.model import ImageName, NumberedImage
    from builder.numbers.workspace import Workspace


Kind = Literal["time", "bytecode", "compiled", "package", "file"]
# What changes nothing that the image does: Python compares bytecode with its source.
HARMLESS: frozenset[Kind] = frozenset({"time", "bytecode"})

_PACKAGES = re.compile(r"/var/lib/(dpkg|apt)/|/usr/share/builder/distribution-packages$|\.dist-info/|\.egg-info/")
_NAME = re.compile(r"(?:^|-c )# (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class FileDifference:
    """A path in which two images differ; ``what`` says how."""

    path: str
    kind: Kind
    what: str


def of_files(endpoint: Endpoint, first: str, second: str, labels: Mapping[str, str]) -> tuple[FileDifference, ...]:
    """Compares all files of two images, a second for 100 to 200 MB. Raises ImageStateError where one is missing."""
    old = installed.image_file_listing(endpoint, first, labels)
    new = installed.image_file_listing(endpoint, second, labels)
    differences = (_difference(path, old.get(path), new.get(path)) for path in sorted(old.keys() | new.keys()))
    return tuple(filter(None, differences))


def differing_layers(endpoint: Endpoint, first: tuple[str, ...], second: ImageDetails) -> tuple[str, ...]:
    """The steps whose layers are other ones in ``second`` than the layers ``first``, lowest first; each by its name in
    the Dockerfile, or by the number of the layer."""
    steps = [each for each in images.history(endpoint, second) if not images.NO_LAYER.match(str(each["CreatedBy"]))]
    names = [_step_name(str(each["CreatedBy"])) for each in steps]
    below = len(second.layers) - len(names)
    return tuple(
        names[number - below] if number >= below >= 0 else f"layer {number + 1}"
        for number, layer in enumerate(second.layers)
        if layer not in first[number : number + 1]
    )


def _step_name(created_by: str) -> str:
    comment = _NAME.search(created_by)
    return comment[1] if comment else created_by.splitlines()[0][:60]


def _difference(path: str, old: ImageFile | None, new: ImageFile | None) -> FileDifference | None:
    if old is None or new is None:
        what = "only in the image built again" if old is None else "only in the first image"
        return FileDifference(path, _kind(path, old or new), what)
    modes = f"{old.mode:04o}", f"{new.mode:04o}"
    compared = (("type", old.kind, new.kind), ("mode", *modes), ("owner", old.owner, new.owner))
    if changes := [f"{name} {before} → {after}" for name, before, after in compared if before != after]:
        return FileDifference(path, "file", ", ".join(changes))
    if old.content != new.content:
        return FileDifference(path, _kind(path, new), "content")
    return FileDifference(path, "time", "time of change") if old.modified != new.modified else None


def _kind(path: str, file: ImageFile | None) -> Kind:
    if path.endswith(".pyc") and "/__pycache__/" in path:
        return "bytecode"
    if file and file.is_compiled:
        return "compiled"
    return "package" if _PACKAGES.search(path) else "file"


# The name of a definition stands in options of buildx that have several fields.
_LARGEST_LAYERS = 1 << 20


@dataclass(frozen=True)
class RebuiltImage:
    """A numbered image that was built again, under a temporary ``tag``; ``log`` is the file of the whole log,
    ``labels`` those of containers that work with it."""

    tag: str
    fingerprint: str
    details: images.ImageDetails
    log: str
    labels: Mapping[str, str]


def recorded_layers(project: Project, name: ImageName) -> tuple[str, ...]:
    """The layers of a number as it was built, lowest first; none where its build directory does not tell."""
    with suppress(OSError, UnicodeDecodeError):
        path = build_directory.path_of(project, name) / plan_model.LAYERS
        return tuple(files.read_plain_file(path, _LARGEST_LAYERS).decode().split())
    return ()


def require_built_here(name: ImageName, recorded: NumberedImage) -> None:
    """Raises ImageStateError for an adopted image, of which nothing here tells how it was built."""
    if recorded.adopted:
        raise ImageStateError(
            f"{name} was adopted from {recorded.adopted.image}: it was built elsewhere, and nothing here tells how",
            hint=adopted.way_back(name, recorded),
        )


@contextmanager
def rebuilt_image(
    workspace: Workspace,
    name: ImageName,
    recorded: NumberedImage,
    compilers: int | None = None,
) -> Iterator[RebuiltImage]:
    """Builds ``builds/REPOSITORY/NUMBER`` again; the image is removed at the end of the block, unless it was given
    another tag. Steps that BuildKit's cache still has are not repeated; ``compilers`` as for `bake.bake_images`. The
    caller checks once that the engine can build (`versions.require_supported`). Anybody may have written the directory:
    its plan gives the targets again, and a copy of the files that a build has is baked. Raises ImageStateError
    where the build directory is gone, or the image was built elsewhere; FileProblemsError where its plan or its bake
    file is damaged or not as this program writes it; BuildFailedError where a step fails."""
    require_built_here(name, recorded)
    if re.search('[,"]', recorded.definition):
        raise LockError(f"images.lock: {name} cannot be of a definition called {recorded.definition!r}", hint=TAKE_BACK)
    path = build_directory.path_of(workspace.project, name)
    if not path.is_dir():
        raise ImageStateError(
            f"{workspace.project.relative(path)} is gone: {name} cannot be built again", hint=build_directory.HINT
        )
    directory = build_directory.read_build_directory(workspace.project, name)
    targets = build_directory.bake_targets_of(directory, recorded.platform)
    files = build_directory.read_build_files(directory)
    work_folder.remove_stale(workspace)
    with work_folder.create(workspace, name.repository, files) as work:
        workspace.report(Message(f"building {name} again from {directory.shown}"))
        job = bake.BakeJob(work.directory, recorded.definition, targets, work)
        _, log = bake.bake_images(workspace, [job], compilers)
        details = images.inspect_image(workspace.engine, work.tag)
        if details is None:
            raise ImageStateError("the image was removed from the engine while it was being built")
        log_file = workspace.project.relative(log)
        yield RebuiltImage(work.tag, images.fingerprint(details), details, log_file, work.labels)
