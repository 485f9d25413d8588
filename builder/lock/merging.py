"""This page merges two versions of images.lock.

Content that others wrote comes first, then the merge, then the two sides of a conflict that git left in the file.
The numbers of both sides are kept. Where both sides changed the same value, ours counts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

from builder.base.errors import Location, LockError, NewerLockError, Problem, UsageError
from builder.lock.kinds import MERGE, conflict_marks, lock_error
from builder.lock.model import ImageName, Lock, Model, NumberedImage, Pairing, Repository, latest_first, sequences_of
from builder.lock.text import dump_lock, parse_lock
from builder.lock.yaml_tree import Tree, read_tree

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


# Parts of images.lock that are made of what others wrote, such as the labels of an image.


def refused(part: Lock) -> str:
    """The reason why images.lock cannot hold ``part``: a name that no image, mod or definition has, or a value of
    another kind; empty where it can."""
    try:
        parse_lock(dump_lock(part), "its labels")
    except (LockError, UsageError) as error:
        return error.message.splitlines()[0]
    except (TypeError, ValueError, AttributeError):
        return "its labels hold values of other kinds than this program writes"
    return ""


# Merging two locks: the records of two branches that git could not merge, or a lock and what was recovered. The
# numbers of both are kept. Where both sides changed the same thing, ours counts.

T = TypeVar("T", bound=Any)


def clashes(ours: Lock, theirs: Lock) -> tuple[ImageName, ...]:
    """The numbers that the two sides gave to different builds."""
    return tuple(name for name, our, their in _in_both(ours, theirs) if not _same_build(our, their))


def _same_build(our: NumberedImage, their: NumberedImage) -> bool:
    """True if both record the same build, however it was marked since."""
    return (our.built, our.fingerprint, our.input_hash) == (their.built, their.fingerprint, their.input_hash)


def renamed(lock: Lock, name: ImageName, number: int) -> Lock:
    """``lock`` with another number for an image: in its record, in the pointers to it and in the pairings with it.

    Raises ValueError where the number is taken.
    """
    repository = lock.images[name.repository]
    if number in repository.numbers:
        raise ValueError(f"{name.repository}:{number} is given already")

    def moved(old: int) -> int:
        return number if old == name.number else old

    renumbered = replace(
        repository,
        next=max(repository.next, number + 1),
        current=moved(repository.current) if repository.current else None,
        previous=tuple(moved(old) for old in repository.previous),
        numbers={moved(old): image for old, image in repository.numbers.items()},
    )
    to = ImageName(name.repository, number)
    models = {}
    for model, paired in lock.models.items():
        pairings = (replace(p, image=to) if p.image == name else p for p in (paired.pairing, *paired.previous))
        first, *rest = pairings
        models[model] = Model(first, tuple(rest))
    return replace(lock.with_repository(name.repository, renumbered), models=models)


def union(ours: Lock, theirs: Lock) -> Lock:
    """All that either side records. The sequences decide which number is current and which serves a model, as they do
    after a merge by git. Of a number that clashes, ours is kept."""
    pins = {name: {**theirs.pins.get(name, {}), **ours.pins.get(name, {})} for name in (*ours.pins, *theirs.pins)}
    names = (*ours.images, *theirs.images)
    images = {name: _repository(ours.images.get(name), theirs.images.get(name)) for name in names}
    models = {name: _model(ours.models.get(name), theirs.models.get(name)) for name in (*ours.models, *theirs.models)}
    return Lock(pins, images, models)


def adopt(ours: Lock, imported: Lock) -> Lock:
    """``ours`` with all that ``imported`` records besides. Ours counts: no pointer moves in a repository or of a model
    that it has."""
    merged = union(ours, imported)
    own = {
        name: replace(merged.images[name], current=repository.current, previous=repository.previous)
        for name, repository in ours.images.items()
        if repository.numbers
    }
    return replace(merged, images={**merged.images, **own}, models={**imported.models, **ours.models})


def chosen(ours: Lock, theirs: Lock) -> Iterator[str]:
    """One line for each thing that the two sides record differently, and that ``union`` takes from ours."""
    for definition, platforms in ours.pins.items():
        for platform, pins in platforms.items():
            if theirs.pins.get(definition, {}).get(platform, pins) != pins:
                yield f"the pins of {definition} on {platform}"
    for name, our, their in _in_both(ours, theirs):
        if _same_build(our, their) and our != their:
            yield f"the marks of {name}"
    for model in sorted(ours.models.keys() & theirs.models.keys()):
        their_pairings = _pairings(theirs.models[model])
        for image, pairing in _pairings(ours.models[model]).items():
            if their_pairings.get(image, pairing) != pairing:
                yield f"the pairing of {model} with {image}"


def _in_both(ours: Lock, theirs: Lock) -> Iterator[tuple[ImageName, NumberedImage, NumberedImage]]:
    for repository in sorted(ours.images.keys() & theirs.images.keys()):
        our, their = ours.images[repository].numbers, theirs.images[repository].numbers
        for number in sorted(our.keys() & their.keys()):
            yield ImageName(repository, number), our[number], their[number]


def _pairings(model: Model | None) -> dict[ImageName, Pairing]:
    return {pairing.image: pairing for pairing in (model.pairing, *model.previous)} if model else {}


def _repository(ours: Repository | None, theirs: Repository | None) -> Repository:
    sides = our, their = ours or Repository(), theirs or Repository()
    order = _merged_order(*((*([side.current] if side.current else []), *side.previous) for side in sides))
    numbers = {**their.numbers, **our.numbers}
    return Repository(max(our.next, their.next), order[0] if order else None, order[1:], numbers)


def _model(ours: Model | None, theirs: Model | None) -> Model:
    our, their = _pairings(ours), _pairings(theirs)
    pairings = {**their, **our}
    latest, *before = (pairings[image] for image in _merged_order(our, their))
    return Model(latest, tuple(before))


def _merged_order(ours: Iterable[T], theirs: Iterable[T]) -> tuple[T, ...]:
    """The order of both, the latest first, as the file has it after a merge: each member with its higher sequence."""
    our, their = sequences_of(ours), sequences_of(theirs)
    members = our.keys() | their.keys()
    return latest_first({member: max(our.get(member, 0), their.get(member, 0)) for member in members})


# The sides of a merge that was left in images.lock: the lock of each branch. Git leaves markers where both branches
# changed the same lines; whoever deletes the markers and keeps both blocks leaves a number that stands twice.


@dataclass(frozen=True)
class MergeSide:
    """The text of one side, and the number of each of its lines in the file, from 1 on."""

    text: str
    lines: tuple[int, ...]


def locks(text: str, file: str) -> tuple[Lock, ...]:
    """The lock of every side in ``text``, in the order of the file; a single one where nothing stands twice.

    Raises LockError where a side cannot be read as a lock.
    """
    try:
        if conflict_marks(text):
            raise conflict_error(text, file)
        return (parse_lock(text, file),)
    except LockError:
        sides = _of_conflict(text) or _of_numbers_that_stand_twice(text, file)
        if not sides:
            raise
    return tuple(lock for side in sides for lock in locks(side.text, file))


def is_lost(content: bytes, file: str) -> bool:
    """True if nothing can be read as a lock: neither the sides of a merge, nor by a newer version of this program."""
    try:
        text = content.decode()
        locks(text, file)
    except NewerLockError:
        return False
    except (LockError, UnicodeDecodeError):
        return not conflict_marks(content.decode(errors="replace"))
    return False


def conflict_error(text: str, file: str) -> LockError:
    """The error that names every marker that git left, and every number that the sides gave to two images, with both
    places."""
    problems = [Problem(Location(file, line), f"git conflict marker `{mark}`") for line, mark in conflict_marks(text)]
    sides = _of_conflict(text)
    if sides:
        problems += _clashes(sides, file)
    return lock_error(problems, MERGE)


def _clashes(sides: tuple[MergeSide, MergeSide], file: str) -> Iterator[Problem]:
    try:
        names = clashes(*(parse_lock(side.text, file) for side in sides))
        trees = [read_tree(side.text, file) for side in sides]
    except LockError:
        return  # the markers are reported; anything else is reported once they are gone
    for name in names:
        ours, theirs = _places(name, sides, trees)
        yield Problem(ours, f"{name} is given here, and to another image in {theirs}")


def _places(name: ImageName, sides: tuple[MergeSide, MergeSide], trees: list[Tree]) -> tuple[Location, Location]:
    """The place where each side gives the number: the first line of its block that differs from the other's."""
    block = ("images", name.repository, "numbers", str(name.number))
    paths = [path for path in trees[0].places if path[:4] == block and path in trees[1].places]
    pairs = []
    for path in paths:
        places = [tree.place(path) for tree in trees]
        lines = [side.lines[place.line - 1] for side, place in zip(sides, places, strict=True)]
        pairs.append(tuple(Location(p.file, line, p.column) for p, line in zip(places, lines, strict=True)))
    apart = next((pair for pair in pairs if pair[0] != pair[1]), pairs[0])
    return apart[0], apart[1]


