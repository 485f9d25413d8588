"""The rollback command moves a pointer back to the previous image, and nothing else. A second rollback undoes it.

If this engine lacks the image, the command brings the image back first.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Literal, TypeAlias

from builder.base import words
from builder.base.errors import (
    BuilderError,
    EngineError,
    FileProblemsError,
    ImageStateError,
    NothingToDoError,
    TransferError,
    UsageError,
)
from builder.base.events import Message
from builder.base.values import dataclass
from builder.base.words import SERVER_LABEL
from builder.engine import containers, images
from builder.lock import lock_file
from builder.lock.model import ImageName, Lock
from builder.numbers import claims, images_lock, pointers, status
from builder.numbers.pointers import PointerMove

if TYPE_CHECKING:
    from builder.base.project import Project
    from builder.numbers.workspace import Workspace
    from builder.serving.running import SupersededServer


# The rollback command.

# Returns the reason why a step back from the second image skips the first, for a model (None: for all); empty if there
# is no reason.
Unfit: TypeAlias = Callable[[ImageName, ImageName, str | None], str]


@dataclass(frozen=True)
class RolledBack:
    """The moves, and the models that stay paired with an image that is no longer current. ``passed`` are the skipped
    numbers with the reasons, ``differences`` the inputs that differ between the images. ``serving`` are servers that
    still serve a moved model from the old image. ``foreign`` are repositories whose ``latest`` belongs to another
    project."""

    moves: tuple[PointerMove, ...]
    staying: tuple[str, ...]
    passed: dict[ImageName, str]
    differences: tuple[str, ...]
    serving: tuple[SupersededServer, ...] = ()
    foreign: tuple[str, ...] = ()


@dataclass(frozen=True)
class RollbackSubject:
    """The pointers to roll back: of a repository, of a model, or both for a recipe."""

    text: str
    repository: str | None
    model: str | None

    def pointers(self, lock: Lock) -> tuple[tuple[str, bool], ...]:
        """Each existing pointer in ``lock``: its name, and True for a model's pointer."""
        named = ((self.repository, False), (self.model, True))
        return tuple((what, is_model) for what, is_model in named if what and lock.history(what, is_model=is_model))


def roll_back(workspace: Workspace, text: str, to: int | None, *, force: bool) -> RolledBack:
    """Rolls back the model, repository, definition or recipe called ``text`` to number ``to``, or to the previous
    number. A recipe moves both pointers of its build, ``latest`` and the model, if both are at the same image.

    A rollback skips numbers that are marked bad or pruned, that failed their proof, or that contain no vLLM. If only
    pruned numbers are left, it goes to the latest of them. ``to`` may name a skipped number; what is known about the
    number is reported first. If the engine lacks the image, it is pulled, copied from a node, or built again.

    Raises NothingToDoError if there is no number to go to. Raises ConflictError if ``to`` is marked bad or lacks
    required evidence, unless ``force``. Raises ImageStateError if the image is missing from the engine, UsageError if
    ``text`` names nothing."""
    # A killed command may have moved the pointer only in images.lock; "already at number 2" must be true everywhere.
    images_lock.recover_transaction(workspace)
    lock, subject, moves, unfit = _decided(workspace, text, to, force=force)
    for goal in sorted({move.to for move in moves}):
        if images.inspect_image(workspace.engine, str(goal)) is None:
            bring_back(workspace, lock, goal)
    with images_lock.transaction(workspace) as transaction:
        before = transaction.lock
        moves = planned_moves(before, subject, to, unfit)
        _require_allowed(workspace, before, moves, force=force)
        pointers.require_present(workspace.engine, before, moves)
        transaction.commit(pointers.apply_moves(before, moves))
        after = transaction.lock
    moved = [move.what for move in moves if move.is_model]
    for model in (name for name in moved if after.models[name].pairing.revision):
        from builder.serving import model_weights

        if line := model_weights.missing_weights(workspace.project, workspace.environment, after, model):
            workspace.report(Message(line))
    return _result(workspace, before, subject, moves, unfit)


def preview_rollback(workspace: Workspace, text: str, to: int | None, *, force: bool) -> RolledBack:
    """Returns the result that `roll_back` would have, and moves nothing. Raises the errors of `roll_back`."""
    lock, subject, moves, unfit = _decided(workspace, text, to, force=force)
    missing = {move.to for move in moves if images.inspect_image(workspace.engine, str(move.to)) is None}
    for name in sorted(missing):
        workspace.report(
            Message(f"{name} is not in this engine: it would be pulled, copied from a node, or built again")
        )
    pointers.require_present(workspace.engine, lock, [move for move in moves if move.to not in missing])
    return _result(workspace, lock, subject, moves, unfit)


