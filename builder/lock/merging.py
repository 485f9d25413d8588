"""Merging two locks: the records of two branches that git could not merge, or a lock and what was recovered.

The numbers of both are kept. Where both sides changed the same thing, ours counts.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from builder.lock import sequences
from builder.lock.model import ImageName, Lock, Model, NumberedImage, Pairing, Repository

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

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
    our, their = sequences.of(ours), sequences.of(theirs)
    members = our.keys() | their.keys()
    return sequences.latest_first({member: max(our.get(member, 0), their.get(member, 0)) for member in members})
