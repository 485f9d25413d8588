"""Pins each source and package of a definition to an exact version. Current pins stay; stale pins are resolved again.

The order of this page: stale pins, the base image, git sources with their pull requests, Python closures with their
date limit, and versions that would move to older ones.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from builder.base import words
from builder.base.errors import SourceError, UsageError
from builder.base.values import dataclass, field, replace
from builder.base.words import parse_requirement, parse_version
from builder.definitions import source_patches
from builder.definitions.fields import canonical
from builder.definitions.image import AS_OF_SOURCE, AS_OF_TODAY, CHECKOUT, PACKAGES_BUILT_FROM, BaseSource, WheelSource
from builder.engine import images
from builder.lock.model import (
    BasePin,
    GitPin,
    IncludedPin,
    LockedPackage,
    Pins,
    PythonPin,
    SourcePin,
    WheelPin,
    identity,
)
from builder.pins import agreement, vendored
from builder.sources import foreign_files, python

if TYPE_CHECKING:
    from builder.definitions.image import GitSource, ImageDefinition, PythonRequirements, Source
    from builder.definitions.source_patches import SourcePatch
    from builder.pins.resolver import Resolver

Inherited: TypeAlias = "Sequence[LockedPackage] | None"
"""The packages of the parent images. None if they are not all pinned, so that this definition cannot be pinned."""


@dataclass(frozen=True)
class Fault:
    """A part of a definition that could not be resolved (``base``, ``vllm``, ``python`` …), and why."""

    definition: str
    name: str
    error: SourceError


@dataclass(frozen=True)
class ResolvedPins:
    """The pins of a definition, and their vendored patches by SHA-256. The pins are complete if there are no
    ``faults``."""

    pins: Pins
    patches: Mapping[str, bytes] = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()


@dataclass(frozen=True)
class _Task:
    """The definition to resolve, its earlier pins in ``before``, and the names to ``update``, each with the git ref or
    wheel version to use, or None for the definition's; and the patches and faults so far."""

    definition: ImageDefinition
    before: Pins
    update: Mapping[str, str | None]
    resolver: Resolver
    patches: dict[str, bytes] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)

    def fail(self, name: str, error: SourceError) -> None:
        self.faults.append(Fault(self.definition.name, name, error))

    @contextlib.contextmanager
    def catching(self, name: str) -> Iterator[None]:
        try:
            yield
        except SourceError as error:
            self.fail(name, error)


def error_of(faults: Sequence[Fault]) -> SourceError:
    message = "\n".join(f"{fault.definition} {fault.name}: {fault.error.message}" for fault in faults)
    return SourceError(message, hint="; ".join(dict.fromkeys(fault.error.hint for fault in faults if fault.error.hint)))


def pin_names(definition: ImageDefinition) -> tuple[str, ...]:
    """The names of all pins: ``base``, the sources, ``python``, and ``build`` for the packages that build the
    sources."""
    wants = definition.python
    closures = ["python", *(["build"] if wants.build else [])] if wants else []
    return (*(["base"] if definition.base else []), *definition.sources, *closures)


def stale_pins(definition: ImageDefinition, pins: Pins, inherited: Inherited) -> tuple[str, ...]:
    """The names whose pins are missing, or belong to another request than the definition's."""
    wants = definition.python
    inherited = with_base(definition, pins, inherited)
    requested = None if inherited is None else python.requested_packages(definition, pins.sources, inherited)
    current = {
        "base": pins.base is not None and _is_base(pins.base.requested, str(definition.base)),
        **{name: _is_current(source, pins.sources.get(name), pins) for name, source in definition.sources.items()},
        "python": bool(wants and pins.python and pins.python.requested == requested),
        "build": bool(wants and pins.build and pins.build.requested == python.requested_build_packages(wants)),
    }
    return tuple(name for name in pin_names(definition) if not current[name])


def _is_base(pinned: str, written: str) -> bool:
    """True if a definition names the image ``pinned``, by its tag or by the day of its tag."""
    name, day = images.split_day(written)
    return pinned == written or (bool(day) and images.repository(pinned) == name and images.day_of(pinned) == day)