def _decided(
    workspace: Workspace, text: str, to: int | None, *, force: bool
) -> tuple[Lock, RollbackSubject, tuple[PointerMove, ...], Unfit]:
    """The lock, the pointers, the moves, and the check that skips images. If no move is left, the check accepts pruned
    images."""
    lock = lock_file.read_project_lock(workspace.project)
    subject = _subject(workspace.project, lock, text)
    unfit = _unfit(workspace, lock)
    try:
        moves = planned_moves(lock, subject, to, unfit)
    except NothingToDoError as nothing:
        unfit = _unfit(workspace, lock.without_prunings())
        try:
            moves = planned_moves(lock, subject, to, unfit)
        except NothingToDoError:
            with contextlib.suppress(EngineError):  # without an engine, the answer of images.lock is enough
                _require_here(workspace, lock, subject)
            raise nothing from None
    if to is not None:
        _report_known(workspace, lock, moves)
    _require_allowed(workspace, lock, moves, force=force)
    return lock, subject, moves, unfit


def _require_here(workspace: Workspace, lock: Lock, subject: RollbackSubject) -> None:
    """Raises ImageStateError if this engine lacks an image at which the pointers already are."""
    from builder.numbers import adopted

    for name in sorted({lock.history(what, is_model=is_model)[0] for what, is_model in subject.pointers(lock)}):
        if images.inspect_image(workspace.engine, str(name)) is None:
            message = f"{subject.text} is at number {name.number}, but this engine lacks {name}"
            raise ImageStateError(
                message, hint=adopted.way_back(name, lock.images[name.repository].numbers[name.number])
            )


def _unfit(workspace: Workspace, lock: Lock) -> Unfit:
    @functools.cache
    def reason(name: ImageName, now: ImageName, model: str | None) -> str:
        recorded = pointers.unfit_reason(lock, name, now)
        if recorded or not (workspace.project.evidence / name.repository / str(name.number)).exists():
            return recorded
        from builder.evidence import requirements

        return requirements.failed_proof(workspace.project, workspace.environment, lock, name, model)

    return reason


def _report_known(workspace: Workspace, lock: Lock, moves: tuple[PointerMove, ...]) -> None:
    from builder.evidence import requirements

    def line(move: PointerMove) -> str:
        model = move.what if move.is_model else None
        try:
            return f"{move.to}: {requirements.described(workspace, lock, move.to, move.origin, model)}"
        except FileProblemsError as error:  # a rollback must still be possible
            return f"{move.to}: its evidence is unknown, because a file cannot be read: {error.message}"

    for text in dict.fromkeys(map(line, moves)):
        workspace.report(Message(text))


def _require_allowed(workspace: Workspace, lock: Lock, moves: tuple[PointerMove, ...], *, force: bool) -> None:
    """Unless ``force``, raises ConflictError if an image is marked bad. An image at which the pointer never was also
    requires evidence, as for `promote` and `pair`."""
    if force:
        return
    pointers.refuse_bad(lock, moves)
    for move in moves:
        if move.to not in lock.history(move.what, is_model=move.is_model):
            from builder.evidence import requirements

            models = (move.what,) if move.is_model else requirements.models_of(workspace.project, lock, move.to)
            recipes = {model: requirements.recipe_of(workspace.project, lock, move.to, model) for model in models}
            required = {m: r for m, r in recipes.items() if requirements.required(workspace.project, m, r)}
            requirements.passed(workspace, lock, move.to, required, anyway="--force")


def _result(
    workspace: Workspace, before: Lock, subject: RollbackSubject, moves: tuple[PointerMove, ...], unfit: Unfit
) -> RolledBack:
    passed: dict[ImageName, str] = {}
    for move in moves:
        for name, reason in _earlier(before, subject, move.what, unfit, is_model=move.is_model) if move.back else ():
            if name == move.to:
                break
            passed.setdefault(name, reason)
    after = pointers.apply_moves(before, moves)
    serving: tuple[SupersededServer, ...] = ()
    models = {move.what for move in moves if move.is_model}
    if models and containers.container_listing(workspace.engine, SERVER_LABEL):  # else the slow import is not needed
        from builder.serving import running

        serving = running.find_superseded(workspace, after, models)
    differences = pointers.differences(workspace.project, before, moves)
    foreign = claims.foreign_latest(workspace, moves)
    return RolledBack(moves, pointers.staying(after, moves), passed, differences, serving, foreign)


