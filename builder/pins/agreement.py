"""The versions in a definition must agree with the versions that the pinned vLLM names.

The check runs before anything is built. Before it: the version of a wheel, the comparison of ranges, and the versions
that vLLM names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeAlias

from builder.base.errors import Location, SourceError
from builder.base.values import dataclass, replace
from builder.base.words import parse_requirement
from builder.definitions import image
from builder.definitions.fields import canonical
from builder.definitions.image import ImageDefinition, Source, WheelSource
from builder.lock.model import GitPin, LockedPackage, Pins, SourcePin, WheelPin
from builder.pins import vendored
from builder.sources import python

if TYPE_CHECKING:
    from packaging.requirements import Requirement
    from packaging.specifiers import SpecifierSet

    from builder.base.project import Project
    from builder.pins.resolver import Resolver


# The version of a source that is installed as a wheel: written in the definition, or chosen for the pin.


def wheel_version(source: Source | None, pin: SourcePin | None) -> str:
    """The version of a source that is installed as a wheel. The pinned version, if the definition writes no version or
    if another version was chosen; otherwise the written version. Empty for any other source, and for the newest
    version."""
    if not isinstance(source, WheelSource):
        return ""
    written = source.requirement.partition("==")[2]
    pinned = pin.version if isinstance(pin, WheelPin) and pin.requested == source.requested else ""
    # The version is the same if the definition omits the local part.
    return written if not pinned or (written and only(written).contains(pinned, prereleases=True)) else pinned


def requirement(source: WheelSource, pin: SourcePin | None, chosen: str | None) -> str:
    """The requirement that uv resolves: the ``chosen`` version, or the version that was chosen for ``pin``, or the text
    in the definition."""
    written = source.requirement.partition("==")[2]
    wanted = chosen or (wheel_version(source, pin) if written else "")
    return f"{source.package}=={wanted}" if wanted and wanted != written else source.requirement


# Compares requirements: does one version of a package satisfy all of them?


def parse(text: str, definition: ImageDefinition) -> Requirement | None:
    """The requirement in ``text`` if it applies to the platform and the Python of ``definition``; otherwise None."""
    requirement = parse_requirement(text)
    target = python.markers(definition.platform, definition.python.version if definition.python else "3.12")
    is_other = requirement and requirement.marker and not requirement.marker.evaluate(target)
    return None if is_other else requirement


def only(version: str) -> SpecifierSet:
    """The range that contains only this version. A version that PEP 440 does not allow, as in community images, equals
    only itself."""
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        return SpecifierSet(f"=={version}")
    except InvalidSpecifier:
        return SpecifierSet(f"==={version}")


def exact_version(specifiers: SpecifierSet) -> str:
    pinned = [part.version for part in specifiers if part.operator in {"==", "==="} and not part.version.endswith(".*")]
    return pinned[0] if pinned else ""


def agree(first: SpecifierSet, other: SpecifierSet) -> bool:
    """False if one range names an exact version that the other excludes. uv compares other ranges."""
    exact = {exact_version(first), exact_version(other)} - {""}
    return not exact or any((first & other).contains(version, prereleases=True) for version in exact)


# The versions of other packages that the pinned vLLM names in its requirement files, or in the metadata of its wheel.
# vLLM is compiled and tested with one version of FlashInfer, torch, Triton, TileLang and TVM FFI. Another version fails
# only when vLLM is compiled or runs.

FLASHINFER = "flashinfer-python"
PACKAGES = frozenset([*image.PACKAGES_BUILT_FROM["flashinfer"], "torch", "triton", "tilelang", "apache-tvm-ffi"])
_USUAL_FILE = "requirements/cuda.txt"
# The file is at the top of vLLM's repository since 0.22. dockerfiles/_parts/rust.j2 reads the same line in the build.
RUST_FILE = "rust-toolchain.toml"
_CHANNEL = re.compile(rb'^ *channel *= *"([^"]*)"', re.MULTILINE)


@dataclass(frozen=True)
class Named:
    """The named versions of one package, and the source of the name in ``by`` (``vllm 0.33.0 (4ba787ec9abc)``), which
    ``requires`` or ``contains`` the package."""

    specifiers: SpecifierSet
    by: str
    verb: str = "requires"

    def text(self, package: str) -> str:
        return f"{self.by} {self.verb} {package}{self.specifiers}"


def read_named_versions(definition: ImageDefinition, pins: Pins, resolver: Resolver) -> dict[str, Named]:
    """The versions of ``PACKAGES`` that the pinned vLLM of a definition names, by package. Empty if vLLM comes with the
    base image or a parent image, because the installed versions are known. Raises SourceError."""
    pin, source = pins.sources.get("vllm"), definition.sources.get("vllm")
    if isinstance(pin, GitPin) and isinstance(source, image.GitSource):
        return _of_commit(definition, source, pin, resolver)
    version = wheel_version(source, pin)
    if isinstance(source, image.WheelSource) and version:
        return _of_wheel(definition, source, version, resolver)
    return {}


def installed(packages: Iterable[LockedPackage], by: str) -> dict[str, Named]:
    """The installed versions of ``PACKAGES`` in an image, by package."""
    named = (package for package in packages if package.name in PACKAGES)
    return {package.name: Named(only(package.version), by, "contains") for package in named}


def flashinfer_tag(definition: ImageDefinition, pins: Pins, resolver: Resolver) -> str:
    """The tag of the FlashInfer that the pinned vLLM names. Raises SourceError if vLLM names no version, or several."""
    named = read_named_versions(definition, pins, resolver).get(FLASHINFER)
    vllm = pins.sources.get("vllm")
    hint = "write a tag, branch or commit of FlashInfer: `ref: v0.7.2`"
    if vllm is None:
        message = "`version: from-vllm`: the definition gives vllm no version, and none is pinned yet"
        raise SourceError(message, hint=f"write the version of vllm, such as `wheel: vllm==0.33.0`; or {hint}")
    if named is None:
        raise SourceError(f"`version: from-vllm`: vllm {vllm.version} requires no version of FlashInfer", hint=hint)
    if not (version := exact_version(named.specifiers)):
        text = f"{FLASHINFER}{named.specifiers}"
        raise SourceError(f"`version: from-vllm`: {named.by} requires {text}, which is not a single version", hint=hint)
    return f"v{version}"


def rust(definition: ImageDefinition, pins: Pins, resolver: Resolver) -> str:
    """The Rust toolchain that the pinned vLLM names for its front end: a version, or a channel such as ``stable``.
    Empty if vLLM is not built from git, or names no toolchain. Raises SourceError."""
    from builder.sources import mirror

    pin, source = pins.sources.get("vllm"), definition.sources.get("vllm")
    if not (isinstance(pin, GitPin) and isinstance(source, image.GitSource)):
        return ""
    files = mirror.read_files(resolver.mirror(source.git), pin.commit, [RUST_FILE])
    channel = _CHANNEL.search(files.get(RUST_FILE, b""))
    return channel[1].decode("utf-8", "replace") if channel else ""


def _of_commit(
    definition: ImageDefinition, source: image.GitSource, pin: GitPin, resolver: Resolver
) -> dict[str, Named]:
    from builder.sources import mirror

    repository, files = resolver.mirror(source.git), source.requirements
    if not files and mirror.read_files(repository, pin.commit, [_USUAL_FILE]):
        files = (_USUAL_FILE,)
    named: dict[str, Named] = {}
    for file in files:
        lines = mirror.read_requirements(repository, pin.commit, file)
        named = {**_of_lines(lines, definition, f"vllm {pin.version} ({pin.commit[:12]})"), **named}
    return named


def _of_wheel(
    definition: ImageDefinition, source: image.WheelSource, version: str, resolver: Resolver
) -> dict[str, Named]:
    from builder.sources import wheels

    wants = definition.python
    if wants is None:
        return {}
    cache, settings = resolver.project.state / "wheels", resolver.settings
    own = replace(wants, indexes=tuple(index for index in wants.indexes if source.package in index.packages))
    request = wheels.WheelRequest(f"{source.package}=={version}", own, definition.platform)
    lines = wheels.read_requirements(cache, wheels.find_wheel(cache, request, settings), settings.ca_file)
    return _of_lines(lines, definition, f"the wheel of {source.package} {version}")


def _of_lines(lines: Iterable[str], definition: ImageDefinition, by: str) -> dict[str, Named]:
    named: dict[str, Named] = {}
    for line in lines:
        requirement = parse(line, definition)
        if requirement and (name := canonical(requirement.name)) in PACKAGES and not requirement.url:
            before = named[name].specifiers if name in named else requirement.specifier
            named[name] = Named(requirement.specifier & before, by)
    return named


# The versions in a definition of the packages that the pinned vLLM names.

_REQUIREMENT_FILE = re.compile(r"(?:.*/)?(?:requirements[^/]*\.(?:txt|in)|requirements/.*\.(?:txt|in))")
_ADDED = re.compile(r"\+(?P<indent>\s*)(?P<text>[A-Za-z0-9][^#]*)")
_BUILT = frozenset(image.PACKAGES_BUILT_FROM["flashinfer"])
_HINT = "write that version, or remove the requirement"
_HINT_FOR_PATCHES = (
    "packages come from the commit without its patches: remove the patch, or use a commit that contains the patch"
)
_END_OF_NAME = re.compile(r"[^A-Za-z0-9._-]")

_Mention: TypeAlias = "tuple[Location, str, SpecifierSet]"
"""A location in a file of the project, the package that it requires, and the range of versions."""


def check_agreement(
    project: Project, definition: ImageDefinition, pins: Pins, patches: Mapping[str, bytes], named: Mapping[str, Named]
) -> None:
    """Raises SourceError with every location in the files of ``definition`` that disagrees with the ``named`` versions:
    its packages, its FlashInfer, and requirement files that its patches change. ``patches`` are the diffs by SHA-256.
    """
    of_patches = list(_of_patches(project, definition, pins, patches))
    # A pull request may change the FlashInfer that is built here. An installed FlashInfer follows the commit.
    built = _BUILT if "flashinfer" in definition.git_sources else ()
    written = ((_HINT, mention) for mention in _of_definition(project, definition))
    patched = ((_HINT_FOR_PATCHES, mention) for mention in of_patches if mention[1] not in built)
    problems: dict[str, str] = {}
    for hint, (location, package, specifiers) in (*written, *patched):
        there = named.get(package)
        if there and not agree(specifiers, there.specifiers):
            problems[f"{location}: {package}{specifiers}, but {there.text(package)}"] = hint
    moved = {package: Named(specifiers, str(location)) for location, package, specifiers in of_patches}
    flashinfer = moved.get(FLASHINFER) or named.get(FLASHINFER)
    if flashinfer:
        problems |= _of_flashinfer(project, definition, pins, flashinfer)
    if problems:
        raise SourceError("\n".join(problems), hint="; ".join(dict.fromkeys(problems.values())))


def check_rust(project: Project, definition: ImageDefinition, named: str, patches: Mapping[str, bytes]) -> None:
    """Raises SourceError if ``definition`` has another Rust than the pinned vLLM has ``named`` for its front end. The
    build would fail at the front end, hours after FlashInfer was compiled. A definition without Rust is not checked,
    nor one whose ``patches`` change the name."""
    rust = str(definition.args.get("rust") or "")
    fits = named == "stable" or f"{rust}.".startswith(f"{named}.")
    if not rust or not named or fits or any(RUST_FILE.encode() in patch for patch in patches.values()):
        return
    location = image.location(project, definition.name, "args", "rust")
    version = "" if named[:1].isalpha() else f"write `rust: {named}` and its `rust_sha256` under `args:`, or "
    message = f"{location}: Rust {rust}, but the front end of the pinned vllm requires Rust {named}"
    raise SourceError(message, hint=f"{version}remove `rust`: vllm is then built without that front end")


def _of_flashinfer(project: Project, definition: ImageDefinition, pins: Pins, named: Named) -> dict[str, str]:
    """The problem with a FlashInfer that is built from git, and what to do; empty if its version is the named one."""
    pin, source = pins.sources.get("flashinfer"), definition.sources.get("flashinfer")
    if not (isinstance(pin, GitPin) and isinstance(source, image.GitSource)):
        return {}
    if named.specifiers.contains(pin.version, prereleases=True):
        return {}
    key = "version" if source.follows_vllm else "ref"
    location = image.location(project, definition.name, "sources", "flashinfer", key)
    exact = exact_version(named.specifiers)
    message = f"{location}: FlashInfer is at {pin.version} ({pin.commit[:12]}), but {named.text(FLASHINFER)}"
    other = f", or `ref: v{exact}`" if exact else ""
    if source.follows_vllm:
        instead = f"{other} instead of `version: from-vllm`" if other else ""
        return {message: f"use `--update flashinfer` without a version{instead}"}
    return {message: f"write `version: from-vllm` instead of FlashInfer's `ref`{other}"}


def _of_definition(project: Project, definition: ImageDefinition) -> Iterator[_Mention]:
    wants = definition.python
    written: dict[tuple[str | int, ...], str] = {}
    for key, texts in (("packages", wants.packages), ("build", wants.build)) if wants else ():
        written |= {("python", key, number): text for number, text in enumerate(texts)}
    written |= {("sources", name, "wheel"): source.requirement for name, source in definition.wheel_sources.items()}
    for where, text in written.items():
        if required := _named(definition, text):
            yield image.location(project, definition.name, *where), *required


def _of_patches(
    project: Project, definition: ImageDefinition, pins: Pins, patches: Mapping[str, bytes]
) -> Iterator[_Mention]:
    """The requirements that the patches of vLLM add to its requirement files."""
    pin = pins.sources.get("vllm")
    for patch in pin.patches if isinstance(pin, GitPin) and patches else ():
        file = project.relative(vendored.patch_file(project, definition.name, "vllm", patch))
        target = ""
        for number, line in enumerate(patches[patch.sha256].decode("utf-8", "replace").split("\n"), start=1):
            if line.startswith("+++ "):
                target = line[4:].removeprefix("b/")
            added = _ADDED.match(line) if _REQUIREMENT_FILE.fullmatch(target) else None
            if added and (required := _named(definition, added["text"].strip())):
                yield Location(file, number, 2 + len(added["indent"])), *required


def _named(definition: ImageDefinition, text: str) -> tuple[str, SpecifierSet] | None:
    """The package and its range in ``text``, if vLLM may name the package, and if the text applies to this platform."""
    package = canonical(_END_OF_NAME.split(text, maxsplit=1)[0])
    requirement = parse(text, definition) if package in PACKAGES else None
    return (package, requirement.specifier) if requirement and requirement.specifier else None


# FlashInfer refuses ready kernels of another version:
# https://github.com/flashinfer-ai/flashinfer/pull/4514, https://github.com/flashinfer-ai/flashinfer/pull/5096


def misfit_kernels(packages: Iterable[LockedPackage]) -> str:
    """Describes packages with FlashInfer's kernels that do not fit: another version than FlashInfer, or another CUDA
    (the ``cu130`` in their version) than the other ``packages``. Empty if all fit."""
    versions = {each.name: each.version for each in packages}
    own, runtime = versions.get(FLASHINFER), versions.get("nvidia-cuda-runtime", "")
    ready = {name: text.partition("+") for name, text in versions.items() if name.startswith("flashinfer-jit-cache")}
    for name, (version, _, cuda) in ready.items():
        if own and version != own.partition("+")[0]:
            return f"{name} is {version}, but {FLASHINFER} is {own}: FlashInfer refuses kernels of another version"
        if runtime and cuda and not cuda.startswith(f"cu{runtime.partition('.')[0]}"):
            return f"{name} {version}+{cuda} is for a different CUDA than {runtime}, which the packages install"
    if len({cuda for _, _, cuda in ready.values()}) > 1:
        return f"{' and '.join(sorted(ready))} are for different versions of CUDA"
    return ""
