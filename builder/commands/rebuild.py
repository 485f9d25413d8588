"""The rebuild command builds a number again from its build directory alone, and compares the content.

Templates and mods may have changed since."""

from __future__ import annotations

import re
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from builder.base import files
from builder.base.errors import (
    BuildFailedError,
    FileProblemsError,
    ImageContentsError,
    ImageStateError,
    LockError,
    UsageError,
)
from builder.base.events import Message, task
from builder.building import bake, work_folder
from builder.definitions.image import BUILD_JOBS, build_jobs
from builder.engine import images, installed, versions
from builder.lock import lock_file
from builder.lock.kinds import TAKE_BACK
from builder.numbers import adopted, build_directory, images_lock, status
from builder.plan import plan_model

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from builder.base.project import Project
    from builder.engine.client import Endpoint
    from builder.engine.images import ImageDetails
    from builder.engine.installed import ImageFile
    from builder.evidence.store import Proof
    from builder.lock.model import ImageName, Lock, NumberedImage
    from builder.numbers.workspace import Workspace


Kind = Literal["time", "bytecode", "compiled", "package", "file"]

_PACKAGES = re.compile(r"/var/lib/(dpkg|apt)/|/usr/share/builder/distribution-packages$|\.dist-info/|\.egg-info/")
_NAME = re.compile(r"(?:^|-c )# (.+)$", re.MULTILINE)
_LARGEST_LAYERS = 1 << 20


@dataclass(frozen=True)
class FileDifference:
    """A path in which two images differ; ``what`` says how."""

    path: str
    kind: Kind
    what: str


@dataclass(frozen=True)
class Rebuilt:
    """The result of a rebuild. ``restored`` is true if the number was missing from the engine and has its tag again.

    If the content is not ``same``: the image is ``kept`` under that tag, and ``layers`` names the steps whose layers
    differ; ``differences`` are by path, None if the engine lacks the first image; ``proofs`` are for the models with
    which the number was proven. ``statement`` is the file in which this machine witnesses the same content.
    """

    image: ImageName
    same: bool
    restored: bool
    fingerprint: str
    recorded: str
    seconds: float
    log: str
    kept: str = ""
    layers: tuple[str, ...] = ()
    differences: tuple[FileDifference, ...] | None = None
    proofs: tuple[Proof, ...] = ()
    statement: str = ""


@dataclass(frozen=True)
class RebuiltImage:
    """A numbered image that was built again, under a temporary ``tag``; ``log`` is the file of the whole log,
    ``labels`` those of containers that work with it."""

    tag: str
    details: ImageDetails
    log: str
    labels: Mapping[str, str]


def rebuild_image(
    workspace: Workspace,
    text: str,
    settings: Mapping[str, str] | None = None,
    *,
    witness: bool = False,
    key: Path | None = None,
) -> Rebuilt:
    """Builds the image called ``text`` from ``builds/REPOSITORY/NUMBER`` alone, not from the templates and mods; of
    ``settings`` only the number of jobs may differ from those that the number was built with.

    A number that is missing gets its tag again if the content is the recorded one. Other content is kept under the tag
    ``REPOSITORY:N-rebuilt``, compared with the first image, and proven if the number was. With ``witness`` this machine
    states the same content in evidence/, signed with the SSH ``key``, if given.

    Raises ImageStateError if the build directory is gone, or the image was adopted; FileProblemsError if it is damaged,
    or would do what no build of this program does; BuildFailedError if a step fails.
    """
    started = time.monotonic()
    if other := [name for name in settings or {} if name != BUILD_JOBS]:
        raise UsageError(f"`--set {other[0]}` would make another image", hint="`builder build` makes it")
    images_lock.recover_transaction(workspace)  # it may write nothing itself, where a killed one had tagged the number
    lock = lock_file.read_project_lock(workspace.project)
    name, recorded = status.named_number(workspace.project, lock, text)
    with _built_again(workspace, name, recorded, build_jobs(settings or {})) as built:
        fingerprint = images.fingerprint(built.details)
        same = fingerprint == recorded.fingerprint
        restored = same and images.inspect_image(workspace.engine, str(name)) is None
        if restored:
            images_lock.restore_tag(workspace, name, built.tag)
        seconds = time.monotonic() - started
        result = Rebuilt(name, same, restored, fingerprint, recorded.fingerprint, seconds, built.log)
        if not same:
            return _compared(workspace, lock, result, built)
        return replace(result, statement=_witness(workspace, result, built, key)) if witness else result


