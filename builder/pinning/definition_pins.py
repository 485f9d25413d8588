"""The pins of one definition: those of images.lock where they are current, resolved anew where they are stale."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from builder.errors import SourceError, UsageError
from builder.lock.pins import BasePin, GitPin, IncludedPin, LockedPackage, Pins, SourcePin
from builder.pinning import as_of, closures, named_versions, source_pins, vendored, version_agreement, wheel_versions
from builder.sources import python

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from builder.definitions.image import ImageDefinition
    from builder.pinning.base_contents import BaseContents
    from builder.pinning.resolver import Resolver

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


def names(definition: ImageDefinition) -> tuple[str, ...]:
    """The names of all that is pinned: ``base``, the sources, ``python``, and ``build`` for what builds them."""
    wants = definition.python
    return (
        *(["base"] if definition.base else []),
        *definition.sources,
        *(["python"] if wants else []),
        *(["build"] if wants and wants.build else []),
    )


def stale(definition: ImageDefinition, pins: Pins, inherited: Inherited) -> tuple[str, ...]:
    """The names of those that ``pins`` lack, or have for another request than the definition's."""
    wants = definition.python
    inherited = with_base(definition, pins, inherited)
    requested = None if inherited is None else python.requested_packages(definition, pins.sources, inherited)
    sources = definition.sources
    current = {
        "base": pins.base is not None and pins.base.requested == definition.base,
        **{name: source_pins.is_current(source, pins.sources.get(name), pins) for name, source in sources.items()},
        "python": bool(wants and pins.python and pins.python.requested == requested),
        "build": bool(wants and pins.build and pins.build.requested == python.requested_build_packages(wants)),
    }
    return tuple(name for name in names(definition) if not current[name])


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
    from builder.definitions import requirements

    _refuse_impossible(definition, update)
    requirements.check(resolver.project, definition)
    moving = set(stale(definition, pins, inherited)) | set(update)
    base = _base(definition, pins, resolver) if "base" in moving else ResolvedPins(pins)
    if set(definition.base_sources) & set(stale(definition, base.pins, inherited)) and not base.faults:
        base = _with_contents(definition, pins, base.pins, resolver)
        moving |= set(stale(definition, base.pins, inherited))
    moving -= {"base", *definition.base_sources}
    if not moving or (definition.base_sources and base.faults):
        return base
    before = wheel_versions.with_chosen(definition, base.pins if definition.base_sources else pins, update)
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
            wheel_versions.require_version(definition, name, ref)
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
                wheel_versions.require_wheel(definition, name, version, resolver)
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
    resolved = source_pins.resolve(definition, pins, moving, update, resolver)
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
    end = as_of.limit(definition, wants, (before, pins), below, resolver, update)
    try:
        # A build closure that was resolved for other sources does not belong to these pins, should the next one fail.
        pins = replace(closures.to_run(definition, wants, pins, inherited, resolver, update, end), build=None)
        name = "build"
        with_build = replace(pins, build=resolved.pins.build)
        pins = closures.to_build(definition, wants, with_build, inherited, resolver, update, end)
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
        named = named_versions.read(definition, resolved.pins, resolver)
        rust = named_versions.rust(definition, resolved.pins, resolver) if definition.args.get("rust") else ""
        patches = {}
        if named or rust:
            patches = vendored.load(resolver.project, definition.name, resolved.pins, resolved.patches)
        version_agreement.check(resolver.project, definition, resolved.pins, patches, named)
        version_agreement.check_rust(resolver.project, definition, rust, patches)
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
        named = named_versions.installed((package for package in inherited if package.hashes), parent)
        named |= named_versions.read(definition, resolved.pins, resolver)
    except SourceError:
        return None
    try:
        version_agreement.check(resolver.project, definition, resolved.pins, {}, named)
    except SourceError as error:
        return error
    return None