def _subject(project: Project, lock: Lock, text: str) -> RollbackSubject:
    if text in lock.models:
        return RollbackSubject(text, None, text)
    repository = status.named_repository(project, lock, text)
    if repository:
        return RollbackSubject(text, repository, None)
    if ":" in text and status.named_repository(project, lock, text.rpartition(":")[0]):
        name, _, number = text.rpartition(":")
        hint = f"`builder rollback {name} --to {number}`"
        raise UsageError(f"rollback does not take an image such as `{text}`", hint=hint)
    from builder.definitions import build_target

    recipe = build_target.find_target(project, text, lock.models).recipe
    if recipe is None:
        raise UsageError(f"`{text}` is not a model, repository, definition or recipe")
    model = recipe.model if recipe.model in lock.models else None
    return RollbackSubject(text, recipe.repository, model)


def planned_moves(
    lock: Lock, subject: RollbackSubject, to: int | None, unfit: Unfit | None = None
) -> tuple[PointerMove, ...]:
    """The moves of a rollback, past the images that are ``unfit``; the default reads only images.lock. Raises
    NothingToDoError if there are no moves, UsageError if images.lock lacks the number."""
    unfit = unfit or (lambda name, now, _model: pointers.unfit_reason(lock, name, now))
    at_pointers = subject.pointers(lock)
    is_recipe = len(at_pointers) > 1 and to is None
    now = [lock.history(what, is_model=is_model)[0] for what, is_model in at_pointers]
    is_apart = is_recipe and now[0] != now[1]
    if is_apart or len({name.repository for name in now}) > 1:  # number N means two images
        message = f"{subject.repository}:latest is {now[0]}, while {subject.model} is paired with {now[1]}"
        raise UsageError(message, hint=f"roll back one of them: {_rollbacks((what for what, _ in at_pointers), to)}")
    by_pointer = {what: _move(lock, subject, what, to, unfit, is_model=is_model) for what, is_model in at_pointers}
    moves = tuple(filter(None, by_pointer.values()))
    because = _all_passed(lock, subject, unfit)
    if is_recipe and moves and len({move and move.to for move in by_pointer.values()}) > 1:
        of_tag, of_model = (f"go back to {move.to}" if move else "stay" for move in by_pointer.values())
        raise UsageError(
            f"{subject.repository}:latest would {of_tag}, but {subject.model} would {of_model}"
            + (f": {because}" if because else ""),
            hint=f"roll back one of them: {_rollbacks(move.what for move in moves)}"
            + ("; `--to N --force` moves both" if because else ""),
        )
    if not moves and at_pointers and to is not None:
        raise NothingToDoError(f"{subject.text} is already at number {to}")
    if not moves:
        raise NothingToDoError(
            f"{subject.text} has no image to go back to" + (f": {because}" if because else ""),
            hint="`builder list` shows the numbered images; `--to N` goes to any of them"
            + (", with `--force` to a bad one" if because else ""),
        )
    return moves


def is_possible(lock: Lock, what: str, *, is_model: bool) -> bool:
    """True if a model or a repository has an earlier image that fits, by images.lock alone."""
    subject = RollbackSubject(what, None if is_model else what, what if is_model else None)
    try:
        return bool(planned_moves(lock.without_prunings(), subject, None))
    except NothingToDoError:
        return False


def _rollbacks(pointers: Iterable[str], to: int | None = None) -> str:
    number = f" --to {to}" if to else ""
    return " or ".join(f"`builder rollback {words.shell_word(what)}{number}`" for what in pointers)


def _move(
    lock: Lock, subject: RollbackSubject, what: str, to: int | None, unfit: Unfit, *, is_model: bool
) -> PointerMove | None:
    now = lock.history(what, is_model=is_model)[0]
    if to is None:
        earlier = _earlier(lock, subject, what, unfit, is_model=is_model)
        goal = next((name for name, reason in earlier if not reason), None)
    else:
        goal = ImageName(now.repository, to)
        if lock.image(goal) is None:
            raise UsageError(f"images.lock has no image {goal}", hint="`builder list` shows the numbered images")
    return PointerMove(what, is_model, now, goal, back=to is None) if goal and goal != now else None