@contextmanager
def _built_again(
    workspace: Workspace, name: ImageName, recorded: NumberedImage, compilers: int | None
) -> Iterator[RebuiltImage]:
    """Builds a number again; the image is removed at the end of the block, unless it was given another tag. Anybody may
    have written the build directory: its plan gives the targets, and a copy of its files is baked."""
    if recorded.adopted:
        raise ImageStateError(
            f"{name} was adopted from {recorded.adopted.image}: it was built elsewhere, and nothing here tells how",
            hint=adopted.way_back(name, recorded),
        )
    if re.search('[,"]', recorded.definition):  # the name stands in options of buildx that have several fields
        raise LockError(f"images.lock: {name} cannot be of a definition called {recorded.definition!r}", hint=TAKE_BACK)
    path = build_directory.path_of(workspace.project, name)
    if not path.is_dir():
        raise ImageStateError(
            f"{workspace.project.relative(path)} is gone: {name} cannot be built again", hint=build_directory.HINT
        )
    versions.require_supported(workspace.engine)
    directory = build_directory.read_build_directory(workspace.project, name)
    targets = build_directory.bake_targets_of(directory, recorded.platform)
    build_files = build_directory.read_build_files(directory)
    work_folder.remove_stale(workspace)
    with work_folder.create(workspace, name.repository, build_files) as work:
        workspace.report(Message(f"building {name} again from {directory.shown}"))
        job = bake.BakeJob(work.directory, recorded.definition, targets, work)
        _, log = bake.bake_images(workspace, [job], compilers)
        details = images.inspect_image(workspace.engine, work.tag)
        if details is None:
            raise ImageStateError("the image was removed from the engine while it was being built")
        yield RebuiltImage(work.tag, details, workspace.project.relative(log), work.labels)


def _witness(workspace: Workspace, result: Rebuilt, built: RebuiltImage, key: Path | None) -> str:
    from builder.evidence import matrix
    from builder.moving import shipped

    engine = versions.require_supported(workspace.engine)
    tools = {"builder": str(shipped.of_this_program()), "engine": engine.engine, "buildx": engine.buildx}
    project, image_id = workspace.project, built.details.id
    path = matrix.state_witness(project, result.image, result.fingerprint, image_id, engine.platform, tools, key)
    return project.relative(path)


def _compared(workspace: Workspace, lock: Lock, result: Rebuilt, built: RebuiltImage) -> Rebuilt:
    """The result for other content than the recorded one: kept, compared and proven."""
    engine, name = workspace.engine, result.image
    kept = f"{name}-rebuilt"
    images.tag_image(engine, built.tag, kept)
    first = images.inspect_image(engine, str(name))
    differences = None
    if first is not None and images.fingerprint(first) == result.recorded:
        layers = first.layers
        with task(workspace.report, f"comparing the files of {name} and {kept}"):
            differences = _file_differences(engine, str(name), kept, built.labels)
    else:
        layers = _recorded_layers(workspace.project, name)
    return replace(
        result,
        kept=kept,
        layers=_differing_layers(engine, layers, built.details) if layers else (),
        differences=differences,
        proofs=_proofs(workspace, lock, result, built),
    )


def _proofs(workspace: Workspace, lock: Lock, result: Rebuilt, built: RebuiltImage) -> tuple[Proof, ...]:
    """Proves an image that was built again for the models with which its number was proven. An image that cannot be
    proven is reported, and is no error."""
    import functools

    from builder.evidence import requirements, store
    from builder.evidence.run_record import Subject

    name = result.image
    runs = [each for each in store.of_image(workspace.project, name) if each.kind == "prove" and each.verdict == "pass"]
    revisions = {each.subject.model: each.subject.revision for each in runs if each.subject.model}
    if not revisions:
        return ()
    from builder.lab.prove import judging, prove

    try:
        pairings = [
            prove.ProvedPairing(model, revision, recipe)
            for model, revision in revisions.items()
            if (recipe := requirements.recipe_of(workspace.project, lock, name, model))
        ]
        find = functools.partial(judging.find_reference, workspace.project, lock, name.repository, name.number)
        subject = Subject(str(name), result.fingerprint)
        return prove.prove_models(workspace, built.tag, subject, pairings, find, built.labels)
    except (BuildFailedError, FileProblemsError, ImageContentsError, UsageError) as error:
        workspace.report(Message(f"not proven: {error.message}"))
        return ()


def _recorded_layers(project: Project, name: ImageName) -> tuple[str, ...]:
    """The layers of a number as it was built, lowest first; none if its build directory does not record them."""
    with suppress(OSError, UnicodeDecodeError):
        path = build_directory.path_of(project, name) / plan_model.LAYERS
        return tuple(files.read_plain_file(path, _LARGEST_LAYERS).decode().split())
    return ()


def _differing_layers(endpoint: Endpoint, first: tuple[str, ...], second: ImageDetails) -> tuple[str, ...]:
    """The steps whose layers in ``second`` differ from the layers ``first``, lowest first; each by its name in the
    Dockerfile, or by the number of the layer."""
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


def _file_differences(
    endpoint: Endpoint, first: str, second: str, labels: Mapping[str, str]
) -> tuple[FileDifference, ...]:
    """Compares all files of two images, a second for 100 to 200 MB. Raises ImageStateError if one is missing."""
    old = installed.image_file_listing(endpoint, first, labels)
    new = installed.image_file_listing(endpoint, second, labels)
    differences = (_difference(path, old.get(path), new.get(path)) for path in sorted(old.keys() | new.keys()))
    return tuple(filter(None, differences))


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