def _of_conflict(text: str) -> tuple[MergeSide, MergeSide] | None:
    """Both sides of every conflict that git marked; None where it marked none, or the markers are out of order."""
    marks = dict(conflict_marks(text))
    ours: list[tuple[int, str]] = []
    theirs: list[tuple[int, str]] = []
    both = [ours, theirs]
    into = both
    expected = "<"
    for number, line in enumerate(text.split("\n"), start=1):
        mark = marks.get(number, "")[:1]
        if not mark:
            for side in into:
                side.append((number, line))
        elif mark not in expected:
            return None
        else:
            into = {"<": [ours], "|": [], "=": [theirs], ">": both}[mark]
            expected = {"<": "|=", "|": "=", "=": ">", ">": "<"}[mark]
    if not marks or expected != "<":
        return None
    return _side(ours), _side(theirs)


def _of_numbers_that_stand_twice(text: str, file: str) -> tuple[MergeSide, MergeSide] | None:
    """One side without the second block of each number, the other without the first."""
    numbers = [key for key in read_tree(text, file).duplicates if key.is_number]
    if not numbers:
        return None
    lines = list(enumerate(text.split("\n"), start=1))
    first = {line for number in numbers for line in _block(lines, number.first)}
    again = {line for number in numbers for line in _block(lines, number.again)}
    return _side([line for line in lines if line[0] not in again]), _side([ln for ln in lines if ln[0] not in first])


def _block(lines: list[tuple[int, str]], place: Location) -> Iterator[int]:
    """The lines of the block whose key stands at ``place``."""
    yield place.line
    for number, line in lines[place.line :]:
        if line.strip() and len(line) - len(line.lstrip(" ")) < place.column:
            return
        yield number


def _side(lines: list[tuple[int, str]]) -> MergeSide:
    return MergeSide("\n".join(line for _, line in lines), tuple(number for number, _ in lines))