def _is_current(source: Source, pin: SourcePin | None, pins: Pins) -> bool:
    """True if ``pin`` is for the request of ``source``, with the same patches in the same order.

    A source that comes with the base must come from the pinned base. A source that follows vLLM must be for the vLLM in
    ``pins``. A local checkout must be unchanged. Raises SourceError if a checkout is gone.
    """
    base = pins.base
    if isinstance(source, BaseSource):
        return isinstance(pin, IncludedPin) and base is not None and pin.base == base.resolved and bool(base.packages)
    if isinstance(source, WheelSource):
        return isinstance(pin, WheelPin) and pin.requested == source.requested
    source, _ = _as_it_is(source)
    current = _of_ref(source, pin, pins)
    return current is not None and tuple(patch.requested for patch in current.patches) == source.patches


def _as_it_is(source: GitSource) -> tuple[GitSource, bytes]:
    """A local checkout, as a source at its present commit with its changes as the first patch; and the diff of the
    changes. Any other source is returned unchanged. Raises SourceError."""
    if source.checkout is None:
        return source, b""
    commit, diff = foreign_files.read_checkout(source.checkout)
    own = (source_patches.local_changes(diff),) if diff else ()
    return replace(source, ref=commit, patches=(*own, *source.patches)), diff


def with_base(definition: ImageDefinition, pins: Pins, inherited: Inherited) -> Inherited:
    """The packages below the packages of a definition, including the packages of its base image if they are known."""
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
    """``pins`` with everything resolved that is missing, stale or named in ``update``. Other pins do not move.

    ``update`` maps names to the git ref or wheel version to use, or to None for the definition's. ``below`` is the date
    limit of the parent image's closure. Parts that cannot be resolved are among the faults. Sources and an existing
    closure move together or not at all, because a closure belongs to its sources. Raises UsageError if a name accepts
    no ref, FileProblemsError if a text is not a requirement.
    """
    from builder.definitions import image

    task = _Task(definition, pins, update, resolver)
    _refuse_impossible(definition, update)
    image.check(resolver.project, definition)
    brought = set(definition.base_sources)
    moving = set(stale_pins(definition, pins, inherited)) | set(update)
    based = pins
    with task.catching("base"):
        moved = _with_base_image(task) if "base" in moving else pins
        if brought & set(stale_pins(definition, moved, inherited)):
            moved = _with_contents(task, moved)
            moving |= set(stale_pins(definition, moved, inherited))
        based = moved
    moving -= {"base", *brought}
    if not moving or (brought and task.faults):
        return ResolvedPins(based, faults=tuple(task.faults))
    so_far, rest = len(task.faults), based if brought else pins
    # The wheels in ``update`` get their chosen versions, or leave their pins.
    moved_wheels = {name: wanted for name, wanted in update.items() if name in definition.wheel_sources}
    wheel_pins = {n: WheelPin(definition.wheel_sources[n].requested, v) for n, v in moved_wheels.items() if v}
    others = {name: pin for name, pin in rest.sources.items() if name not in moved_wheels}
    rest = _with_sources(task, replace(rest, sources={**others, **wheel_pins}), moving)
    if len(task.faults) == so_far and definition.git_sources:
        with task.catching("vllm"):
            _compare_with_vllm(task, rest)
    if len(task.faults) == so_far and _need_closures(pins, rest, moving, update):
        rest = _with_closures(task, rest, inherited, below)
    if len(task.faults) > so_far and pins.python:
        return ResolvedPins(pins if brought else replace(pins, base=based.base), faults=tuple(task.faults))
    if rest.python is None:  # only the closure shows whether the version of a wheel exists
        rest = replace(rest, sources={n: pin for n, pin in rest.sources.items() if not isinstance(pin, WheelPin)})
    return ResolvedPins(replace(rest, base=based.base), task.patches, tuple(task.faults))


