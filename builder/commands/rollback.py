"""The rollback command: moves a pointer back to the previous image, and nothing else. A second run undoes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.definitions import target
from builder.engine import images
from builder.errors import NothingToDoError, UsageError
from builder.events import Message
from builder.lock import reading
from builder.lock.model import ImageName, Lock
from builder.numbered import images_lock, names, pointers
from builder.numbered.pointers import PointerMove
from builder.serving import checkpoint_weights, superseded

if TYPE_CHECKING:
    from builder.project import Project
    from builder.serving.superseded import SupersededServer
    from builder.workspace import Workspace


@dataclass(frozen=True)
class RolledBack:
    """The moves, the models that stay paired with an image that is no longer current, the numbers that were passed
    over because they are pruned or marked bad, the inputs that differ between the images, and the servers that go on
    serving a model that moved from the image before."""

    moves: tuple[PointerMove, ...]
    staying: tuple[str, ...]
    passed: tuple[ImageName, ...]
    differences: tuple[str, ...]
    serving: tuple[SupersededServer, ...] = ()


@dataclass(frozen=True)
class RollbackSubject:
    """The pointers to roll back: those of a repository, a model, or, for a recipe, both."""

    text: str
    repository: str | None
    model: str | None


def run(workspace: Workspace, text: str, to: int | None, *, force: bool) -> RolledBack:
    """Rolls back the model, repository, definition or recipe called ``text``, to number ``to`` or to the one before.

    A recipe moves both pointers that its build moved, ``latest`` and its model, where they are at the same image.
    Numbers that are marked bad or pruned are passed over. An image that was pushed and is no longer here is pulled
    first, where there is a registry.
    Raises NothingToDoError where there is none to go to; ConflictError for a ``to`` that is marked bad, unless
    ``force``; ImageStateError where it is no longer in the engine; UsageError where ``text`` names nothing.
    """
    lock = reading.of(workspace.project)
    subject = _subject(workspace.project, lock, text)
    # One that was killed may have moved the pointer in images.lock alone: "at number 2 already" has to be so.
    images_lock.recover(workspace)
    _fetch_missing(workspace, lock, planned_moves(lock, subject, to))
    with images_lock.transaction(workspace) as transaction:
        before = transaction.lock
        possible = _possible_moves(workspace, before, subject, to, force=force)
        transaction.commit(pointers.apply(before, possible))
        after = transaction.lock
    for model in (move.what for move in possible if move.is_model):
        if line := checkpoint_weights.missing(workspace.project, workspace.environment, after, model):
            workspace.report(Message(line))
    return _result(workspace, before, possible, to)


def preview(workspace: Workspace, text: str, to: int | None, *, force: bool) -> RolledBack:
    """Tells what `run` would do, and moves nothing. Raises what `run` does."""
    lock = reading.of(workspace.project)
    subject = _subject(workspace.project, lock, text)
    return _result(workspace, lock, _possible_moves(workspace, lock, subject, to, force=force), to)


def _possible_moves(
    workspace: Workspace, lock: Lock, subject: RollbackSubject, to: int | None, *, force: bool
) -> tuple[PointerMove, ...]:
    """The moves, each to an image that is here and, unless ``force``, not marked bad. One that its pointer was never at
    has to have what is required of it, as for `promote` and `pair`."""
    possible = planned_moves(lock, subject, to)
    pointers.require_allowed(workspace.engine, lock, possible, force=force)
    for move in possible:
        if not _was_at(lock, move):
            from builder.evidence import gate

            models = (move.what,) if move.is_model else gate.models_of(workspace, lock, move.to)
            gate.passed(workspace, lock, move.to, dict.fromkeys(models))
    return possible


def _was_at(lock: Lock, move: PointerMove) -> bool:
    if move.is_model:
        return move.to in {pairing.image for pairing in lock.models[move.what].previous}
    return move.to.number in lock.images[move.what].previous


def _result(workspace: Workspace, before: Lock, moves: tuple[PointerMove, ...], to: int | None) -> RolledBack:
    passed = _passed(before, moves) if to is None else ()
    staying = pointers.staying(pointers.apply(before, moves), moves)
    models = {move.what for move in moves if move.is_model}
    serving = superseded.find(workspace, pointers.apply(before, moves), models)
    return RolledBack(moves, staying, passed, pointers.differences(workspace.project, before, moves), serving)


def _subject(project: Project, lock: Lock, text: str) -> RollbackSubject:
    if text in lock.models:
        return RollbackSubject(text, None, text)
    repository = names.repository(project, lock, text)
    if repository:
        return RollbackSubject(text, repository, None)
    if ":" in text and names.repository(project, lock, text.rpartition(":")[0]):
        name, _, number = text.rpartition(":")
        raise UsageError(f"rollback takes no image `{text}`", hint=f"`builder rollback {name} --to {number}`")
    recipe = target.find(project, text, lock.models).recipe
    if recipe is None:
        raise UsageError(f"`{text}` is no model, repository, definition or recipe")
    model = recipe.model if recipe.model in lock.models else None
    return RollbackSubject(text, recipe.repository, model)


def planned_moves(lock: Lock, subject: RollbackSubject, to: int | None) -> tuple[PointerMove, ...]:
    """The moves of a rollback. Raises NothingToDoError where there is none, UsageError for a number that images.lock
    does not have."""
    if subject.repository and subject.model and to is None:
        _require_together(lock, subject.repository, subject.model)
    by_pointer = []
    if subject.repository:
        by_pointer.append(_repository_move(lock, subject.repository, to))
    if subject.model:
        by_pointer.append(_model_move(lock, subject.model, to))
    moves = tuple(move for move in by_pointer if move)
    goals = {move and move.to for move in by_pointer}
    if subject.repository and subject.model and to is None and moves and len(goals) > 1:
        raise _separation_error(lock, subject.repository, subject.model, moves)
    if not moves and to is not None:
        raise NothingToDoError(f"{subject.text} is at number {to} already")
    if not moves:
        because = _bad_before(lock, subject.repository, subject.model)
        raise NothingToDoError(
            f"{subject.text} has no image to go back to" + (f": {because}" if because else ""),
            hint="`builder list` shows the numbered images; `--to N` goes to any of them"
            + (", with `--force` to a bad one" if because else ""),
        )
    return moves


def _bad_before(lock: Lock, repository: str | None, model: str | None) -> str:
    """The images that were passed over because they are marked bad, as text; empty where there are none."""
    bad: list[str] = []
    if repository in lock.images:
        earlier = [ImageName(repository, number) for number in lock.images[repository].previous]
        bad += [str(name) for name in earlier if _is_bad(lock, name)]
    if model:
        for pairing in lock.models[model].previous:
            if _is_bad(lock, pairing.image):
                bad.append(str(pairing.image))
            elif pairing.status == "bad":
                bad.append(f"{model} on {pairing.image}")
    unique = list(dict.fromkeys(bad))
    return f"{', '.join(unique)} {'is' if len(unique) == 1 else 'are'} marked bad" if unique else ""


def _is_bad(lock: Lock, name: ImageName) -> bool:
    image = lock.image(name)
    return image is not None and image.status == "bad"


def _require_together(lock: Lock, repository: str, model: str) -> None:
    """Raises UsageError unless both pointers of a recipe are at the same image: otherwise the user has to choose
    one."""
    record = lock.images.get(repository)
    paired = lock.models[model].pairing.image
    if record and record.current and paired != ImageName(repository, record.current):
        raise UsageError(
            f"{repository}:latest is number {record.current}, while {model} is paired with {paired}",
            hint=f"roll back one of them: `builder rollback {repository}` or `builder rollback {model}`",
        )


def _separation_error(lock: Lock, repository: str, model: str, moves: tuple[PointerMove, ...]) -> UsageError:
    """The error for moves of a recipe's two pointers to different images, which another rollback could not undo."""
    goals = {move.what: str(move.to) for move in moves}
    of_tag, of_model = (goals.get(what, "nothing") for what in (repository, model))
    because = _bad_before(lock, repository, model)
    which = " or ".join(f"`builder rollback {what}`" for what in (repository, model) if what in goals)
    return UsageError(
        f"{repository}:latest would go back to {of_tag}, {model} to {of_model}" + (f": {because}" if because else ""),
        hint=f"roll back one of them: {which}" + ("; `--to N --force` moves both" if because else ""),
    )


