"""The rollback verb: moves a pointer to the image before, and nothing else. Run twice, it returns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from builder import names, record
from builder.definitions import target
from builder.engine import images
from builder.errors import ImageStateError, NothingToDoError, UsageError
from builder.events import WAITING, Report
from builder.lock import reading
from builder.lock.model import ImageName, Lock, Pairing

if TYPE_CHECKING:
    from builder.engine.endpoint import Endpoint
    from builder.project import Project


@dataclass(frozen=True)
class Move:
    """A pointer that moves: a model's pairing, or the ``latest`` of a repository."""

    what: str
    is_model: bool
    origin: ImageName
    to: ImageName


@dataclass(frozen=True)
class RolledBack:
    """The moves, and the models that stay paired with an image that is no longer current."""

    moves: tuple[Move, ...]
    staying: tuple[str, ...]


@dataclass(frozen=True)
class Subject:
    """What is to be rolled back: a repository, a model, or, for a recipe, both."""

    text: str
    repository: str | None
    model: str | None


def run(
    project: Project, endpoint: Endpoint, text: str, to: int | None, *, dry_run: bool, report: Report
) -> RolledBack:
    """Rolls back the model, repository, definition or recipe called ``text``, to number ``to`` or to the one before.

    A recipe moves what building it moved, ``latest`` and its model, where both are at the same image. Numbers marked
    bad are passed over, unless named. What was pushed and is no longer here is pulled first, where a registry is set.
    Raises NothingToDoError where there is none to go to, ImageStateError where it is no longer in the engine,
    UsageError where ``text`` names nothing.
    """
    lock = reading.read(project.lock)
    subject = _subject(project, lock, text)
    if not dry_run:
        _fetch_missing(project, endpoint, lock, moves(lock, subject, to), report)
    done: tuple[Move, ...] = ()

    def change(before: Lock) -> Lock:
        nonlocal done
        done = moves(before, subject, to)
        _require_present(endpoint, before, done)
        return apply(before, done)

    if dry_run:
        after = change(lock)
    else:
        _, after = record.move_pointers(project, endpoint, change, lambda: report(WAITING))
    left = {move.origin for move in done if not move.is_model}
    return RolledBack(done, tuple(sorted(m for m, held in after.models.items() if held.pairing.image in left)))


def _subject(project: Project, lock: Lock, text: str) -> Subject:
    if text in lock.models:
        return Subject(text, None, text)
    repository = names.repository(project, lock, text)
    if repository:
        return Subject(text, repository, None)
    if ":" in text and names.repository(project, lock, text.rpartition(":")[0]):
        name, _, number = text.rpartition(":")
        raise UsageError(f"rollback takes no image `{text}`", hint=f"builder rollback {name} --to {number}")
    recipe = target.find(project, text).recipe
    if recipe is None:
        raise UsageError(f"`{text}` is no model, repository, definition or recipe")
    model = recipe.model if recipe.model in lock.models else None
    return Subject(text, recipe.repository, model)


def moves(lock: Lock, subject: Subject, to: int | None) -> tuple[Move, ...]:
    """What moves where, without moving it. Raises NothingToDoError where nothing would, UsageError for a number that
    is not there."""
    if subject.repository and subject.model and to is None:
        _require_together(lock, subject.repository, subject.model)
    found = []
    if subject.repository:
        found.append(_repository_move(lock, subject.repository, to))
    if subject.model:
        found.append(_model_move(lock, subject.model, to))
    real = tuple(move for move in found if move)
    if not real:
        raise NothingToDoError(
            f"{subject.text} has no image to go back to" if to is None else f"{subject.text} is at number {to} already",
            hint="`builder list` shows the numbered images; `--to N` goes to any of them",
        )
    return real


def _require_together(lock: Lock, repository: str, model: str) -> None:
    """Both pointers of a recipe go back from one image to one image, or else it is for the person to say which."""
    held = lock.images.get(repository)
    paired = lock.models[model].pairing.image
    if held and held.current and paired != ImageName(repository, held.current):
        raise UsageError(
            f"{repository}:latest is number {held.current}, while {model} is paired with {paired}",
            hint=f"roll back one of them: `builder rollback {repository}` or `builder rollback {model}`",
        )


def _repository_move(lock: Lock, name: str, to: int | None) -> Move | None:
    held = lock.images.get(name)
    if held is None or held.current is None:
        return None
    good = (n for n in held.previous if n in held.numbers and held.numbers[n].status != "bad")
    number = next(good, None) if to is None else _existing(lock, ImageName(name, to)).number
    if number is None or number == held.current:
        return None
    return Move(name, False, ImageName(name, held.current), ImageName(name, number))


def _model_move(lock: Lock, model: str, to: int | None) -> Move | None:
    held = lock.models[model]
    now = held.pairing.image
    if to is not None:
        goal: ImageName | None = _existing(lock, ImageName(now.repository, to))
    else:
        goal = next((p.image for p in held.previous if _usable(lock, p)), None)
    return Move(model, True, now, goal) if goal and goal != now else None


def _usable(lock: Lock, pairing: Pairing) -> bool:
    image = lock.image(pairing.image)
    return pairing.status != "bad" and image is not None and image.status != "bad"


def _existing(lock: Lock, name: ImageName) -> ImageName:
    if lock.image(name) is None:
        raise UsageError(f"images.lock has no image {name}", hint="`builder list` shows the numbered images")
    return name


def _fetch_missing(project: Project, endpoint: Endpoint, lock: Lock, wanted: tuple[Move, ...], report: Report) -> None:
    """Gets what was pushed and is no longer here, where a registry is set."""
    for goal in {move.to for move in wanted}:
        recorded = lock.image(goal)
        if recorded is None or recorded.digest is None or images.inspect(endpoint, str(goal)) is not None:
            continue
        from builder import fetching
        from builder.definitions import configuration

        if address := configuration.load(project).registry:
            fetching.fetch(endpoint, address, lock, goal, report)


def _require_present(endpoint: Endpoint, lock: Lock, wanted: tuple[Move, ...]) -> None:
    for goal in {move.to for move in wanted}:
        details = images.inspect(endpoint, str(goal))
        recorded = lock.image(goal)
        if details is None:
            raise ImageStateError(
                f"{goal} is missing from this engine: nothing was moved",
                hint=_missing_hint(goal, pushed=bool(recorded and recorded.digest)),
            )
        if recorded and images.fingerprint(details) != recorded.fingerprint:
            raise ImageStateError(
                f"{goal} is not the image that images.lock records: its tag was moved. Nothing was changed",
                hint="`builder list` shows which numbers are present; `--to N` goes to one of them",
            )


def _missing_hint(goal: ImageName, *, pushed: bool) -> str:
    if pushed:
        return f"it was pushed: with `registry:` in builder.yaml, rollback and `builder pull {goal}` get it back"
    return "`--to N` goes to another number; `builder list` shows which are present"


def apply(lock: Lock, done: tuple[Move, ...]) -> Lock:
    """The lock after these moves."""
    for move in done:
        if move.is_model:
            held = lock.models[move.what]
            known = next((p for p in held.previous if p.image == move.to), None)
            pairing = known or replace(held.pairing, image=move.to, status="untested", note="")
            lock = lock.with_model(move.what, held.with_pairing(pairing))
        else:
            lock = lock.with_repository(move.what, lock.images[move.what].with_current(move.to.number))
    return lock