def _refuse_impossible(definition: ImageDefinition, update: Mapping[str, str | None]) -> None:
    """Raises UsageError if ``update`` names a source in the base image, or a value that the source does not accept."""
    for name, ref in update.items():
        if name in definition.base_sources:
            message = f"`--update {name}`: {name} of {definition.name} comes with its base image, {definition.base}"
            raise UsageError(message, hint="to move both together: `--update base`")
        accepts, fits = "no value", ref is None
        if name == "base" and not images.split_day(str(definition.base))[1]:
            accepts = f"a day or a tag, such as base=2026-09-20; `builder bases {definition.name}` lists the days"
            fits = ref is None or bool(re.fullmatch(r"\w[\w.-]*", ref, re.ASCII))
        elif name in definition.wheel_sources:
            accepts, fits = f"a version, such as {name}=1.2.3", ref is None or parse_version(ref) is not None
        elif name in definition.git_sources and not definition.git_sources[name].checkout:
            fits = True
        if not fits:
            message = f"`--update {name}={ref}`: {name} of {definition.name} accepts {accepts}"
            hint = f"write the value in dockerfiles/{definition.name}/image.yaml, then use `--update {name}`"
            if name in definition.git_sources:
                hint = f"a build uses the commit that is checked out in {definition.git_sources[name].checkout}"
            raise UsageError(message, hint=hint)


def _need_closures(before: Pins, after: Pins, moving: set[str], update: Mapping[str, str | None]) -> bool:
    """True if the packages may differ. They do not if only patches changed, and the commit stays."""

    def commits(pins: Pins) -> dict[str, SourcePin]:
        return {name: replace(p, patches=()) if isinstance(p, GitPin) else p for name, p in pins.sources.items()}

    git = {name for name, pin in after.sources.items() if isinstance(pin, GitPin)}
    return bool(update) or bool(moving - git) or commits(before) != commits(after)


def _compare_with_vllm(task: _Task, pins: Pins) -> None:
    """Raises SourceError if a definition that builds from git has other versions than its vLLM names. If vLLM is a
    wheel, uv compares its packages, and only FlashInfer is compared here."""
    definition, project = task.definition, task.resolver.project
    named = agreement.read_named_versions(definition, pins, task.resolver)
    rust = agreement.rust(definition, pins, task.resolver) if definition.args.get("rust") else ""
    patches = vendored.load_vendored(project, definition.name, pins, task.patches) if named or rust else {}
    agreement.check_agreement(project, definition, pins, patches, named)
    agreement.check_rust(project, definition, rust, patches)


# The base image.


def _with_base_image(task: _Task) -> Pins:
    """The pins with the base image resolved again. Raises SourceError."""
    pins, written, chosen = task.before, str(task.definition.base), task.update.get("base")
    wanted = written
    if chosen:
        name = images.repository(written)
        dated = f"{name}@{chosen}"
        wanted = dated if images.split_day(dated)[1] else f"{name}:{chosen}"
    reference = task.resolver.tagged(wanted)
    resolved = task.resolver.base(reference, task.definition.platform)
    requested = written if chosen else reference
    unmoved = pins.base if pins.base and pins.base.resolved == resolved else BasePin(requested, resolved)
    return replace(pins, base=replace(unmoved, requested=requested))


def _with_contents(task: _Task, pins: Pins) -> Pins:
    """``pins`` with the contents of the base. Raises SourceError if they cannot be read, or lack a source."""
    definition, base = task.definition, pins.base
    if base is None:
        raise ValueError("the base is not pinned")
    contents, where = task.resolver.contents(base, definition.platform), f"dockerfiles/{definition.name}/image.yaml"
    if missing := [name for name in definition.base_sources if name not in contents.sources]:
        message = f"{base.requested} does not contain {' and '.join(missing)}, which `sources` expects"
        hint = f"use the source from git or as a wheel, or remove the source from `sources` in {where}"
        raise SourceError(message, hint=hint)
    wants = definition.python
    if wants and not contents.python.startswith(f"{wants.version}."):
        raise SourceError(
            f"the Python of {base.requested} is {contents.python}, but the packages are requested for {wants.version}",
            hint=f"set `python.version` in {where}",
        )
    brought = {
        name: IncludedPin(base.resolved, contents.sources[name].version, contents.sources[name].commit)
        for name in definition.base_sources
    }
    with_packages = replace(base, created=contents.created, packages=contents.packages)
    return replace(pins, base=with_packages, sources={**pins.sources, **brought})


# The git sources with their patches. An unchanged pull request keeps its pin.

RELEASE = "release"
"""The ref that means the newest release of some age. A branch of that name is ``refs/heads/release``."""