def _repository_move(lock: Lock, name: str, to: int | None) -> PointerMove | None:
    repository = lock.images.get(name)
    if repository is None or repository.current is None:
        return None
    usable = (n for n in repository.previous if _usable(lock, ImageName(name, n)))
    number = next(usable, None) if to is None else _existing(lock, ImageName(name, to)).number
    if number is None or number == repository.current:
        return None
    return PointerMove(name, False, ImageName(name, repository.current), ImageName(name, number), back=to is None)


def _model_move(lock: Lock, model: str, to: int | None) -> PointerMove | None:
    record = lock.models[model]
    now = record.pairing.image
    if to is not None:
        goal: ImageName | None = _existing(lock, ImageName(now.repository, to))
    else:
        before = pointers.pairing_before(lock, record)
        goal = before.image if before else None
    return PointerMove(model, True, now, goal, back=to is None) if goal and goal != now else None


def _usable(lock: Lock, name: ImageName) -> bool:
    image = lock.image(name)
    return image is not None and image.status != "bad" and not image.pruned


def _passed(lock: Lock, moves: tuple[PointerMove, ...]) -> tuple[ImageName, ...]:
    """The previous images that the moves passed over."""
    passed: list[ImageName] = []
    for move in moves:
        if move.is_model:
            before = [pairing.image for pairing in lock.models[move.what].previous]
        else:
            before = [ImageName(move.what, number) for number in lock.images[move.what].previous]
        passed += before[: before.index(move.to)]
    return tuple(dict.fromkeys(passed))


def _existing(lock: Lock, name: ImageName) -> ImageName:
    if lock.image(name) is None:
        raise UsageError(f"images.lock has no image {name}", hint="`builder list` shows the numbered images")
    return name


def _fetch_missing(workspace: Workspace, lock: Lock, moves: tuple[PointerMove, ...]) -> None:
    """Pulls the images that were pushed and are no longer here, where a registry is set."""
    for goal in {move.to for move in moves}:
        recorded = lock.image(goal)
        if recorded is None or recorded.digest is None or images.inspect(workspace.engine, str(goal)) is not None:
            continue
        from builder.definitions import configuration
        from builder.distribution import retrieval

        if address := configuration.load(workspace.project).registry:
            retrieval.pull(workspace, address, lock, goal)
