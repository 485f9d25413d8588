"""The pins of the git sources of one definition, pull requests included: a request that stays keeps its pin."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from builder.definitions.image import BaseSource, WheelSource
from builder.errors import SourceError
from builder.lock.pins import GitPin, IncludedPin, Pins, PullPin, SourcePin, WheelPin
from builder.pinning import named_versions, vendored, wheel_versions
from builder.pinning.resolver import answered

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from builder.definitions.image import GitSource, ImageDefinition, Source
    from builder.pinning.resolver import Resolver


RELEASE = "release"
"""The ref that means the newest release of some age; a branch of that name is ``refs/heads/release``."""


@dataclass(frozen=True)
class ResolvedSources:
    """The pins of the sources by name, the patches that were vendored for them by SHA-256, and the errors of those that
    could not be resolved."""

    sources: dict[str, SourcePin]
    patches: Mapping[str, bytes]
    errors: Mapping[str, SourceError]


def is_current(source: Source, pin: SourcePin | None, pins: Pins) -> bool:
    """True if ``pin`` is one for the request of ``source``, pull requests in their order included; for a source that
    comes with the base, if it was read from the pinned one, and for one that follows vLLM, if it is that of the vLLM
    in ``pins``."""
    base = pins.base
    if isinstance(source, BaseSource):
        return isinstance(pin, IncludedPin) and base is not None and pin.base == base.resolved and bool(base.packages)
    if isinstance(source, WheelSource):
        return isinstance(pin, WheelPin) and pin.requested == source.requested
    current = _of_ref(source, pin, pins)
    return current is not None and tuple((pull.number, pull.base) for pull in current.pulls) == _requested(source)


def _requested(source: GitSource) -> tuple[tuple[int, str], ...]:
    """The pull requests of a source, each with its base, empty where that is the default branch."""
    return tuple((number, source.bases.get(number, "")) for number in source.pulls)


def recorded_ref(source: GitSource, pins: Pins) -> str:
    """The ref of a source as images.lock records it; of one that follows vLLM with the vLLM that it is for."""
    return f"{source.ref}/{named_versions.identity(pins.sources.get('vllm'))}" if source.follows_vllm else source.ref


def _of_ref(source: GitSource, pin: SourcePin | None, pins: Pins) -> GitPin | None:
    """``pin`` where its address and ref are those of ``source``, whatever its pull requests."""
    from builder.sources.git import credentials

    if isinstance(pin, GitPin) and (pin.git, pin.requested) == (
        credentials.split(source.git).url,
        recorded_ref(source, pins),
    ):
        return pin
    return None


def resolve(
    definition: ImageDefinition,
    pins: Pins,
    moving: Mapping[str, str | None],
    update: Collection[str],
    resolver: Resolver,
) -> ResolvedSources:
    """``pins`` with the git sources among ``moving`` resolved, each to the ref that it maps to or else the
    definition's, and without those that the definition no longer has.

    Where only pull requests were added or removed, the commit stays, and so do the patches of the others: both move
    only where the source is in ``update``. Raises LockError where such a patch is missing or was edited.
    """
    first = {name: source for name, source in definition.git_sources.items() if not source.follows_vllm}
    resolved = _resolve_some(definition, pins, first, moving, update, resolver)
    if len(first) == len(definition.git_sources) or resolved.errors:
        return resolved
    following = {name: source for name, source in definition.git_sources.items() if source.follows_vllm}
    there = _with_vllm(definition, replace(pins, sources=resolved.sources))
    moved = {
        name: moving.get(name)
        for name, source in following.items()
        if not _of_ref(source, there.sources.get(name), there)
    }
    rest = _resolve_some(definition, there, following, {**moving, **moved}, update, resolver)
    own = {name: pin for name, pin in rest.sources.items() if name in following}
    return ResolvedSources({**resolved.sources, **own}, {**resolved.patches, **rest.patches}, rest.errors)


def _with_vllm(definition: ImageDefinition, pins: Pins) -> Pins:
    """``pins`` with the wheel of vLLM that a source which follows it is for, before the closure pins it."""
    source, pin = definition.sources.get("vllm"), pins.sources.get("vllm")
    if not isinstance(source, WheelSource):
        return pins
    version = wheel_versions.version(source, pin)
    others = {name: other for name, other in pins.sources.items() if name != "vllm"}
    return replace(pins, sources={**others, **({"vllm": WheelPin(source.requested, version)} if version else {})})


def _resolve_some(
    definition: ImageDefinition,
    pins: Pins,
    wanted: Mapping[str, GitSource],
    moving: Mapping[str, str | None],
    update: Collection[str],
    resolver: Resolver,
) -> ResolvedSources:
    sources = {name: source for name, source in wanted.items() if name in moving}
    unmoved = {
        name: _of_ref(source, pins.sources.get(name), pins) for name, source in sources.items() if name not in update
    }
    kept = {name: pin for name, pin in unmoved.items() if pin}
    errors: dict[str, SourceError] = {}
    requested = []
    for name, source in sources.items():
        try:
            if name not in kept:
                requested.append((name, source.git, _ref(definition, pins, name, moving[name], resolver)))
        except SourceError as error:
            errors[name] = error
    resolved = {name: pin for name, pin in pins.sources.items() if name in definition.sources}
    patches: dict[str, bytes] = {}
    for name, answer in {**resolver.commits(requested), **kept}.items():
        source = sources[name]
        try:
            pin = replace(answered(answer), requested=recorded_ref(source, pins))
            unchanged = _vendored(definition, name, kept[name], resolver) if name in kept else {}
            resolved[name] = _with_pulls(resolver, pin, source, unchanged, patches)
        except SourceError as error:
            errors[name] = error
    return ResolvedSources(resolved, patches, errors)


def _ref(definition: ImageDefinition, pins: Pins, name: str, wanted: str | None, resolver: Resolver) -> str:
    """The branch, tag or commit to resolve: ``wanted``, or else what the definition says. Raises SourceError where
    there is no such release, or vLLM names none."""
    source = definition.git_sources[name]
    if wanted == RELEASE:
        return resolver.release(name, source.git)
    if source.follows_vllm and not wanted:
        return f"refs/tags/{named_versions.flashinfer_tag(definition, pins, resolver)}"
    return wanted or source.ref


def _vendored(
    definition: ImageDefinition, name: str, pin: GitPin, resolver: Resolver
) -> dict[int, tuple[PullPin, bytes]]:
    """The pull requests that ``pin`` has and the definition still requests, with their patches, by number."""
    requested = _requested(definition.git_sources[name])
    pulls = tuple(pull for pull in pin.pulls if (pull.number, pull.base) in requested)
    pins = Pins(sources={name: replace(pin, pulls=pulls)})
    contents = vendored.load(resolver.project, definition.name, pins, {})
    return {pull.number: (pull, contents[pull.sha256]) for pull in pulls}


def _with_pulls(
    resolver: Resolver,
    pin: GitPin,
    source: GitSource,
    unchanged: Mapping[int, tuple[PullPin, bytes]],
    patches: dict[str, bytes],
) -> GitPin:
    """``pin`` with its pull requests, fetched as they are now unless they are ``unchanged``. Their patches go into
    ``patches``, and the files of the commit into the mirror."""
    from builder.sources.git import trees

    mirrors = resolver.project.mirrors
    pulls = _pulls(resolver, pin, source, unchanged)
    if pulls:
        from builder.sources.git import pull_dry_run

        labelled = [(f"pull request {pull.number}", patch) for pull, patch in pulls]
        pull_dry_run.check(mirrors, source.git, pin.commit, labelled, resolver.say)
    patches.update({pull.sha256: patch for pull, patch in pulls})
    trees.preserve(mirrors, source.git, pin.commit, resolver.say)
    return replace(pin, pulls=tuple(pull for pull, _ in pulls))


def _pulls(
    resolver: Resolver, pin: GitPin, source: GitSource, unchanged: Mapping[int, tuple[PullPin, bytes]]
) -> list[tuple[PullPin, bytes]]:
    """The pull requests of ``source`` in their order, each with a patch that applies after those before it. Raises
    SourceError with all that conflict."""
    from builder.sources.git.pull_history import RequestedPull
    from builder.sources.git.pull_merge import EarlierPatch, MergeConflictError

    pulls: list[tuple[PullPin, bytes]] = []
    conflicts: list[MergeConflictError] = []
    for number, base in _requested(source):
        if number in unchanged:
            pulls.append(unchanged[number])
            continue
        earlier = tuple(EarlierPatch(f"pull request {pull.number}", patch, pull.head) for pull, patch in pulls)
        try:
            vendored_now = resolver.pull(source.git, RequestedPull(number, base), pin.commit, earlier)
        except MergeConflictError as error:
            conflicts.append(error)
        else:
            pulls.append((vendored_now.pin, vendored_now.diff))
    if conflicts:
        raise SourceError("\n".join(error.message for error in conflicts), hint=conflicts[0].hint)
    return pulls
