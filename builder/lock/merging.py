"""This page merges two versions of images.lock with their common ancestor.

Untrusted content comes first, then the numbers that both sides gave, then the merge.
The numbers of both sides are kept. If both sides changed the same value, ours counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from typing import Any, TypeVar

from builder.base.errors import LockError, UsageError
from builder.lock import lock_file
from builder.lock.model import ImageName, Lock, Model, NumberedImage, Pairing, Repository
from builder.lock.text import dump_lock

# Parts of images.lock that come from untrusted content, such as the labels of an image.


def refused(part: Lock) -> str:
    """The reason why images.lock cannot contain ``part``: an invalid name of an image, a mod or a definition, or a
    value of another kind. Empty if images.lock can contain it."""
    try:
        lock_file.parse_and_explain(dump_lock(part), "its labels")
    except (LockError, UsageError) as error:
        return error.message.splitlines()[0]
    except (TypeError, ValueError, AttributeError):
        return "its labels contain values that builder does not write"
    return ""


# Merging two locks: the records of two branches that git could not merge, or a lock and the recovered records. The
# numbers of both are kept. If both sides changed the same thing, ours counts.

T = TypeVar("T", bound=Any)


def clashes(ours: Lock, theirs: Lock) -> tuple[ImageName, ...]:
    return tuple(name for name, our, their in _in_both(ours, theirs) if not is_same_build(our, their))


def is_same_build(our: NumberedImage | None, their: NumberedImage | None) -> bool:
    if our is None or their is None:
        return False
    return (our.built, our.fingerprint, our.input_hash) == (their.built, their.fingerprint, their.input_hash)


def renamed(lock: Lock, name: ImageName, number: int) -> Lock:
    """``lock`` with another number for an image: in its record, its pointers and its pairings. Raises ValueError if the
    number is taken."""
    repository = lock.images[name.repository]
    if number in repository.numbers:
        raise ValueError(f"{name.repository}:{number} is already taken")

    def moved(old: int) -> int:
        return number if old == name.number else old

    renumbered = replace(
        repository,
        next=max(repository.next, number + 1),
        current=moved(repository.current) if repository.current else None,
        previous=tuple(moved(old) for old in repository.previous),
        numbers={moved(old): image for old, image in repository.numbers.items()},
    )

    def paired(pairing: Pairing) -> Pairing:
        return replace(pairing, image=ImageName(name.repository, number)) if pairing.image == name else pairing

    models = {m: Model(paired(each.pairing), tuple(map(paired, each.previous))) for m, each in lock.models.items()}
    return replace(lock.with_repository(name.repository, renumbered), models=models)


def union(base: Lock, ours: Lock, theirs: Lock) -> Lock:
    """All records of both sides. If only one side changed a value since ``base``, the changed value counts. If both
    sides gave a number to different images, ours is kept. With an empty ``base``, ours counts everywhere."""
    pins = {
        name: _merged(base.pins.get(name, {}), ours.pins.get(name, {}), theirs.pins.get(name, {}), _kept)
        for name in (*ours.pins, *theirs.pins)
    }
    images = _merged(base.images, ours.images, theirs.images, _repository)
    return Lock(pins, images, _merged(base.models, ours.models, theirs.models, _model))


def adopt(ours: Lock, imported: Lock) -> Lock:
    """``ours`` with all further records of ``imported``. Ours counts: the pointers of its repositories and models do
    not move."""
    merged = union(Lock(), ours, imported)
    own = {
        name: replace(merged.images[name], current=repository.current, previous=repository.previous)
        for name, repository in ours.images.items()
        if repository.numbers
    }
    return replace(merged, images={**merged.images, **own}, models={**imported.models, **ours.models})


def chosen(base: Lock, ours: Lock, theirs: Lock) -> Iterator[str]:
    """One line for each thing that both sides changed differently since ``base``, so that `union` takes ours. These are
    the differences between the union and the union with the sides exchanged."""
    kept, other = union(base, ours, theirs), union(base, theirs, ours)
    pins = ((definition, platform) for definition, platforms in kept.pins.items() for platform in platforms)
    yield from (f"the pins of {d} on {p}" for d, p in pins if kept.pins_of(d, p) != other.pins_of(d, p))
    both = _in_both(kept, other)
    yield from (f"the marks of {name}" for name, our, their in both if our != their and is_same_build(our, their))
    for repository in sorted(kept.images):
        now, elsewhere = (side.images[repository].current for side in (kept, other))
        if now != elsewhere:
            yield f"{repository}:{now} as the current image, while the other side has {repository}:{elsewhere}"
    for model in sorted(kept.models):
        pairing, other_pairing = (side.models[model].pairing for side in (kept, other))
        if pairing.image != other_pairing.image:
            yield f"{pairing.image} as the image of {model}, while the other side has {other_pairing.image}"
        elif pairing != other_pairing:
            yield f"the pairing of {model} with {pairing.image}"


def _in_both(ours: Lock, theirs: Lock) -> Iterator[tuple[ImageName, NumberedImage, NumberedImage]]:
    for repository in sorted(ours.images.keys() & theirs.images.keys()):
        our, their = ours.images[repository].numbers, theirs.images[repository].numbers
        for number in sorted(our.keys() & their.keys()):
            yield ImageName(repository, number), our[number], their[number]


def _pairings(model: Model | None) -> dict[ImageName, Pairing]:
    return {pairing.image: pairing for pairing in (model.pairing, *model.previous)} if model else {}


def _merged(
    base: Mapping[Any, T], ours: Mapping[Any, T], theirs: Mapping[Any, T], merge: Callable[[T | None, T, T], T]
) -> dict[Any, T]:
    both = {key: merge(base.get(key), ours[key], theirs[key]) for key in ours if key in theirs}
    return {**theirs, **ours, **both}


def _kept(base: T | None, ours: T, theirs: T) -> T:
    return theirs if ours == base else ours


def _fields(base: T | None, ours: T, theirs: T) -> T:
    changed: Any = ours
    names = [field.name for field in fields(changed)]
    values = {n: _kept(getattr(base, n, None), getattr(ours, n), getattr(theirs, n)) for n in names} if base else {}
    return replace(changed, **values)  # type: ignore[no-any-return]


def _image(base: NumberedImage | None, ours: NumberedImage, theirs: NumberedImage) -> NumberedImage:
    return _fields(base, ours, theirs) if is_same_build(ours, theirs) else ours


def _repository(base: Repository | None, ours: Repository, theirs: Repository) -> Repository:
    before = base or Repository()
    current = _kept(before.current, ours.current, theirs.current)
    our_order, their_order = ((side.current, *side.previous) for side in (ours, theirs))
    # Numbers that only one side used are later than numbers that both sides used.
    order = (*(number for number in their_order if number not in our_order), *our_order)
    previous = tuple(number for number in order if number not in (None, current))
    numbers = _merged(before.numbers, ours.numbers, theirs.numbers, _image)
    return Repository(max(ours.next, theirs.next), current, previous if current else (), numbers)


def _model(base: Model | None, ours: Model, theirs: Model) -> Model:
    pairings = _merged(_pairings(base), _pairings(ours), _pairings(theirs), _fields)
    serves = _kept(base.pairing.image if base else None, ours.pairing.image, theirs.pairing.image)
    now, order = pairings.pop(serves), dict.fromkeys((*_pairings(ours), *pairings))
    return Model(now, tuple(replace(pairings[image], since="") for image in order if image in pairings))
