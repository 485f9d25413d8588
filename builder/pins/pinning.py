"""This page pins each source and package of a definition to an exact version.

The date limit comes first, then the Python closures, the git sources, the pins of a definition, and older versions.
A current pin stays; only a stale one is resolved again.
Unless the definition says otherwise, a closure has packages from the time of its source.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from builder.base import words
from builder.base.errors import SourceError, UsageError
from builder.definitions.image import AS_OF_SOURCE, AS_OF_TODAY, PACKAGES_BUILT_FROM, BaseSource, WheelSource
from builder.lock.model import (
    BasePin,
    GitPin,
    IncludedPin,
    LockedPackage,
    Pins,
    PullPin,
    PythonPin,
    SourcePin,
    WheelPin,
)
from builder.pins import agreement, packages, vendored
from builder.pins.resolver import answered
from builder.sources import python

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from builder.definitions.image import GitSource, ImageDefinition, PythonRequirements, Source
    from builder.pins.base_contents import BaseContents
    from builder.pins.resolver import Resolver
    from builder.sources.git import UserSettings


# The moment after which nothing is taken into a closure: that of the source that the packages are for. A release
# pinned months later would otherwise get the newest of everything, which it was never run with, and which later
# releases often exclude.

DAYS = 14
"""How much newer than the source packages may be: what mends a release comes in the days after it."""

# The source whose time counts where a definition has several: FlashInfer follows vLLM.
_GOVERNING = ("vllm", "flashinfer")


def limit(
    definition: ImageDefinition,
    wants: PythonRequirements,
    pins: tuple[Pins, Pins],
    below: str,
    resolver: Resolver,
    update: Mapping[str, str | None],
) -> str:
    """The moment (RFC 3339 UTC) after which nothing is taken; empty where there is none.

    ``pins`` are those before, and those with the sources that the closures are for; ``below`` is the moment of the
    image that this one is built on. Packages of a closure that is kept are not too new: it was resolved as it is.
    """
    if wants.as_of == AS_OF_TODAY:
        return ""
    if wants.as_of != AS_OF_SOURCE:
        return f"{wants.as_of}T23:59:59Z"
    name = next((name for name in _GOVERNING if name in definition.sources), None)
    if name is None:
        return below
    before, now = pins
    stays = "python" not in update and _is_same(definition, name, before, now, update)
    pin = now.sources.get(name)
    made = _made(definition, wants, name, now, pin.version if stays and pin else update.get(name), resolver)
    if not made:
        resolver.say(f"{definition.name}: the day of its {name} is not known, so its packages are those of today")
        return ""
    end = words.timestamp_of(datetime.fromisoformat(made) + timedelta(days=DAYS))
    return max(end, _limit_before(before)) if stays else end


def _limit_before(pins: Pins) -> str:
    """The moment after which nothing was taken into a closure. Where it had no limit, the first moment after the upload
    of its newest package; empty where none is known. A package named with an exact version may be younger than the
    limit, and must not move it: all others would follow."""
    if pins.python is None or pins.python.as_of:
        return pins.python.as_of if pins.python else ""
    newest = pins.python.newest
    return words.timestamp_of(datetime.fromisoformat(newest) + timedelta(seconds=1)) if newest else ""


def _is_same(definition: ImageDefinition, name: str, before: Pins, now: Pins, update: Mapping[str, str | None]) -> bool:
    """True where the closure before was resolved for the same source."""
    source, pin = definition.sources[name], before.sources.get(name)
    if pin is None or name in update:
        return False
    if isinstance(source, WheelSource):
        return not isinstance(pin, GitPin | IncludedPin) and pin.requested == source.requested
    return pin.version == now.sources[name].version and pin.commit == now.sources[name].commit


def _made(
    definition: ImageDefinition,
    wants: PythonRequirements,
    name: str,
    pins: Pins,
    version: str | None,
    resolver: Resolver,
) -> str:
    """The moment that a source was committed, uploaded, or baked into the base; empty where nothing tells it. That of a
    wheel is of ``version`` where one is given."""
    from builder.sources import wheels

    source, pin = definition.sources[name], pins.sources.get(name)
    if isinstance(pin, GitPin):
        return pin.date
    if not isinstance(source, WheelSource):
        return pins.base.created if pins.base else ""
    requirement = agreement.requirement(source, pin, version)
    try:
        return wheels.read_upload_date(requirement, wants, definition.platform, resolver.settings)
    except SourceError:
        return ""  # the closure cannot be had, either, and says why


# The Python closures of one definition: the packages that its image installs, and those that build its git sources.
# Both belong to the commits that they were resolved for, since the requirement files of a source are part of them.

# Both are compiled against the torch that the image runs, and FlashInfer's wheels of kernels import the package itself.
_BUILT_AGAINST = ("torch",)


def to_run(
    definition: ImageDefinition,
    wants: PythonRequirements,
    pins: Pins,
    inherited: tuple[LockedPackage, ...],
    resolver: Resolver,
    update: Mapping[str, str | None],
    as_of: str = "",
) -> Pins:
    """``pins``, which hold all sources from git, with the packages that the image installs resolved anew, the wheels of
    sources included.

    ``inherited`` are the packages of the parent images, which stay as they are, and those of a base image that others
    build, of which only those move that the definition itself asks for. A package that was in the closure keeps
    its version where that still fits, unless ``update`` names ``python``, or the source that it is the wheel of; the
    wheel of a source goes to the version that ``update`` maps it to.
    Nothing is taken that was uploaded after ``as_of``, but the wheels of sources and what is requested by an exact
    version. Raises SourceError.
    """
    resolver.say(f"resolving the Python packages of {definition.name} for {definition.platform}")
    wheels = tuple(
        agreement.requirement(source, pins.sources.get(name), update.get(name))
        for name, source in definition.wheel_sources.items()
    )
    of_sources = _requirements_of_sources(definition, pins, resolver)
    requirements = _runtime_requirements(wheels, wants, of_sources)
    requested = python.requested_packages(definition, pins.sources, inherited)
    moving = {source.package for name, source in definition.wheel_sources.items() if name in update}
    locked = pins.python.packages if pins.python and "python" not in update else ()
    previous = tuple(package for package in locked if package.name not in moving)
    exempt = exact_closure(wants.packages) | {source.package for source in definition.wheel_sources.values()}
    request = python.ClosureRequest(wants, requested, requirements, definition.platform, previous, as_of, exempt)
    resolved = python.resolve_closure(request, resolver.settings, inherited)
    _say_undated(definition, as_of, resolved.pin, resolver)
    there = {(package.name, package.version) for package in inherited}
    own = tuple(package for package in resolved.pin.packages if (package.name, package.version) not in there)
    return replace(
        pins,
        python=replace(resolved.pin, packages=own),
        sources={**pins.sources, **_wheel_pins(definition, resolved, resolver)},
    )


def to_build(
    definition: ImageDefinition,
    wants: PythonRequirements,
    pins: Pins,
    inherited: tuple[LockedPackage, ...],
    resolver: Resolver,
    update: Mapping[str, str | None],
    as_of: str = "",
) -> Pins:
    """``pins``, which hold all else, with the packages that it takes to build the sources from git; see ``to_run``."""
    if not wants.build:
        return replace(pins, build=None)
    flashinfer = _requirements_of_sources(definition, pins, resolver).get("flashinfer", ())
    previous = pins.build.packages if pins.build and "build" not in update else ()
    requirements = (*wants.build, *_BUILT_AGAINST, *flashinfer)
    requested = python.requested_build_packages(wants)
    exempt = exact_closure(wants.build)
    request = python.ClosureRequest(wants, requested, requirements, definition.platform, previous, as_of, exempt)
    installed = (*inherited, *(pins.python.packages if pins.python else ()))
    return replace(pins, build=python.resolve_closure(request, resolver.settings, installed).pin)


def exact_closure(requirements: tuple[str, ...]) -> frozenset[str]:
    """The normalised names of the packages that are requested by an exact version: nobody takes one by chance that is
    newer than the rest."""
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.utils import canonicalize_name

    names = []
    for text in requirements:
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        if any(part.operator in {"==", "==="} and "*" not in part.version for part in requirement.specifier):
            names.append(canonicalize_name(requirement.name))
    return frozenset(names)


def _say_undated(definition: ImageDefinition, as_of: str, pin: PythonPin, resolver: Resolver) -> None:
    """Says where an index gives no upload dates, so that packages may be newer than they should be."""
    if as_of and not pin.as_of:
        resolver.say(
            f"{definition.name}: the package index gives no upload dates, so its packages are those of today, and not"
            f" of {as_of[:10]}"
        )
    elif pin.undated:
        resolver.say(
            f"{definition.name}: the index of {', '.join(pin.undated)} gives no upload dates, so these may be newer"
            f" than {as_of[:10]}"
        )


def without(requirements: tuple[str, ...], names: set[str]) -> tuple[str, ...]:
    """The requirements for other packages than these. Raises SourceError for text that is not a requirement."""
    from packaging.requirements import InvalidRequirement, Requirement
    from packaging.utils import canonicalize_name

    others = []
    for text in requirements:
        try:
            package = Requirement(text).name
        except InvalidRequirement as error:
            raise SourceError(f"`{text}` is not a requirement: {str(error).splitlines()[0]}") from None
        if canonicalize_name(package) not in names:
            others.append(text)
    return tuple(others)


def _requirements_of_sources(definition: ImageDefinition, pins: Pins, resolver: Resolver) -> dict[str, tuple[str, ...]]:
    """The requirements in the files of each source from git, by source, without those that are built from source."""
    from builder.sources import mirror

    built = {name for source in definition.git_sources for name in PACKAGES_BUILT_FROM.get(source, ())}
    requirements: dict[str, tuple[str, ...]] = {}
    for name, source in definition.git_sources.items():
        commit = str(pins.sources[name].commit)
        for file in source.requirements:
            mirrors = resolver.project.mirrors
            lines = mirror.read_requirements(mirrors, source.git, commit, file, resolver.say)
            try:
                requirements[name] = (*requirements.get(name, ()), *without(lines, built))
            except SourceError as error:
                raise SourceError(f"{file} of {name} at {commit[:12]}: {error.message}") from None
    return requirements


def _runtime_requirements(
    wheels: tuple[str, ...], wants: PythonRequirements, of_sources: Mapping[str, tuple[str, ...]]
) -> tuple[str, ...]:
    """All that the image installs: wheels, packages, the requirements of its sources, and uv, which installs the
    others."""
    from_sources = (requirement for requirements in of_sources.values() for requirement in requirements)
    return tuple(dict.fromkeys([*wheels, *wants.packages, *from_sources, "uv"]))


def _wheel_pins(
    definition: ImageDefinition, resolved: python.ResolvedClosure, resolver: Resolver
) -> dict[str, WheelPin]:
    """The pins of the sources taken as wheels. A wheel's version is the one in the closure, so that the two agree."""
    from builder.sources import wheels

    versions = {package.name: package.version for package in resolved.pin.packages}
    pins = {}
    for name, source in definition.wheel_sources.items():
        address = resolved.addresses.get(source.package)
        commit = wheels.read_wheel_commit(address, resolver.settings.ca_file) if address else None
        pins[name] = WheelPin(source.requested, versions[source.package], commit)
    return pins


