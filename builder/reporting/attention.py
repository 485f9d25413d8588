"""Matters that ask for attention: whatever is failed, bad, missing, changed, stale or unproven of what serves now."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, get_args

from builder.errors import FileProblemsError, UnsafePathError
from builder.evidence import requirements
from builder.reporting.page import Concern, PageConcern

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from builder.evidence.overview import ImageEvidence
    from builder.lock.model import ImageName, Lock
    from builder.project import Project
    from builder.reporting.page import Disclosure, PageModel

_ORDER: tuple[Concern, ...] = get_args(Concern)
_LISTED = 5


def of(
    project: Project,
    lock: Lock,
    evidence: Mapping[ImageName, ImageEvidence],
    models: Sequence[PageModel],
    disclosure: Disclosure,
    environ: Mapping[str, str],
) -> tuple[PageConcern, ...]:
    """All of it, the gravest first. ``models`` are those of ``lock``, in the order of their names."""
    concerns = [
        concern
        for name, model in zip(sorted(lock.models), models, strict=True)
        for concern in _of_model(project, lock, name, model, disclosure, environ)
    ]
    concerns += _of_images(project, lock)
    for name, each in evidence.items():
        problems = (disclosure.note(str(problem)) or "a run that cannot be read" for problem in each.problems)
        for problem in dict.fromkeys(problems):
            concerns.append(PageConcern("missing", str(name), str(name), f"not counted: {problem}", "builder verify"))
    named = (_named(concern, disclosure) for concern in concerns)
    return tuple(sorted(named, key=lambda each: _ORDER.index(each.concern)))


def _named(concern: PageConcern, disclosure: Disclosure) -> PageConcern:
    return replace(
        concern,
        subject=disclosure.name(concern.subject),
        image=disclosure.name(concern.image),
        command=disclosure.command(concern.command),
    )


def _of_model(
    project: Project, lock: Lock, name: str, model: PageModel, disclosure: Disclosure, environ: Mapping[str, str]
) -> Iterator[PageConcern]:
    pairing = lock.models[name].pairing
    image = str(pairing.image)
    record = lock.images[pairing.image.repository].numbers[pairing.image.number]
    back = f"builder rollback {name}" if lock.models[name].previous else ""
    if model.status == "bad" or record.status == "bad":
        note = disclosure.note(pairing.note or record.note)
        yield PageConcern("bad", name, image, f"marked bad{f': {note}' if note else ''}", back)
    if record.pruned:
        yield PageConcern("missing", name, image, f"the image that serves it was pruned on {record.pruned[:10]}", "")
    yield from _of_standing(name, image, model, back)
    if lock.models[name].previous and (before := lock.models[name].previous[0]).note.startswith("put back on "):
        text = disclosure.note(before.note) or "the model was put back on the image before"
        yield PageConcern("failed", name, str(before.image), text, f"builder diff {image} {before.image}")
    for run in model.now.runs if model.now else ():
        if run.kind != "prove" and not run.foreign and run.word in {"failed", "stale"}:
            text = f"{run.kind} {run.name}: {'; '.join(run.stale) or 'failed'}"
            command = f"builder {run.kind} {name} {'--profile ' if run.kind == 'bench' else ''}{run.name}"
            yield PageConcern("failed" if run.word == "failed" else "stale", name, image, text, command)
    try:
        for each in requirements.missing(project, lock, pairing.image, name, environ=environ):
            what = disclosure.note(str(each)) or f"{each.kind} {each.name}".strip()
            command = requirements.command(each, pairing.image, name)
            yield PageConcern("failed" if each.failed else "missing", name, image, f"required {what}", command)
    except (FileProblemsError, UnsafePathError) as error:
        first = disclosure.note(error.message.splitlines()[0])
        text = f"what it requires cannot be read{f': {first}' if first else ''}"
        yield PageConcern("missing", name, image, text, "builder recipes check")


def _of_standing(name: str, image: str, model: PageModel, back: str) -> Iterator[PageConcern]:
    prove = f"builder prove {image} {name}"
    if model.standing == "failed":
        yield PageConcern("failed", name, image, model.why or "the last proof failed", back or prove)
    elif model.standing == "changed":
        text = model.why or "answers differ from those of the number before"
        yield PageConcern("changed", name, image, text, f"{prove} --accept")
    elif model.standing == "stale":
        yield PageConcern("stale", name, image, model.why, prove)
    elif model.standing == "unproven":
        yield PageConcern("unproven", name, image, model.why or "never proven on this image", prove)


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
