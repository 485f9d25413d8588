"""The pointers of images.lock: the current number of a repository (``latest``), and the image that serves a model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from builder.base.errors import ConflictError
from builder.base.values import dataclass, replace
from builder.lock.model import ImageName, Lock, Model, Pairing

if TYPE_CHECKING:
    from builder.base.project import Project
    from builder.engine.client import Endpoint


@dataclass(frozen=True)
class PointerMove:
    """The move of a pointer: a model's pairing, or the ``latest`` of a repository. ``origin`` is None if the pointer
    led to no image before. ``back`` marks a step back to the previous image; the same step again undoes it."""

    what: str
    is_model: bool
    origin: ImageName | None
    to: ImageName
    back: bool = False


def moves_to(lock: Lock, what: str, to: ImageName, *, is_model: bool) -> tuple[PointerMove, ...]:
    now = next(iter(lock.history(what, is_model=is_model)), None)
    return () if now == to else (PointerMove(what, is_model, now, to),)


def apply_moves(lock: Lock, moves: Iterable[PointerMove]) -> Lock:
    """Returns the lock after these moves. A model gets its earlier pairing with the image back, if it had one."""
    for move in moves:
        if move.back and move.is_model:
            lock = lock.with_model(move.what, lock.models[move.what].stepped_back_to(move.to))
        elif move.back:
            lock = lock.with_repository(move.what, lock.images[move.what].stepped_back_to(move.to.number))
        elif move.is_model:
            lock = lock.with_pairing(move.what, pairing_with(lock.models.get(move.what), move.to))
        else:
            lock = lock.with_current(move.to)
    return lock


def pairing_with(model: Model | None, image: ImageName) -> Pairing:
    if model is None:
        return Pairing(image)
    earlier = next((p for p in (model.pairing, *model.previous) if p.image == image), None)
    return earlier or replace(model.pairing, image=image, status="untested", note="", since="")


def unfit_reason(lock: Lock, name: ImageName, now: ImageName) -> str:
    """The reason why a step back from the image ``now`` skips ``name``, from images.lock; empty without a reason. An
    image that the user marked good needs no known vLLM: an adopted image may have an unknown one."""
    image, left = lock.image(name), lock.image(now)
    if image is None:
        return "is not in images.lock"
    if image.status == "bad":
        return "is marked bad"
    if image.pruned:
        return f"was pruned on {image.pruned[:10]}"
    if left and "vllm" in left.versions and "vllm" not in image.versions and image.status != "good":
        return "contains no known vLLM"
    return ""


def require_allowed(endpoint: Endpoint, lock: Lock, moves: Iterable[PointerMove], *, force: bool) -> None:
    """Raises ConflictError for a move to an image that is marked bad, unless ``force``. Raises ImageStateError for a
    move to an image that the engine lacks."""
    moves = tuple(moves)
    if not force:
        refuse_bad(lock, moves)
    require_present(endpoint, lock, moves)


def require_present(endpoint: Endpoint, lock: Lock, moves: Iterable[PointerMove]) -> None:
    """Raises ImageStateError unless the engine has every image that a pointer moves to, with the recorded content."""
    for name in sorted({move.to for move in moves}):
        if recorded := lock.image(name):
            from builder.numbers import adopted

            adopted.require_present(endpoint, name, recorded)


def refuse_bad(lock: Lock, moves: Iterable[PointerMove]) -> None:
    """Raises ConflictError for a move to an image that is marked bad, either itself or for the model that moves."""
    for move in moves:
        image = lock.image(move.to)
        pairing = pairing_with(lock.models.get(move.what) if move.is_model else None, move.to)
        for what, marked in ((str(move.to), image), (f"{move.what} on {move.to}", pairing)):
            if marked and marked.status == "bad":
                undo = f"; `builder mark {what} unmarked` removes the mark" if marked is image else ""
                message = f"{what} is marked bad" + (f": {marked.note}" if marked.note else "")
                raise ConflictError(message, hint=f"`--force` uses the image anyway{undo}")


def staying(lock: Lock, moves: Iterable[PointerMove]) -> tuple[str, ...]:
    origins = {move.origin for move in moves if not move.is_model}
    return tuple(sorted(name for name, model in lock.models.items() if model.pairing.image in origins))


def differences(project: Project, lock: Lock, moves: Iterable[PointerMove]) -> tuple[str, ...]:
    """The inputs that differ between the old and the new image of each pointer, one line each; empty if a build
    directory is missing. Of an adopted image only the versions are compared."""
    from builder.numbers import build_directory
    from builder.plan import rules

    lines: list[str] = []
    for origin, to in dict.fromkeys((move.origin, move.to) for move in moves):
        before, after = (
            build_directory.read_if_possible(project.build_directory(name.repository, name.number)) if name else None
            for name in (origin, to)
        )
        if before and after:
            lines += rules.explain_changes(before, after)
        elif origin and (old := lock.image(origin)) and (new := lock.image(to)) and (old.adopted or new.adopted):
            names = sorted(old.versions.keys() | new.versions.keys(), reverse=True)
            for name in names:
                sides = [image.versions.get(name) for image in (old, new)]
                left, right = (version.text if version else "not known" for version in sides)
                lines += [f"{name}: {left} → {right}"] if left != right else []
    return tuple(lines)
