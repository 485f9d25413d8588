"""The pins of the git sources of one definition, pull requests included: what is asked for still keeps its pin."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from builder.definitions.image import WheelSource
from builder.errors import SourceError
from builder.lock.pins import GitPin, Pins, PullPin, SourcePin, WheelPin
from builder.pinning import vendored as frozen_diffs
from builder.pinning.resolver import answered

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from builder.definitions.image import GitSource, ImageDefinition, Source
    from builder.pinning.resolver import Resolver


@dataclass(frozen=True)
class Resolved:
    """The pins that there are now, by name; the diffs that were frozen for them, by SHA-256; and why others are not."""

    sources: dict[str, SourcePin]
    frozen: Mapping[str, bytes]
    errors: Mapping[str, SourceError]


def covers(source: Source, pin: SourcePin | None) -> bool:
    """Whether ``pin`` is what ``source`` asks for today, pull requests in their order included."""
    if isinstance(source, WheelSource):
        return isinstance(pin, WheelPin) and pin.requested == source.requested
    kept = _kept(source, pin)
    return kept is not None and tuple(pull.number for pull in kept.pulls) == source.pulls


def _kept(source: GitSource, pin: SourcePin | None) -> GitPin | None:
    """``pin`` where its address and ref are those that ``source`` asks for today, whatever its pull requests."""
    from builder.sources.git import credentials

    if isinstance(pin, GitPin) and (pin.git, pin.requested) == (credentials.split(source.git).url, source.ref):
        return pin
    return None


def resolve(
    definition: ImageDefinition,
    pins: Pins,
    wanted: Mapping[str, str | None],
    update: Collection[str],
    resolver: Resolver,
) -> Resolved:
    """``pins`` with the git sources among ``wanted`` resolved, each to the ref that stands there or the definition's,
    and without what is no source of the definition.

    Where only pull requests were added or taken away, the commit stays, and so do the diffs of the others: both move
    only where the source is in ``update``. Raises LockError where such a diff is gone or was edited.
    """
    sources = {name: source for name, source in definition.git_sources.items() if name in wanted}
    unmoved = {name: _kept(source, pins.sources.get(name)) for name, source in sources.items() if name not in update}
    kept = {name: pin for name, pin in unmoved.items() if pin}
    asked = [(name, source.git, wanted[name] or source.ref) for name, source in sources.items() if name not in kept]
    found = {name: pin for name, pin in pins.sources.items() if name in definition.sources}
    frozen: dict[str, bytes] = {}
    errors = {}
    for name, answer in {**resolver.commits(asked), **kept}.items():
        source = sources[name]
        try:
            pin = replace(answered(answer), requested=source.ref)
            diffs = _diffs(definition, name, kept[name], resolver) if name in kept else {}
            found[name] = _whole(resolver, pin, source, diffs, frozen)
        except SourceError as error:
            errors[name] = error
    return Resolved(found, frozen, errors)


def _diffs(definition: ImageDefinition, name: str, pin: GitPin, resolver: Resolver) -> dict[int, tuple[PullPin, bytes]]:
    """The pull requests that ``pin`` has and the definition still asks for, with their diffs, by number."""
    pulls = tuple(pull for pull in pin.pulls if pull.number in definition.git_sources[name].pulls)
    held = Pins(sources={name: replace(pin, pulls=pulls)})
    contents = frozen_diffs.load(resolver.project, definition.name, held, {})
    return {pull.number: (pull, contents[pull.sha256]) for pull in pulls}


def _whole(
    resolver: Resolver,
    pin: GitPin,
    source: GitSource,
    kept: Mapping[int, tuple[PullPin, bytes]],
    frozen: dict[str, bytes],
) -> GitPin:
    """``pin`` with its pull requests, those that are not ``kept`` as they are now, whose diffs go into ``frozen``; and
    with its files kept in the mirror."""
    from builder.sources.git import trees

    mirrors = resolver.project.mirrors
    taken = []
    for number in source.pulls:
        if number in kept:
            taken.append(kept[number])
        else:
            now = resolver.pull(source.git, number, pin.commit)
            taken.append((now.pin, now.diff))
    if taken:
        from builder.sources.git import pull_dry_run

        labelled = [(f"pull request {one.number}", diff) for one, diff in taken]
        pull_dry_run.check(mirrors, source.git, pin.commit, labelled, resolver.say)
    frozen.update({one.sha256: diff for one, diff in taken})
    trees.preserve(mirrors, source.git, pin.commit, resolver.say)
    return replace(pin, pulls=tuple(one for one, _ in taken))