def _earlier(
    lock: Lock, subject: RollbackSubject, what: str, unfit: Unfit, *, is_model: bool
) -> Iterator[tuple[ImageName, str]]:
    """The earlier images of a pointer, the latest first, each with the reason why a step back skips it, if any."""
    now, *earlier = lock.history(what, is_model=is_model)
    bad = {pairing.image for pairing in lock.models[what].previous if pairing.status == "bad"} if is_model else ()
    for name in earlier:
        yield name, unfit(name, now, subject.model) or (f"is marked bad for {what}" if name in bad else "")


def _all_passed(lock: Lock, subject: RollbackSubject, unfit: Unfit) -> str:
    earlier = [
        entry
        for what, is_model in subject.pointers(lock)
        for entry in _earlier(lock, subject, what, unfit, is_model=is_model)
    ]
    return ", ".join(dict.fromkeys(f"{name} {reason}" for name, reason in earlier if reason))


# Bringing back a numbered image that this engine lacks. It is pulled, copied from a node, or built again.

_NODE_SECONDS = 10.0


def bring_back(workspace: Workspace, lock: Lock, name: ImageName) -> Literal["here", "pulled", "copied", "rebuilt"]:
    """Makes sure that the engine has the image that ``lock`` records for a number; returns how the image got there.
    Raises ImageStateError if another image has the tag, if there is no source, or if a rebuild gives different content.
    Raises TransferError or BuildFailedError if a transfer or build fails."""
    from builder.numbers import adopted

    recorded = lock.images[name.repository].numbers[name.number]
    if adopted.is_present(workspace.engine, name, recorded):
        return "here"
    if same := images.with_fingerprint(workspace.engine, recorded.fingerprint, workspace.project.engine_cache):
        images_lock.restore_tag(workspace, name, same)
        workspace.report(Message(f"{name} had lost its tag in this engine: the image has the tag again"))
        return "here"
    if fetched := _fetched(workspace, lock, name):
        return fetched
    if recorded.adopted:
        raise ImageStateError(f"{name} is missing from this engine", hint=adopted.way_back(name, recorded))
    from builder.commands import rebuild

    workspace.report(Message(f"{name} is missing from this engine"))
    rebuilt = rebuild.rebuild_image(workspace, str(name))
    if not rebuilt.same:
        raise ImageStateError(
            f"{name} is missing from this engine, and building it again gave different content, kept as {rebuilt.kept}",
            hint=f"`builder adopt {rebuilt.kept}` gives that image a number of its own; `builder rebuild {name}` says"
            " what differs",
        )
    return "rebuilt"


def _fetched(workspace: Workspace, lock: Lock, name: ImageName) -> Literal["pulled", "copied"] | None:
    """Pulls a number from the registry, or else copies it from a node. None if neither is known to have it. Raises
    TransferError if the transfer fails: building may take an hour, so the user decides."""
    from builder.commands import transfers
    from builder.definitions import configuration
    from builder.numbers import named_registry

    recorded = lock.images[name.repository].numbers[name.number]
    fault: TransferError | None = None
    if recorded.digest and (address := configuration.load_configuration(workspace.project).registry):
        try:
            named_registry.pull_number(workspace, address, lock, name)
        except TransferError as error:
            fault = error
        else:
            return "pulled"
    if node := _node_with(workspace, lock, name):
        try:
            transfers.fetch_copy(workspace, lock, name, node)
        except TransferError as error:
            fault = fault or error
        else:
            return "copied"
    if fault:
        again = "" if recorded.adopted else f"; without a transfer, `builder rebuild {name}` builds the image again"
        raise TransferError(fault.message, hint=f"{fault.hint}{again}")
    return None


def _node_with(workspace: Workspace, lock: Lock, name: ImageName) -> str:
    """The first node of builder.yaml that answers and has the image; empty if there is none."""
    from builder.moving import machines
    from builder.numbers import adopted

    recorded = lock.images[name.repository].numbers[name.number]
    engines = machines.engines(workspace.project, workspace.environment, ())
    for node, engine in engines.items():
        if isinstance(engine, EngineError):
            workspace.report(Message(f"{node} was not asked for {name}: {engine.message}"))
    answers = machines.ask_machines(
        engines, lambda _, engine: adopted.is_present(engine, name, recorded), _NODE_SECONDS, workspace.report
    )
    return next((node for node, has in answers.items() if not isinstance(has, BuilderError) and has), "")
