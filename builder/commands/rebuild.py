"""The rebuild command builds a number again from its build directory, and compares the layers.

It does not read templates and mods, which may have changed."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from builder.base import files
from builder.base.errors import BuildFailedError, ImageStateError, LockError, UsageError
from builder.base.events import Message
from builder.base.values import dataclass, replace
from builder.building import bake, work_folder
from builder.definitions.image import BUILD_JOBS, build_jobs
from builder.engine import images, machine
from builder.lab import changes
from builder.lock import lock_file
from builder.lock.checking import TAKE_BACK
from builder.numbers import adopted, build_directory, images_lock, status
from builder.plan import plan_model

if TYPE_CHECKING:
    from builder.engine.client import Endpoint
    from builder.lock.model import ImageName, NumberedImage
    from builder.numbers.workspace import Workspace


_NAME = re.compile(r"(?:^|-c )# (.+)$", re.MULTILINE)
_LARGEST_LAYERS = 1 << 20


@dataclass(frozen=True)
class Rebuilt:
    """The result of a rebuild. ``missing`` is true if the engine did not have the number; with the ``same`` content, it
    got its tag back. Other content has the tag ``kept``, and ``layers`` are the steps that differ."""

    image: ImageName
    same: bool
    missing: bool
    fingerprint: str
    recorded: str
    seconds: float
    log: str
    kept: str = ""
    layers: tuple[str, ...] = ()


def rebuild_image(workspace: Workspace, text: str, settings: Mapping[str, str] | None = None) -> Rebuilt:
    """Builds the image called ``text`` from ``builds/REPOSITORY/NUMBER`` only, not from templates and mods.
    ``settings`` accepts only the number of jobs. If the content equals the record, a missing number gets its tag back.
    Different content gets the tag ``REPOSITORY:N-rebuilt``.

    Raises ImageStateError if the build directory is gone, or if the image was adopted. Raises FileProblemsError if the
    build directory is damaged, or does anything that builds of this program never do. Raises BuildFailedError if a step
    fails."""
    started = time.monotonic()
    if other := [name for name in settings or {} if name != BUILD_JOBS]:
        hint = "`builder build` accepts every setting"
        raise UsageError(f"`--set {other[0]}` would make a different image", hint=hint)
    images_lock.recover_transaction(workspace)  # if a killed run has set the tag, no later step recovers
    lock = lock_file.read_project_lock(workspace.project)
    name, recorded = status.named_number(workspace.project, lock, text)
    with _built_again(workspace, name, recorded, build_jobs(settings or {})) as (tag, details, log):
        fingerprint = images.fingerprint(details)
        same = fingerprint == recorded.fingerprint
        missing = images.inspect_image(workspace.engine, str(name)) is None
        if same and missing:
            images_lock.restore_tag(workspace, name, tag)
        seconds = time.monotonic() - started
        result = Rebuilt(name, same, missing, fingerprint, recorded.fingerprint, seconds, log)
        if same:
            return result
        kept = f"{name}-rebuilt"
        images.tag_image(workspace.engine, tag, kept)
        layers: tuple[str, ...] = ()  # build directories of earlier releases do not record them
        with suppress(OSError, UnicodeDecodeError):
            path = build_directory.path_of(workspace.project, name) / plan_model.LAYERS
            layers = tuple(files.read_plain_file(path, _LARGEST_LAYERS).decode().split())
        differing = _differing_layers(workspace.engine, layers, details) if layers else ()
        return replace(result, kept=kept, layers=differing)


@contextmanager
def _built_again(
    workspace: Workspace, name: ImageName, recorded: NumberedImage, compilers: int | None
) -> Iterator[tuple[str, images.ImageDetails, str]]:
    """Builds a number again. Yields the temporary tag of the image, its details and the log file. At the end of the
    block, the image is removed unless it has another tag. The build directory is untrusted: its plan gives the targets,
    and a copy of its files is baked."""
    if recorded.adopted:
        message = f"{name} was adopted from {recorded.adopted.image}: this project does not record how it was built"
        hint = adopted.way_back(name, recorded)
        raise ImageStateError(message, hint=hint)
    if re.search('[,"]', recorded.definition):  # buildx options with several fields contain the name
        raise LockError(
            f"images.lock: the definition of {name}, {recorded.definition!r}, contains a comma or quotation mark,"
            " which is not allowed",
            hint=TAKE_BACK,
        )
    path = build_directory.path_of(workspace.project, name)
    if not path.is_dir():
        hint = build_directory.HINT
        raise ImageStateError(f"{workspace.project.relative(path)} is missing: {name} cannot be built again", hint=hint)
    machine.require_supported(workspace.engine)
    directory = build_directory.read_build_directory(workspace.project, name)
    targets = build_directory.bake_targets_of(directory, recorded.platform)
    build_files = build_directory.read_build_files(directory)
    work_folder.remove_stale(workspace)
    with work_folder.create(workspace, name.repository, build_files) as work:
        workspace.report(Message(f"building {name} again from {directory.shown}"))
        job = bake.BakeJob(recorded.definition, targets, work)
        try:
            _, log = bake.bake_images(workspace, [job], compilers)
        except BuildFailedError as error:
            if edits := tuple(changes.build_directory_edits(directory, recorded)):
                back = f"`git checkout HEAD -- {directory.shown}` restores the committed files"
                error.hint = f"{directory.shown} has changed since the build: {', '.join(edits)}. {back}"
            raise
        details = images.inspect_image(workspace.engine, work.tag)
        if details is None:
            message = f"another program removed the image of {name} from the engine during the build"
            hint = "run the command again"
            raise ImageStateError(message, hint=hint)
        yield work.tag, details, workspace.project.relative(log)


def _differing_layers(endpoint: Endpoint, first: tuple[str, ...], second: images.ImageDetails) -> tuple[str, ...]:
    """The steps whose layers in ``second`` differ from the layers ``first``, the lowest first. Each step has its name
    in the Dockerfile, or else the number of its layer."""
    steps = [str(each["CreatedBy"]) for each in images.history(endpoint, second)]
    names = [
        comment[1] if (comment := _NAME.search(step)) else step.splitlines()[0][:60]
        for step in steps
        if not images.NO_LAYER.match(step)
    ]
    below = len(second.layers) - len(names)
    return tuple(
        names[number - below] if number >= below >= 0 else f"layer {number + 1}"
        for number, layer in enumerate(second.layers)
        if layer not in first[number : number + 1]
    )