def _recorded_ref(source: GitSource, pins: Pins) -> str:
    """The ref of a source in images.lock. For a source that follows vLLM, the ref includes its vLLM."""
    if source.checkout:
        return CHECKOUT
    return f"{source.ref}/{identity(pins.sources.get('vllm'))}" if source.follows_vllm else source.ref


def _of_ref(source: GitSource, pin: SourcePin | None, pins: Pins) -> GitPin | None:
    """``pin`` if it has the repository and the ref of ``source``, or the commit of a checkout. Patches may differ."""
    from builder.sources import git

    if not isinstance(pin, GitPin) or pin.requested != _recorded_ref(source, pins):
        return None
    is_same = pin.commit == source.ref if source.checkout else pin.git == git.split(source.git).url
    return pin if is_same else None


def _with_sources(task: _Task, pins: Pins, moving: set[str]) -> Pins:
    """``pins`` with the git sources in ``moving`` resolved, and without sources that the definition no longer has.
    Sources that follow vLLM are resolved after it.

    If only patches were added or removed, the commit and the other pull requests stay; they move only if the source is
    updated. Raises LockError if the file of such a patch is missing or was edited.
    """
    so_far = len(task.faults)
    resolved = {name: pin for name, pin in pins.sources.items() if name in task.definition.sources}
    for name, source in sorted(task.definition.git_sources.items(), key=lambda item: item[1].follows_vllm):
        there = replace(pins, sources=resolved)
        if source.follows_vllm:
            if len(task.faults) > so_far:
                break
            there = _with_vllm(task.definition, there)
        if name in moving or (source.follows_vllm and not _of_ref(source, there.sources.get(name), there)):
            with task.catching(name):
                resolved = {**resolved, name: _resolved(task, there, name)}
    return replace(pins, sources=resolved)


def _with_vllm(definition: ImageDefinition, pins: Pins) -> Pins:
    """``pins`` with the wheel of vLLM, for sources that follow vLLM, before the closure pins the wheel."""
    source, pin = definition.sources.get("vllm"), pins.sources.get("vllm")
    if not isinstance(source, WheelSource):
        return pins
    version = agreement.wheel_version(source, pin)
    others = {name: other for name, other in pins.sources.items() if name != "vllm"}
    return replace(pins, sources={**others, **({"vllm": WheelPin(source.requested, version)} if version else {})})


def _resolved(task: _Task, pins: Pins, name: str) -> GitPin:
    """The pin of a git source. Raises SourceError."""
    source, diff = _as_it_is(task.definition.git_sources[name])
    if diff:
        task.patches[hashlib.sha256(diff).hexdigest()] = diff
    kept = None if name in task.update else _of_ref(source, pins.sources.get(name), pins)
    if kept:
        pin = kept
    elif source.checkout:
        pin = task.resolver.commit(name, _address(task, source.checkout, source), source.ref)
    else:
        pin = task.resolver.commit(name, source.git, _ref(task, pins, name))
    pin = replace(pin, requested=_recorded_ref(source, pins))
    return _with_patches(task, name, pin, source, kept.patches if kept else ())


def _address(task: _Task, checkout: Path, source: GitSource) -> str:
    """The address of a remote that provides the commit of a checkout to others, or the path of the checkout."""
    for url in foreign_files.remotes_with(checkout, source.ref):
        with contextlib.suppress(SourceError):
            task.resolver.commit("", url, source.ref)
            return url
    foreign_files.refuse_shallow(checkout)
    return source.git


def _ref(task: _Task, pins: Pins, name: str) -> str:
    """The branch, tag or commit to resolve: the requested one, or the definition's. Raises SourceError if there is no
    such release, or if vLLM names none."""
    source, wanted = task.definition.git_sources[name], task.update.get(name)
    if wanted == RELEASE:
        return task.resolver.release(name, source.git)
    if source.follows_vllm and not wanted:
        return f"refs/tags/{agreement.flashinfer_tag(task.definition, pins, task.resolver)}"
    return wanted or source.ref