# The pins of the git sources of one definition, pull requests included: a request that stays keeps its pin.

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
    return f"{source.ref}/{agreement.identity(pins.sources.get('vllm'))}" if source.follows_vllm else source.ref


def _of_ref(source: GitSource, pin: SourcePin | None, pins: Pins) -> GitPin | None:
    """``pin`` where its address and ref are those of ``source``, whatever its pull requests."""
    from builder.sources import git

    if isinstance(pin, GitPin) and (pin.git, pin.requested) == (
        git.split(source.git).url,
        recorded_ref(source, pins),
    ):
        return pin
    return None


def resolve_source(
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
    version = agreement.wheel_version(source, pin)
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
        return f"refs/tags/{agreement.flashinfer_tag(definition, pins, resolver)}"
    return wanted or source.ref


def _vendored(
    definition: ImageDefinition, name: str, pin: GitPin, resolver: Resolver
) -> dict[int, tuple[PullPin, bytes]]:
    """The pull requests that ``pin`` has and the definition still requests, with their patches, by number."""
    requested = _requested(definition.git_sources[name])
    pulls = tuple(pull for pull in pin.pulls if (pull.number, pull.base) in requested)
    pins = Pins(sources={name: replace(pin, pulls=pulls)})
    contents = vendored.load_vendored(resolver.project, definition.name, pins, {})
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
    from builder.sources import mirror

    mirrors = resolver.project.mirrors
    pulls = _pulls(resolver, pin, source, unchanged)
    if pulls:
        from builder.sources.pulls import check_pull

        labelled = [(f"pull request {pull.number}", patch) for pull, patch in pulls]
        check_pull(mirrors, source.git, pin.commit, labelled, resolver.say)
    patches.update({pull.sha256: patch for pull, patch in pulls})
    mirror.preserve(mirrors, source.git, pin.commit, resolver.say)
    return replace(pin, pulls=tuple(pull for pull, _ in pulls))


def _pulls(
    resolver: Resolver, pin: GitPin, source: GitSource, unchanged: Mapping[int, tuple[PullPin, bytes]]
) -> list[tuple[PullPin, bytes]]:
    """The pull requests of ``source`` in their order, each with a patch that applies after those before it. Raises
    SourceError with all that conflict."""
    from builder.sources.pulls import EarlierPatch, MergeConflictError, RequestedPull

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


# The pins of one definition: those of images.lock where they are current, resolved anew where they are stale.

Inherited = tuple[LockedPackage, ...] | None
"""The packages of the parent images; None where those are not all pinned, so that nothing on top of them can be."""


@dataclass(frozen=True)
class Fault:
    """A part of a definition that could not be resolved (``base``, ``vllm``, ``python`` …), and why."""

    definition: str
    name: str
    error: SourceError


@dataclass(frozen=True)
class ResolvedPins:
    """The pins of a definition, all of them where there are no ``faults``, and the patches that were vendored for them,
    by SHA-256."""

    pins: Pins
    patches: Mapping[str, bytes] = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()


def pin_names(definition: ImageDefinition) -> tuple[str, ...]:
    """The names of all that is pinned: ``base``, the sources, ``python``, and ``build`` for what builds them."""
    wants = definition.python
    return (
        *(["base"] if definition.base else []),
        *definition.sources,
        *(["python"] if wants else []),
        *(["build"] if wants and wants.build else []),
    )


def stale_pins(definition: ImageDefinition, pins: Pins, inherited: Inherited) -> tuple[str, ...]:
    """The names of those that ``pins`` lack, or have for another request than the definition's."""
    wants = definition.python
    inherited = with_base(definition, pins, inherited)
    requested = None if inherited is None else python.requested_packages(definition, pins.sources, inherited)
    sources = definition.sources
    current = {
        "base": pins.base is not None and pins.base.requested == definition.base,
        **{name: is_current(source, pins.sources.get(name), pins) for name, source in sources.items()},
        "python": bool(wants and pins.python and pins.python.requested == requested),
        "build": bool(wants and pins.build and pins.build.requested == python.requested_build_packages(wants)),
    }
    return tuple(name for name in pin_names(definition) if not current[name])


def with_base(definition: ImageDefinition, pins: Pins, inherited: Inherited) -> Inherited:
    """The packages that the own ones of a definition come on top of: those of its base image, too, where it is read."""
    if inherited is None or not definition.base_sources or pins.base is None:
        return inherited
    return (*inherited, *pins.base.packages)


def resolve_missing(
    definition: ImageDefinition,
    pins: Pins,
    inherited: Inherited,
    resolver: Resolver,
    update: Mapping[str, str | None],
    below: str = "",
) -> ResolvedPins:
    """``pins`` with everything resolved that is missing, stale or named in ``update``; nothing else moves.

    ``update`` maps names to the git ref, or the version of a wheel, to take instead of the definition's, or None;
    ``below`` is the moment after which nothing was taken into the image that this one is built on. What cannot be
    resolved is among the faults. The sources and the closures move together or, where there is a closure already, not
    at all: a closure is that of its sources. Raises UsageError for a ref where none can be given, FileProblemsError for
    text that is not a requirement.
    """
    from builder.definitions import image

    _refuse_impossible(definition, update)
    image.check(resolver.project, definition)
    moving = set(stale_pins(definition, pins, inherited)) | set(update)
    base = _base(definition, pins, resolver) if "base" in moving else ResolvedPins(pins)
    if set(definition.base_sources) & set(stale_pins(definition, base.pins, inherited)) and not base.faults:
        base = _with_contents(definition, pins, base.pins, resolver)
        moving |= set(stale_pins(definition, base.pins, inherited))
    moving -= {"base", *definition.base_sources}
    if not moving or (definition.base_sources and base.faults):
        return base
    before = agreement.with_chosen(definition, base.pins if definition.base_sources else pins, update)
    if faults := _missing_wheels(definition, update, resolver):
        return ResolvedPins(base.pins, faults=(*base.faults, *faults))
    rest = _sources(definition, before, {name: update.get(name) for name in moving}, update, resolver)
    rest = _held_against_vllm(definition, rest, resolver)
    if not rest.faults and _need_closures(pins, rest.pins, moving, update):
        rest = _with_closures(definition, pins, rest, inherited, resolver, update, below)
    if rest.faults and pins.python:
        rest = ResolvedPins(pins, faults=rest.faults)
        if definition.base_sources:
            return rest
    return ResolvedPins(replace(rest.pins, base=base.pins.base), rest.patches, (*base.faults, *rest.faults))


def _refuse_impossible(definition: ImageDefinition, update: Mapping[str, str | None]) -> None:
    """Raises UsageError for what cannot be moved as ``update`` says."""
    for name, ref in update.items():
        if name in definition.base_sources:
            raise UsageError(
                f"`--update {name}`: {name} of {definition.name} comes with its base image, {definition.base}",
                hint="`--update base` moves the two together",
            )
        if ref is not None and name in definition.wheel_sources:
            agreement.require_version(definition, name, ref)
        elif ref is not None and name not in definition.git_sources:
            raise UsageError(
                f"`--update {name}={ref}`: only a source from git can be moved to a ref, and a wheel to a version",
                hint=f"write what you want into dockerfiles/{definition.name}/image.yaml",
            )


def _missing_wheels(
    definition: ImageDefinition, update: Mapping[str, str | None], resolver: Resolver
) -> tuple[Fault, ...]:
    """A fault for each wheel that was asked for at a version that there is none of."""
    faults = []
    for name, version in update.items():
        if version and name in definition.wheel_sources:
            try:
                agreement.require_wheel(definition, name, version, resolver)
            except SourceError as error:
                faults.append(Fault(definition.name, name, error))
    return tuple(faults)


def error_of(faults: Sequence[Fault]) -> SourceError:
    """One error that names all that could not be resolved, and everything that can be done about it."""
    message = "\n".join(f"{fault.definition} {fault.name}: {fault.error.message}" for fault in faults)
    return SourceError(message, hint="; ".join(dict.fromkeys(fault.error.hint for fault in faults if fault.error.hint)))


def _base(definition: ImageDefinition, pins: Pins, resolver: Resolver) -> ResolvedPins:
    reference = str(definition.base)
    try:
        resolved = resolver.base(reference, definition.platform)
    except SourceError as error:
        return ResolvedPins(pins, faults=(Fault(definition.name, "base", error),))
    unmoved = pins.base if pins.base and pins.base.resolved == resolved else BasePin(reference, resolved)
    return ResolvedPins(replace(pins, base=replace(unmoved, requested=reference)))


def _with_contents(definition: ImageDefinition, before: Pins, pins: Pins, resolver: Resolver) -> ResolvedPins:
    """``pins`` with what the base brings; those of ``before`` where that cannot be read, or lacks a source."""
    base = pins.base
    if base is None:
        raise ValueError("the base is not pinned")
    try:
        contents = resolver.contents(base, definition.platform)
        _require_brought(definition, base, contents)
    except SourceError as error:
        return ResolvedPins(before, faults=(Fault(definition.name, "base", error),))
    brought = {
        name: IncludedPin(base.resolved, contents.sources[name].version, contents.sources[name].commit)
        for name in definition.base_sources
    }
    read = replace(base, created=contents.created, packages=contents.packages)
    return ResolvedPins(replace(pins, base=read, sources={**pins.sources, **brought}))


def _require_brought(definition: ImageDefinition, base: BasePin, contents: BaseContents) -> None:
    where = f"dockerfiles/{definition.name}/image.yaml"
    if missing := [name for name in definition.base_sources if name not in contents.sources]:
        raise SourceError(
            f"{base.requested} does not bring {' and '.join(missing)}, as `sources` says",
            hint=f"take it from git or as a wheel, or leave it out of `sources` in {where}",
        )
    wants = definition.python
    if wants and not contents.python.startswith(f"{wants.version}."):
        raise SourceError(
            f"the Python of {base.requested} is {contents.python}, and packages are asked for {wants.version}",
            hint=f"set `python.version` in {where}",
        )


def _sources(
    definition: ImageDefinition,
    pins: Pins,
    moving: Mapping[str, str | None],
    update: Mapping[str, str | None],
    resolver: Resolver,
) -> ResolvedPins:
    resolved = resolve_source(definition, pins, moving, update, resolver)
    faults = tuple(Fault(definition.name, name, error) for name, error in resolved.errors.items())
    return ResolvedPins(replace(pins, sources=resolved.sources), resolved.patches, faults)


def _need_closures(before: Pins, after: Pins, moving: set[str], update: Mapping[str, str | None]) -> bool:
    """True if the packages may be others: not where only the pull requests of a commit changed that stays."""

    def commits(pins: Pins) -> dict[str, SourcePin]:
        return {name: replace(p, pulls=()) if isinstance(p, GitPin) else p for name, p in pins.sources.items()}

    git = {name for name, pin in after.sources.items() if isinstance(pin, GitPin)}
    return bool(update) or bool(moving - git) or commits(before) != commits(after)


def _with_closures(
    definition: ImageDefinition,
    before: Pins,
    resolved: ResolvedPins,
    inherited: Inherited,
    resolver: Resolver,
    update: Mapping[str, str | None],
    below: str,
) -> ResolvedPins:
    wants = definition.python
    if wants is None:
        return resolved
    inherited = with_base(definition, resolved.pins, inherited)
    if inherited is None:
        error = SourceError(f"{definition.parent}, its parent, is not pinned completely")
        return replace(resolved, faults=(Fault(definition.name, "python", error),))
    pins, name = resolved.pins, "python"
    end = limit(definition, wants, (before, pins), below, resolver, update)
    try:
        # A build closure that was resolved for other sources does not belong to these pins, should the next one fail.
        pins = replace(to_run(definition, wants, pins, inherited, resolver, update, end), build=None)
        name = "build"
        with_build = replace(pins, build=resolved.pins.build)
        pins = to_build(definition, wants, with_build, inherited, resolver, update, end)
    except SourceError as error:
        told = _disagreement(definition, resolved, inherited, resolver) or error
        return replace(resolved, pins=pins, faults=(Fault(definition.name, name, told),))
    return replace(resolved, pins=pins)


def _held_against_vllm(definition: ImageDefinition, resolved: ResolvedPins, resolver: Resolver) -> ResolvedPins:
    """``resolved`` with a fault where a definition that builds from git has other versions than its vLLM names. Where
    vLLM is a wheel, uv holds its packages against it, and FlashInfer alone is left."""
    if resolved.faults or not definition.git_sources:
        return resolved
    try:
        named = agreement.read_named_versions(definition, resolved.pins, resolver)
        rust = agreement.rust(definition, resolved.pins, resolver) if definition.args.get("rust") else ""
        patches = {}
        if named or rust:
            patches = vendored.load_vendored(resolver.project, definition.name, resolved.pins, resolved.patches)
        agreement.check_agreement(resolver.project, definition, resolved.pins, patches, named)
        agreement.check_rust(resolver.project, definition, rust, patches)
    except SourceError as error:
        return replace(resolved, faults=(Fault(definition.name, "vllm", error),))
    return resolved


def _disagreement(
    definition: ImageDefinition, resolved: ResolvedPins, inherited: tuple[LockedPackage, ...], resolver: Resolver
) -> SourceError | None:
    """The reason with its place where packages cannot be resolved since they are not those that vLLM, or the image
    below, has."""
    parent = f"the image of {definition.parent}"
    try:
        named = agreement.installed((package for package in inherited if package.hashes), parent)
        named |= agreement.read_named_versions(definition, resolved.pins, resolver)
    except SourceError:
        return None
    try:
        agreement.check_agreement(resolver.project, definition, resolved.pins, {}, named)
    except SourceError as error:
        return error
    return None


# Packages and sources that new pins take back to an older version, and why: an index that is behind the pins, a limit
# of time, or the requirements of other packages.


@dataclass(frozen=True)
class OlderVersion:
    """A package or a source whose new pin is of an older version; ``why`` is empty where the reason is not known."""

    name: str
    before: str
    after: str
    why: str

    def __str__(self) -> str:
        return f"{self.name} goes back from {self.before} to {self.after}" + (f": {self.why}" if self.why else "")


def versions_between(
    definition: ImageDefinition, before: Pins, after: Pins, update: Mapping[str, str | None], settings: UserSettings
) -> tuple[OlderVersion, ...]:
    """The versions that go back from the pins ``before`` to those ``after``, by name. A source for which ``update``
    names a version is left out: that version was requested."""
    requested = {source.package for name, source in definition.wheel_sources.items() if update.get(name)}
    from_base = _going_back(
        before.base.packages if before.base else (), after.base.packages if after.base else (), requested
    )
    older = {name: OlderVersion(name, old, new, "the base image has it") for name, old, new in from_base}
    elsewhere = {name for index in (definition.python.indexes if definition.python else ()) for name in index.packages}
    for closure, other in ((before.build, after.build), (before.python, after.python)):
        if closure is None or other is None:
            continue
        limit = other.as_of if other.as_of and not "" < closure.as_of <= other.as_of else ""
        for name, old, new in _going_back(closure.packages, other.packages, requested):
            why = "" if name in elsewhere else _reason(name, old, limit, settings)
            older[name] = OlderVersion(name, old, new, why)
    for name, pin in after.sources.items():
        old_pin = before.sources.get(name)
        if not isinstance(pin, GitPin) or not isinstance(old_pin, GitPin) or update.get(name):
            continue
        if pin.git == old_pin.git and pin.date < old_pin.date:
            older[name] = OlderVersion(name, old_pin.version, pin.version, "its commit is older")
    return tuple(older[name] for name in sorted(older))


def _going_back(
    before: tuple[LockedPackage, ...], after: tuple[LockedPackage, ...], requested: set[str]
) -> Iterator[tuple[str, str, str]]:
    from packaging.version import InvalidVersion, Version

    versions = {package.name: package.version for package in before}
    for package in after:
        old = versions.get(package.name)
        if old is None or package.name in requested:
            continue
        try:
            if Version(package.version) < Version(old):
                yield package.name, old, package.version
        except InvalidVersion:
            continue


def _reason(name: str, old: str, limit: str, settings: UserSettings) -> str:
    from packaging.version import Version

    try:
        offered = packages.newest_release(name, settings)
    except SourceError:
        return ""
    if offered and Version(old) > max(map(Version, offered)):
        return f"the package index offers nothing newer than {offered[0]}"
    if limit:
        return f"nothing newer than {limit[:10]} is taken"
    return "the requirements of other packages exclude the newer version"
