"""The prove command checks the templates and parsers of an image without a GPU and without weights."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING

from builder.base import words
from builder.base.errors import ImageStateError, NothingToDoError, UsageError
from builder.base.events import Message
from builder.building import work_folder
from builder.definitions import build_target, recipe
from builder.engine import images
from builder.evidence import standing, store, subjects
from builder.evidence.run_record import Subject
from builder.evidence.store import ProvedImage, keep_proof
from builder.lab.prove import judging, prove
from builder.lab.prove.prove import ProvedPairing
from builder.lock import lock_file
from builder.numbers import adopted, status

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from builder.base.project import Project
    from builder.definitions.recipe import Recipe
    from builder.lock.model import ImageName, Lock
    from builder.numbers.workspace import Workspace


def prove_image(workspace: Workspace, image: str, models: Sequence[str] = ()) -> tuple[ProvedImage, ...]:
    """Proves the numbered image called ``image`` for ``models``, or all that are paired with it, and keeps the result.

    Raises UsageError where images.lock has no such image or model, ImageStateError where the engine does not have the
    recorded image, ImageContentsError for an image that cannot be proven, FileProblemsError for a bad recipe or damaged
    evidence.
    """
    project = workspace.project
    lock = lock_file.read_project_lock(project)
    name, record = status.named_number(project, lock, image)
    pairings = tuple(_pairings(workspace, lock, name, models))
    details = images.inspect_image(workspace.engine, str(name))
    if details is None or images.fingerprint(details) != record.fingerprint:
        state = "is missing from this engine" if details is None else "is not the image that images.lock records"
        raise ImageStateError(f"{name} {state}: nothing was proven", hint=adopted.way_back(name, record))
    store.of_image(project, name)
    find = functools.partial(judging.find_reference, project, lock, name.repository, name.number)
    subject = Subject(str(name), record.fingerprint)
    work_folder.remove_stale(workspace)
    with work_folder.create(workspace, name.repository, {}) as work:
        proofs = prove.prove_models(workspace, str(name), subject, pairings, find, work.labels)
    return tuple(keep_proof(project, name, proof) for proof in proofs)


def accept_changes(project: Project, image: str, models: Sequence[str], note: str) -> tuple[ProvedImage, ...]:
    """Accepts the changes that the last proof of each model found: the next proofs are compared with them.

    Raises UsageError for a model without a proof, or whose proof failed; NothingToDoError where none found changes.
    """
    lock = lock_file.read_project_lock(project)
    name, _ = status.named_number(project, lock, image)
    runs = [run for run in store.of_image(project, name) if not run.foreign]
    wanted = tuple(models) or tuple(dict.fromkeys(run.subject.model or "" for run in runs if run.kind == "prove"))
    latest = {model: standing.latest([run for run in runs if run.subject.model == model], "prove") for model in wanted}
    missing = [model for model, run in latest.items() if run is None]
    if missing or not latest:
        which = f" for {', '.join(missing)}" if missing else ""
        raise UsageError(f"{name} was not proven{which}", hint=f"`builder prove {name}` does that")
    changed = [run for run in latest.values() if run and run.verdict == "changed"]
    failed = [run.subject.model or "" for run in latest.values() if run and run.verdict == "fail"]
    if failed:
        raise UsageError(
            f"the proof of {name} failed for {', '.join(failed)}: what is broken cannot be accepted",
            hint=f"`builder prove {name}` shows what it is",
        )
    if not changed:
        raise NothingToDoError(f"the last proof of {name} found no changes")
    accepted = [replace(run, verdict="pass", accepted=note, started=words.now()) for run in changed]
    return tuple(ProvedImage(name, run, project.relative(store.add_run(project, name, run))) for run in accepted)


def _pairings(workspace: Workspace, lock: Lock, name: ImageName, models: Sequence[str]) -> Iterator[ProvedPairing]:
    """The models with their recipes. Raises UsageError where there is none, or it is not known how one is served."""
    if models:
        yield from (_named(workspace, lock, name, text) for text in models)
        return
    count = 0
    for model in lock.models_on(name):
        if recipe := _recipe(workspace.project, lock, name, model):
            count += 1
            yield _pairing(workspace, lock, name, model, recipe)
        else:
            workspace.report(Message(f"{model} is not proven: no recipe tells how {name} serves it"))
    if not count:
        raise UsageError(
            f"no model is served by {name}, as far as is known",
            hint=f"`builder prove {name} RECIPE` proves it for one; `builder pair MODEL {name}` pairs one",
        )


def _named(workspace: Workspace, lock: Lock, name: ImageName, text: str) -> ProvedPairing:
    if text in lock.models:
        recipe = _recipe(workspace.project, lock, name, text)
        if recipe is None:
            raise UsageError(f"how to serve {text} is not known", hint="name a recipe instead of the model")
        return _pairing(workspace, lock, name, text, recipe)
    recipe = build_target.find_target(workspace.project, text, lock.models).recipe
    if recipe is None:
        raise UsageError(f"`{text}` is an image definition; a recipe or a model can be proven")
    return _pairing(workspace, lock, name, recipe.model or recipe.name, recipe)


def _pairing(workspace: Workspace, lock: Lock, name: ImageName, model: str, recipe: Recipe) -> ProvedPairing:
    subject = subjects.present_subject(
        workspace.project, lock, name, model, "prove", recipe=recipe, environ=workspace.environment
    )
    return ProvedPairing(model, subject.revision, recipe)


def _recipe(project: Project, lock: Lock, name: ImageName, model: str) -> Recipe | None:
    """The recipe by which a model is served from this image; where it never was, the one that it is served by now."""
    pairing = subjects.pairing_of(lock, name, model) or lock.models[model].pairing
    path = recipe.recorded(project, pairing.recipe)
    return recipe.load_recipe(project, path) if path else None