def _with_patches(task: _Task, name: str, pin: GitPin, source: GitSource, before: Sequence[SourcePatch]) -> GitPin:
    """``pin`` with its patches in order; each patch applies after the earlier patches. New pull requests are fetched;
    pull requests in ``before`` keep their pins. The diffs are added to the task, and the files of the commit to the
    mirror. Raises SourceError with all conflicts."""
    from builder.sources import mirror
    from builder.sources.pulls import MergeConflictError, Vendored, check_patches

    resolver = task.resolver
    pinned = {patch.requested: patch for patch in before}
    taken: list[Vendored] = []
    conflicts: list[MergeConflictError] = []
    for requested in source.patches:
        patch = pinned.get(requested, requested)
        if patch.sha256:
            content = vendored.patch_content(resolver.project, task.definition.name, name, patch, task.patches)
            taken.append((patch, content))
            continue
        try:
            taken.append(resolver.pull(source.git, patch, pin.commit, tuple(taken)))
        except MergeConflictError as error:
            conflicts.append(error)
    if conflicts:
        raise SourceError("\n".join(error.message for error in conflicts), hint=conflicts[0].hint)
    url = pin.git if source.checkout else source.git
    check_patches(resolver.mirror(url), pin.commit, taken)
    task.patches.update({patch.sha256: diff for patch, diff in taken})
    mirror.preserve(resolver.mirror(url), pin.commit)
    return replace(pin, patches=tuple(patch for patch, _ in taken))


# The Python closures: the packages that an image installs, and the packages that build its git sources. Both belong to
# the commits of the sources, whose requirement files are part of them.

# Both are compiled with the image's torch, and FlashInfer's wheels of kernels import FlashInfer itself.
_BUILT_AGAINST = ("torch",)


def _with_closures(task: _Task, resolved: Pins, inherited: Inherited, below: str) -> Pins:
    definition, pins, name = task.definition, resolved, "python"
    wants, inherited = definition.python, with_base(definition, pins, inherited)
    if wants is None:
        return pins
    if inherited is None:
        task.fail(name, SourceError(f"its parent, {definition.parent}, is not completely pinned"))
        return pins
    as_of = _limit(task, wants, pins, below)
    try:
        # If the next closure fails, these pins must not keep a build closure of other sources.
        pins = replace(_to_run(task, wants, pins, inherited, as_of), build=None)
        name = "build"
        pins = replace(pins, build=_to_build(task, wants, pins, resolved.build, inherited, as_of))
    except SourceError as error:
        task.fail(name, error)
    return pins


def _to_run(task: _Task, wants: PythonRequirements, pins: Pins, inherited: Sequence[LockedPackage], as_of: str) -> Pins:
    """``pins`` with the packages of the image resolved again, including the wheels of sources. ``pins`` already contain
    all git sources.

    ``inherited`` are the packages of the parent images, which stay, and the packages of a community base image, which
    move only if the definition requests them. A package of the existing closure keeps its version if possible, unless
    ``python`` or the source of its wheel is updated; then it moves to the requested version. Packages that were
    uploaded after ``as_of`` are excluded, except the wheels of sources and exact versions. Raises SourceError.
    """
    from builder.sources import wheels

    definition, update, resolver = task.definition, task.update, task.resolver
    resolver.say(f"resolving the Python packages of {definition.name} for {definition.platform}")
    sources = definition.wheel_sources
    requirements = [
        *(agreement.requirement(source, pins.sources.get(name), update.get(name)) for name, source in sources.items()),
        *wants.packages,
        *(line for lines in _requirements_of_sources(task, pins).values() for line in lines),
        "uv",  # uv installs the others
    ]
    moving = {source.package for name, source in sources.items() if name in update}
    locked = pins.python.packages if pins.python and "python" not in update else ()
    request = python.ClosureRequest(
        wants,
        python.requested_packages(definition, pins.sources, inherited),
        tuple(dict.fromkeys(requirements)),
        definition.platform,
        previous=tuple(package for package in locked if package.name not in moving),
        as_of=as_of,
        exempt=exactly_requested(wants.packages) | {source.package for source in sources.values()},
    )
    resolved = _closure(task, request, inherited)
    if misfit := agreement.misfit_kernels((*inherited, *resolved.pin.packages)):
        where = f"`python.packages` in dockerfiles/{definition.name}/image.yaml"
        raise SourceError(misfit, hint=f"write a matching version under {where}")
    if as_of and (resolved.pin.undated or not resolved.pin.as_of):
        undated = ", ".join(resolved.pin.undated) or "all packages"
        resolver.say(f"{definition.name}: no upload dates for {undated}; these may be newer than {as_of[:10]}")
    wheel_pins = {}
    for name, source in sources.items():
        address = resolved.addresses.get(source.package)
        commit = wheels.read_wheel_commit(address, resolver.settings.ca_file) if address else None
        version = next(package.version for package in resolved.pin.packages if package.name == source.package)
        wheel_pins[name] = WheelPin(source.requested, version, commit)
    there = {(package.name, package.version) for package in inherited}
    own = tuple(package for package in resolved.pin.packages if (package.name, package.version) not in there)
    return replace(pins, python=replace(resolved.pin, packages=own), sources={**pins.sources, **wheel_pins})


