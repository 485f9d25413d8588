"""The gate before a pointer moves to an image: the required evidence is there and no proof failed, or the user says why
it moves nevertheless."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.errors import ConflictError, FileProblemsError, UsageError
from builder.evidence import requirements
from builder.numbered import pointers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.definitions.recipes.recipe import Recipe
    from builder.lock.model import ImageName, Lock, Pairing
    from builder.project import Project
    from builder.workspace import Workspace

# The beginning of a note that was given with `--force`: what is paired so is never put back by itself.
FORCED = "without its evidence: "


def models_of(project: Project, lock: Lock, image: ImageName) -> tuple[str, ...]:
    """The models that an image is made for: that of the recipe that it was built from, and those that it serves."""
    record = lock.image(image)
    recipe = requirements.built_from(project, record) if record else None
    own = (recipe.model,) if recipe and recipe.model else ()
    return tuple(dict.fromkeys((*own, *lock.models_on(image))))


def refuse_note_alone(note: str, *, force: bool) -> None:
    """Raises UsageError for a note that is given without `--force`, which it is the reason of."""
    if note and not force:
        raise UsageError(
            "`--note` goes with `--force`, and says why", hint="`builder mark` notes what was observed of an image"
        )


def passed(
    workspace: Workspace, lock: Lock, image: ImageName, by_recipe: Mapping[str, Recipe | None], note: str = ""
) -> str:
    """Lets a pointer move to ``image`` for the models of ``by_recipe``, each by its recipe (None: the one on record).
    Returns the note to record: ``note``, which overrides what is missing and then says so.

    Raises ConflictError with all that is missing where there is no ``note``.
    """
    lacking = {
        model: requirements.missing(workspace.project, lock, image, model, recipe=recipe, environ=workspace.environment)
        for model, recipe in by_recipe.items()
    }
    lines = [
        f"  {each}; `{requirements.command(each, image, model)}`" for model, parts in lacking.items() for each in parts
    ]
    if not lines:
        return note
    if note:
        return f"{FORCED}{note}"
    names = ", ".join(model for model, parts in lacking.items() if parts)
    every = [each for parts in lacking.values() for each in parts]
    has_failed = all(each.kind == "prove" and each.failed for each in every)
    what = f"did not pass its proof for {names}" if has_failed else f"lacks what {names} requires"
    raise ConflictError(
        "\n".join([f"{image} {what}: nothing was moved", *lines]),
        hint="these commands record it; `builder pair` and `builder promote` with `--force --note TEXT` do without",
    )


def unfit(
    project: Project, environ: Mapping[str, str], lock: Lock, name: ImageName, now: ImageName, model: str | None
) -> str:
    """The reason why a step back from the image ``now`` passes over the image ``name``, empty where it does not: what
    `pointers.unfit` says, or its proof failed for ``model``, or for one of those that it is made for. Evidence or a
    recipe that cannot be read says nothing: going back has to be possible with it."""
    if reason := pointers.unfit(lock, name, now):
        return reason
    try:
        for each in (model,) if model else models_of(project, lock, name):
            run = requirements.last_proof(project, lock, name, each, environ)
            if not isinstance(run, str) and run.verdict == "fail":
                return f"did not pass its proof for {each}"
    except FileProblemsError:
        return ""
    return ""


def described(workspace: Workspace, lock: Lock, name: ImageName, now: ImageName | None, model: str | None) -> str:
    """Whatever is known of an image before a pointer goes to it, in words: its mark, what `unfit` would pass over, and
    its last proof for ``model``, or for each of those that it is made for. Raises FileProblemsError as `unfit` does
    not."""
    record = lock.image(name)
    marked = record.status if record and record.status != "untested" else "unmarked"
    words = [f"{marked}: {record.note}" if record and record.note else marked]
    reason = pointers.unfit(lock, name, now) if now else ""
    if reason and "marked" not in reason:
        words.append(reason)
    for each in (model,) if model else models_of(workspace.project, lock, name):
        run = requirements.last_proof(workspace.project, lock, name, each, workspace.environment)
        verdict = run if isinstance(run, str) else {"pass": "passed", "fail": "failed"}.get(run.verdict, run.verdict)
        words.append(f"its proof for {each} {verdict}")
    return ", ".join(words)


def pairing_before(project: Project, environ: Mapping[str, str], lock: Lock, model: str) -> Pairing | None:
    """The latest earlier pairing of a model with an image that may serve it: one that a rollback would go to."""
    paired = lock.models[model]
    now = paired.pairing.image
    for pairing in paired.previous:
        if pairing.status != "bad" and not unfit(project, environ, lock, pairing.image, now, model):
            return pairing
    return None


def refuse_unproven(workspace: Workspace, model: str, recipe: Recipe | None) -> None:
    """Raises ConflictError for a model that requires evidence of an image that cannot have any yet."""
    if requirements.required(workspace.project, model, recipe):
        raise ConflictError(
            f"{model} requires evidence, of which a new image has none: nothing was done",
            hint="without `--model` it gets its number; `builder pair` then says what is missing",
        )
