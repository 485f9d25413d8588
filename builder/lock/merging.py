"""Two locks made one: what two branches recorded, where git could not put it together.

Numbers of both are kept. What both sides moved differently is taken from ours, and said.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from builder.lock import sequences
from builder.lock.model import ImageName, Lock, Model, NumberedImage, Repository

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

T = TypeVar("T", bound=Any)


def clashes(ours: Lock, theirs: Lock) -> tuple[ImageName, ...]:
    """The numbers that each side gave to another build."""
    return tuple(name for name, one, other in _in_both(ours, theirs) if not same_build(one, other))


def same_build(one: NumberedImage, other: NumberedImage) -> bool:
    """Whether both record one build, whatever was marked since."""
    return (one.built, one.fingerprint, one.input_hash) == (other.built, other.fingerprint, other.input_hash)


def renamed(lock: Lock, name: ImageName, number: int) -> Lock:
    """``lock`` with another number for an image: its record, the pointers to it and the pairings with it.

    Raises ValueError where the number is given already.
    """
    repository = lock.images[name.repository]
    if number in repository.numbers:
        raise ValueError(f"{name.repository}:{number} is given already")

    def moved(old: int) -> int:
        return number if old == name.number else old

    held = replace(
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
    return replace(lock.with_repository(name.repository, held), models=models)


def union(ours: Lock, theirs: Lock) -> Lock:
    """All that either side records. The sequences decide what is current and what serves a model, as they do where git
    merges. To be called where nothing clashes: of a number that does, ours would be kept."""
    pins = {name: {**theirs.pins.get(name, {}), **ours.pins.get(name, {})} for name in (*ours.pins, *theirs.pins)}
    names = (*ours.images, *theirs.images)
    images = {name: _repository(ours.images.get(name), theirs.images.get(name)) for name in names}
    models = {name: _model(ours.models.get(name), theirs.models.get(name)) for name in (*ours.models, *theirs.models)}
    return Lock(pins, images, models)


def taken_up(ours: Lock, told: Lock) -> Lock:
    """``ours`` with what ``told`` records beside it. What ours says counts: of a repository or a model that it knows,
    nothing that is pointed at moves."""
    merged = union(ours, told)
    kept = {
        name: replace(merged.images[name], current=held.current, previous=held.previous)
        for name, held in ours.images.items()
        if held.numbers
    }
    return replace(merged, images={**merged.images, **kept}, models={**told.models, **ours.models})


def chosen(ours: Lock, theirs: Lock) -> Iterator[str]:
    """One line for each thing that both sides say differently, and that ``union`` takes from ours."""
    for definition, platforms in ours.pins.items():
        for platform, pins in platforms.items():
            if theirs.pins.get(definition, {}).get(platform, pins) != pins:
                yield f"the pins of {definition} on {platform}"
    for name, one, other in _in_both(ours, theirs):
        if same_build(one, other) and one != other:
            yield f"the marks of {name}"
    for model in sorted(ours.models.keys() & theirs.models.keys()):
        said = [
            {p.image: p for p in (held.pairing, *held.previous)} for held in (ours.models[model], theirs.models[model])
        ]
        yield from (f"the pairing of {model} with {i}" for i in said[0] if said[1].get(i, said[0][i]) != said[0][i])


def _in_both(ours: Lock, theirs: Lock) -> Iterator[tuple[ImageName, NumberedImage, NumberedImage]]:
    for repository in sorted(ours.images.keys() & theirs.images.keys()):
        one, other = ours.images[repository].numbers, theirs.images[repository].numbers
        for number in sorted(one.keys() & other.keys()):
            yield ImageName(repository, number), one[number], other[number]


def _repository(ours: Repository | None, theirs: Repository | None) -> Repository:
    one, other = ours or Repository(), theirs or Repository()
    orders = [(*([side.current] if side.current else []), *side.previous) for side in (one, other)]
    order = _merged_order(*orders)
    numbers = {**other.numbers, **one.numbers}
    return Repository(max(one.next, other.next), order[0] if order else None, order[1:], numbers)


def _model(ours: Model | None, theirs: Model | None) -> Model:
    mine, others = ({p.image: p for p in (side.pairing, *side.previous)} if side else {} for side in (ours, theirs))
    pairings = {**others, **mine}
    latest, *before = (pairings[image] for image in _merged_order(tuple(mine), tuple(others)))
    return Model(latest, tuple(before))


def _merged_order(ours: Iterable[T], theirs: Iterable[T]) -> tuple[T, ...]:
    """The order of both, latest first, as the file says it after a merge: each member with its higher sequence."""
    mine, others = sequences.of(ours), sequences.of(theirs)
    return sequences.latest_first(
        {member: max(mine.get(member, 0), others.get(member, 0)) for member in (*mine, *others)}
    )