def _to_build(
    task: _Task,
    wants: PythonRequirements,
    pins: Pins,
    before: PythonPin | None,
    inherited: Sequence[LockedPackage],
    as_of: str,
) -> PythonPin | None:
    """The packages that build the git sources of ``pins``; see `_to_run`."""
    if not wants.build:
        return None
    flashinfer = _requirements_of_sources(task, pins).get("flashinfer", ())
    request = python.ClosureRequest(
        wants,
        python.requested_build_packages(wants),
        (*wants.build, *_BUILT_AGAINST, *flashinfer),
        task.definition.platform,
        previous=before.packages if before and "build" not in task.update else (),
        as_of=as_of,
        exempt=exactly_requested(wants.build),
    )
    installed = (*inherited, *(pins.python.packages if pins.python else ()))
    return _closure(task, request, installed).pin


def _closure(task: _Task, request: python.ClosureRequest, installed: Sequence[LockedPackage]) -> python.ResolvedClosure:
    """The closure beside the packages ``installed``. Reports yanked releases and unknown extras. Raises SourceError."""
    resolved = python.resolve_closure(request, task.resolver.settings, installed)
    for warning in resolved.warnings:
        task.resolver.say(f"{task.definition.name}: {warning}")
    return resolved


def exactly_requested(requirements: tuple[str, ...]) -> frozenset[str]:
    return frozenset(
        canonical(requirement.name)
        for requirement in filter(None, map(parse_requirement, requirements))
        if any(part.operator in {"==", "==="} and "*" not in part.version for part in requirement.specifier)
    )


def _requirements_of_sources(task: _Task, pins: Pins) -> dict[str, tuple[str, ...]]:
    """The requirements in the files of each git source, by source, without packages that are built from source."""
    from builder.sources import mirror

    sources, resolver = task.definition.git_sources, task.resolver
    built = {name for source in sources for name in PACKAGES_BUILT_FROM.get(source, ())}
    requirements: dict[str, tuple[str, ...]] = {}
    for name, source in sources.items():
        commit = str(pins.sources[name].commit)
        for file in source.requirements:
            lines = mirror.read_requirements(resolver.mirror(source.git), commit, file)
            others = without(lines, built, f"{file} of {name} at {commit[:12]}")
            requirements[name] = (*requirements.get(name, ()), *others)
    return requirements


def without(requirements: tuple[str, ...], names: set[str], where: str) -> tuple[str, ...]:
    """The requirements for other packages than these. Raises SourceError with the location ``where`` if a text is not a
    requirement."""
    from packaging.requirements import InvalidRequirement, Requirement

    others = []
    for text in requirements:
        try:
            if canonical(Requirement(text).name) not in names:
                others.append(text)
        except InvalidRequirement as error:
            reason = str(error).splitlines()[0]
            raise SourceError(f"{where}: `{text}` is not a valid requirement: {reason}") from None
    return tuple(others)


# The date limit of a closure is the date of its source. Otherwise, a release that is pinned months later would get the
# newest packages, which it never ran with, and which later releases often exclude.

DAYS = 14
"""Packages may be newer than the source by this time: fixes for a release appear in the days after it."""

# The source whose date decides if a definition has several sources: FlashInfer follows vLLM.
_GOVERNING = ("vllm", "flashinfer")


