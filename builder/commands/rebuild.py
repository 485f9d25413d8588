"""The rebuild command: builds a number again from its build directory, and compares the content."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from builder.building import rebuild
from builder.definitions import image_chain
from builder.engine import images
from builder.engine.client import versions
from builder.errors import ConflictError, UsageError
from builder.events import Message, task
from builder.lock import reading
from builder.numbered import images_lock, names

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from builder.building.image_differences import FileDifference
    from builder.building.rebuild import RebuiltImage
    from builder.evidence.proof import Proof
    from builder.lock.model import ImageName, Lock, NumberedImage
    from builder.workspace import Workspace


@dataclass(frozen=True)
class Rebuilt:
    """The result of a rebuild. ``restored`` is true if the number was missing from the engine and has its tag again.

    Where the content is not ``same``: the image is ``kept`` under that tag, and ``layers`` names the steps whose layers
    differ; ``differences`` are by path, None where the first image is not here to compare with; ``proofs`` are those of
    the models with which the number was proven. ``accepted`` is true if the number stands for the new content now.
    ``statement`` is the file in which this machine witnesses the same content, where that was asked.
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
    accepted: bool = False
    statement: str = ""


def run(
    workspace: Workspace,
    text: str,
    settings: Mapping[str, str] | None = None,
    *,
    accept_equivalent: bool = False,
    witness: bool = False,
    key: Path | None = None,
) -> Rebuilt:
    """Builds the image called ``text`` from ``builds/REPOSITORY/NUMBER`` alone, not from the templates and mods; of
    ``settings`` only the number of jobs is none of those that the number was built with.

    A number that is missing gets its tag again where the content is the recorded one. Other content is kept under the
    tag ``REPOSITORY:N-rebuilt``, compared with the first image, and proven where the number was; ``accept_equivalent``
    takes it for the number where nothing but times of change and bytecode differ. With ``witness`` this machine states
    the same content in evidence/, signed with the SSH ``key``, if given.

    Raises ImageStateError where the build directory is gone, or the image was adopted; FileProblemsError where it is
    damaged, or would do what no build of this program does; BuildFailedError where a step fails; ConflictError for
    content that cannot be accepted.
    """
    started = time.monotonic()
    if other := [key for key in settings or {} if key != image_chain.BUILD_JOBS]:
        raise UsageError(f"`--set {other[0]}` would make another image", hint="`builder build` makes it")
    compilers = image_chain.build_jobs(settings or {})
    images_lock.recover(workspace)  # it may write nothing itself, where a killed one had tagged the number
    lock = reading.of(workspace.project)
    name, recorded = names.numbered(workspace.project, lock, text)
    rebuild.require_built_here(name, recorded)
    versions.require_supported(workspace.engine)
    with rebuild.rebuilt_image(workspace, name, recorded, compilers=compilers) as built:
        same = built.fingerprint == recorded.fingerprint
        restored = same and images.inspect(workspace.engine, str(name)) is None
        if restored:
            images_lock.restore(workspace, name, built.tag)
        result = Rebuilt(
            name, same, restored, built.fingerprint, recorded.fingerprint, time.monotonic() - started, built.log
        )
        if not same:
            return _other_content(workspace, lock, result, recorded, built, accept=accept_equivalent)
        return replace(result, statement=_state(workspace, result, built, key)) if witness else result


def _state(workspace: Workspace, result: Rebuilt, built: RebuiltImage, key: Path | None) -> str:
    from builder import release
    from builder.evidence import witness

    engine = versions.require_supported(workspace.engine)
    tools = {"builder": str(release.of_this_program()), "engine": engine.engine, "buildx": engine.buildx}
    project = workspace.project
    path = witness.state(project, result.image, result.fingerprint, built.details.id, engine.platform, tools, key)
    return project.relative(path)


def _other_content(
    workspace: Workspace, lock: Lock, result: Rebuilt, recorded: NumberedImage, built: RebuiltImage, *, accept: bool
) -> Rebuilt:
    """The result for other content than the recorded one: kept, compared, proven, and accepted where that is asked."""
    from builder.building import image_differences

    engine, name = workspace.engine, result.image
    kept = f"{name}-rebuilt"
    images.tag(engine, built.tag, kept)
    first = images.inspect(engine, str(name))
    is_here = first is not None and images.fingerprint(first) == recorded.fingerprint
    layers = first.layers if first and is_here else rebuild.recorded_layers(workspace.project, name)
    differences = None
    if is_here:
        with task(workspace.report, f"comparing the files of {name} and {kept}"):
            differences = image_differences.of_files(engine, str(name), kept, built.labels)
    result = replace(
        result,
        kept=kept,
        layers=image_differences.differing_layers(engine, layers, built.details) if layers else (),
        differences=differences,
        proofs=_proofs(workspace, lock, result, built),
    )
    if not accept:
        return result
    if differences is None:
        raise ConflictError(
            f"{name} is missing from this engine, so nothing tells whether {kept} is equivalent: it was not accepted",
            hint=f"`builder adopt {kept}` gives it a number of its own",
        )
    counts = Counter(each.kind for each in differences)
    if beyond := [each for each in differences if each.kind not in image_differences.HARMLESS]:
        raise ConflictError(
            f"{kept} differs from {name} in more than times and bytecode: {beyond[0].path} ({beyond[0].what}) and "
            f"{len(beyond) - 1} more; it was not accepted",
            hint=f"`builder rebuild {name}` lists all; `builder adopt {kept}` gives it a number of its own",
        )
    note = f"{counts['time']} times of change and {counts['bytecode']} files of bytecode differ"
    images_lock.accept_equivalent(workspace, name, kept, result.fingerprint, note)
    images.remove(engine, kept)
    return replace(result, accepted=True, kept="")


def _proofs(workspace: Workspace, lock: Lock, result: Rebuilt, built: RebuiltImage) -> tuple[Proof, ...]:
    """Proves an image that was built again for the models with which its number was proven. That it cannot be proven is
    told, and is no error."""
    import functools

    from builder.errors import BuildFailedError, FileProblemsError, ImageContentsError
    from builder.evidence import store
    from builder.evidence.record import Subject

    name = result.image
    runs = [each for each in store.of_image(workspace.project, name) if each.kind == "prove" and each.verdict == "pass"]
    revisions = {each.subject.model: each.subject.revision for each in runs if each.subject.model}
    if not revisions:
        return ()
    from builder.evidence import requirements
    from builder.proving import prove, reference

    try:
        pairings = [
            prove.ProvedPairing(model, revision, recipe)
            for model, revision in revisions.items()
            if (recipe := requirements.recipe_of(workspace.project, lock, name, model))
        ]
        find = functools.partial(reference.find, workspace.project, lock, name.repository, name.number)
        subject = Subject(str(name), result.fingerprint)
        return prove.prove(workspace, built.tag, subject, pairings, find, built.labels)
    except (BuildFailedError, FileProblemsError, ImageContentsError, UsageError) as error:
        workspace.report(Message(f"not proven: {error.message}"))
        return ()
