"""The images of candidates: without a number, named after what they are made of, so that each is made once."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.bisecting import mixture
from builder.building import bake_run, work_folder
from builder.building.bake_run import BakeJob
from builder.commands.bisect_parts import points, spans
from builder.engine import images
from builder.errors import BuildFailedError, DiskFullError, FileProblemsError, SourceError
from builder.lock.model import ImageName
from builder.numbered import identity
from builder.plan import bake, model

if TYPE_CHECKING:
    from builder.bisecting.candidate import BisectCandidate
    from builder.commands.bisect_parts.spans import NumberSpan
    from builder.plan.model import StagedFile
    from builder.project import Project
    from builder.workspace import Workspace

PREFIX = "builder-bisect-"


@dataclass(frozen=True)
class CandidateImage:
    """The image of a candidate, by its tag; ``problem`` says why there is none."""

    tag: str
    problem: str = ""


def build_of(
    workspace: Workspace, span: NumberSpan, candidate: BisectCandidate
) -> tuple[dict[str, StagedFile], dict[str, object]] | None:
    """The build directory of a candidate, its files and targets; None for one whose image is there, a number's. Raises
    SourceError for a point that cannot be had."""
    taken = span.units_of_image(candidate)
    if span.builds is None or not taken or (taken == span.every and not candidate.points):
        return None
    chosen = dict(candidate.points)
    values = points.values(workspace, span, chosen)
    files = mixture.files(span.builds, taken, values)
    points.require_fitting(workspace, span, chosen, files)
    return files, mixture.targets(span.builds, taken, values)


def tag_of(workspace: Workspace, span: NumberSpan, candidate: BisectCandidate) -> str:
    """The tag that the image of a candidate has, or will have. Raises SourceError as `build_of`."""
    if candidate.number is not None:
        return str(ImageName(span.old.repository, candidate.number))
    build = build_of(workspace, span, candidate)
    if build is None:
        return str(span.new if span.units_of_image(candidate) else span.old)
    content = json.dumps([model.files_hash(build[0]), build[1]], sort_keys=True)
    return f"{repository(workspace.project)}:{hashlib.sha256(content.encode()).hexdigest()[:16]}"


def make(workspace: Workspace, span: NumberSpan, candidate: BisectCandidate) -> CandidateImage:
    """Makes the image of a candidate unless it is there. One that cannot be built is no error: it is gone around.
    Raises DiskFullError, which tells nothing about the candidate."""
    try:
        tag = tag_of(workspace, span, candidate)
        build = None if candidate.number is not None else build_of(workspace, span, candidate)
        if build is None or images.inspect(workspace.engine, tag):
            return CandidateImage(tag)
        files, targets = build
        with work_folder.create(workspace, "bisect", {**files, bake.FILE: bake.bake_file(targets)}) as work:
            # The definition's own name: wheels of this machine are laid by it where its template looks for them.
            job = BakeJob(work.directory, spans.definition(workspace.project, span.new) or "bisect", targets, work)
            bake_run.bake(workspace, [job])
            images.tag(workspace.engine, work.tag, tag)
    except DiskFullError as error:
        hint = f"{error.hint}; then give the same command again, to go on where it was"
        raise DiskFullError(error.message, log=error.log, hint=hint) from None
    except SourceError as error:
        return CandidateImage("", f"cannot be had: {error.message.splitlines()[0]}")
    except (BuildFailedError, FileProblemsError) as error:
        return CandidateImage("", f"does not build: {error.message.splitlines()[0]}")
    return CandidateImage(tag)


def remove_all(workspace: Workspace) -> int:
    """Removes the images of all candidates of the project; returns how many there were."""
    tags = images.tags(workspace.engine, [repository(workspace.project)])
    return sum(images.remove(workspace.engine, tag) for tag in sorted(tags))


def repository(project: Project) -> str:
    """The name under which the candidates of a project stand in the engine."""
    return f"{PREFIX}{identity.of(project).id[:8].lower()}"