def _limit(task: _Task, wants: PythonRequirements, pins: Pins, below: str) -> str:
    """The date limit (RFC 3339 UTC) for the closures of the sources in ``pins``; empty for no limit. The packages of an
    existing closure are always allowed."""
    definition, before = task.definition, task.before
    if wants.as_of == AS_OF_TODAY:
        return ""
    if wants.as_of != AS_OF_SOURCE:
        return f"{wants.as_of}T23:59:59Z"
    name = next((name for name in _GOVERNING if name in definition.sources), None)
    if name is None:
        return below
    stays = "python" not in task.update and _is_same(task, name, pins)
    pin = pins.sources.get(name)
    made = _made(task, wants, name, pins, pin.version if stays and pin else task.update.get(name))
    if not made:
        task.resolver.say(
            f"{definition.name}: the date of its {name} is unknown, so its packages are resolved as of today"
        )
        return ""
    end = words.timestamp_of(datetime.fromisoformat(made) + timedelta(days=DAYS))
    if not stays or before.python is None:
        return end
    if before.python.as_of or not before.python.newest:
        return max(end, before.python.as_of)
    # For a closure without a limit: the first second after the upload of its newest package.
    return max(end, words.timestamp_of(datetime.fromisoformat(before.python.newest) + timedelta(seconds=1)))


def _is_same(task: _Task, name: str, pins: Pins) -> bool:
    source, pin = task.definition.sources[name], task.before.sources.get(name)
    if pin is None or name in task.update:
        return False
    if isinstance(source, WheelSource):
        return not isinstance(pin, GitPin | IncludedPin) and pin.requested == source.requested
    return pin.version == pins.sources[name].version and pin.commit == pins.sources[name].commit


def _made(task: _Task, wants: PythonRequirements, name: str, pins: Pins, version: str | None) -> str:
    """The date when a source was committed, uploaded, or baked into the base; empty if unknown. For a wheel, the date
    of ``version`` if given."""
    from builder.sources import wheels

    source, pin = task.definition.sources[name], pins.sources.get(name)
    if isinstance(pin, GitPin):
        return pin.date
    if not isinstance(source, WheelSource):
        return pins.base.created if pins.base else ""
    requirement = agreement.requirement(source, pin, version)
    try:
        return wheels.read_upload_date(requirement, wants, task.definition.platform, task.resolver.settings)
    except SourceError:
        return ""  # resolving the closure also fails, and reports the reason


# Packages and sources whose new pins have older versions, and the reasons.


@dataclass(frozen=True)
class OlderVersion:
    """A package or a source whose new pin has an older version. ``why`` is empty if the reason is unknown."""

    name: str
    before: str
    after: str
    why: str

    def __str__(self) -> str:
        return f"{self.name} goes back from {self.before} to {self.after}" + (f": {self.why}" if self.why else "")


def versions_between(
    definition: ImageDefinition, before: Pins, after: Pins, update: Mapping[str, str | None]
) -> tuple[OlderVersion, ...]:
    """The versions that are older in ``after`` than in ``before``, by name. A source is left out if ``update`` names
    its version: that version was requested."""
    requested = {source.package for name, source in definition.wheel_sources.items() if update.get(name)}
    bases = [pins.base.packages if pins.base else () for pins in (before, after)]
    changed = [(bases[0], bases[1], "the base image contains this version")]
    for old_closure, new_closure in ((before.build, after.build), (before.python, after.python)):
        if old_closure and new_closure:
            was, limit = old_closure.as_of, new_closure.as_of
            why = f"packages newer than {limit[:10]} are not used" if limit and (not was or was > limit) else ""
            changed.append((old_closure.packages, new_closure.packages, why))
    older = {}
    for old_packages, new_packages, why in changed:
        versions = {package.name: package.version for package in old_packages}
        for name, text in ((package.name, package.version) for package in new_packages):
            old, new = parse_version(versions.get(name, "")), parse_version(text)
            if old and new and new < old and name not in requested:
                older[name] = OlderVersion(name, versions[name], text, why)
    for name, pin in after.sources.items():
        old_pin = before.sources.get(name)
        if not isinstance(pin, GitPin) or not isinstance(old_pin, GitPin) or update.get(name):
            continue
        if pin.git == old_pin.git and pin.date < old_pin.date:
            older[name] = OlderVersion(name, old_pin.version, pin.version, "its commit is older")
    return tuple(older[name] for name in sorted(older))
