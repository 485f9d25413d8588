"""Matters that ask for attention: whatever is failed, bad, missing, changed, stale or unproven of what serves now."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

from builder.errors import FileProblemsError, UnsafePathError
from builder.evidence import requirements
from builder.reporting.page import Concern, PageConcern

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from builder.evidence.overview import ImageEvidence
    from builder.lock.model import ImageName, Lock
    from builder.project import Project
    from builder.reporting.page import PageModel

_ORDER: tuple[Concern, ...] = get_args(Concern)
_LISTED = 5


def of(
    project: Project,
    lock: Lock,
    evidence: Mapping[ImageName, ImageEvidence],
    models: Sequence[PageModel],
    environ: Mapping[str, str],
) -> tuple[PageConcern, ...]:
    """All of it, the gravest first."""
    concerns = [concern for model in models for concern in _of_model(project, lock, model, environ)]
    concerns += _of_images(project, lock)
    concerns += [
        PageConcern("missing", str(name), str(name), f"not counted: {problem}", "")
        for name, each in evidence.items()
        for problem in each.problems
    ]
    return tuple(sorted(concerns, key=lambda each: _ORDER.index(each.concern)))


def _of_model(project: Project, lock: Lock, model: PageModel, environ: Mapping[str, str]) -> Iterator[PageConcern]:
    name, image = model.model, model.image
    pairing = lock.models[name].pairing
    record = lock.images[pairing.image.repository].numbers[pairing.image.number]
    back = f"builder rollback {name}" if lock.models[name].previous else ""
    if model.status == "bad" or record.status == "bad":
        note = model.note or record.note
        yield PageConcern("bad", name, image, f"marked bad{f': {note}' if note else ''}", back)
    if record.pruned:
        yield PageConcern("missing", name, image, f"the image that serves it was pruned on {record.pruned[:10]}", "")
    yield from _of_standing(model, back)
    if lock.models[name].previous and (before := lock.models[name].previous[0]).note.startswith("put back on "):
        yield PageConcern("failed", name, str(before.image), before.note, f"builder diff {image} {before.image}")
    for run in model.now.runs if model.now else ():
        if run.kind != "prove" and not run.foreign and run.word in {"failed", "stale"}:
            text = f"{run.kind} {run.name}: {'; '.join(run.stale) or 'failed'}"
            command = f"builder {run.kind} {name} {'--profile ' if run.kind == 'bench' else ''}{run.name}"
            yield PageConcern("failed" if run.word == "failed" else "stale", name, image, text, command)
    try:
        for each in requirements.missing(project, lock, pairing.image, name, environ=environ):
            command = requirements.command(each, pairing.image, name)
            yield PageConcern("failed" if each.failed else "missing", name, image, f"required {each}", command)
    except (FileProblemsError, UnsafePathError) as error:
        first = error.message.splitlines()[0]
        yield PageConcern("missing", name, image, f"what it requires cannot be read: {first}", "builder recipes check")


def _of_standing(model: PageModel, back: str) -> Iterator[PageConcern]:
    prove = f"builder prove {model.image} {model.model}"
    if model.standing == "failed":
        yield PageConcern("failed", model.model, model.image, model.why or "the last proof failed", back or prove)
    elif model.standing == "changed":
        text = model.why or "answers differ from those of the number before"
        yield PageConcern("changed", model.model, model.image, text, f"{prove} --accept")
    elif model.standing == "stale":
        yield PageConcern("stale", model.model, model.image, model.why, prove)
    elif model.standing == "unproven":
        yield PageConcern("unproven", model.model, model.image, model.why or "never proven on this image", prove)


def _of_images(project: Project, lock: Lock) -> Iterator[PageConcern]:
    """Numbers that nothing can build again, told once for each repository."""
    for repository, record in lock.images.items():
        gone = [
            number
            for number, image in sorted(record.numbers.items(), reverse=True)
            if not image.pruned and not _is_dir(project, repository, number)
        ]
        if gone:
            listed = ", ".join(map(str, gone[:_LISTED])) + (
                f" and {len(gone) - _LISTED} more" if gone[_LISTED:] else ""
            )
            text = f"no build directory of {listed}: these numbers cannot be built again"
            yield PageConcern("missing", repository, "", text, "builder verify")


def _is_dir(project: Project, repository: str, number: int) -> bool:
    try:
        return project.build_directory(repository, number).is_dir()
    except UnsafePathError:
        return False
