"""The versions that a definition has of what the pinned vLLM names, held against it before anything is built."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.definitions import image
from builder.definitions.package_name import canonical
from builder.errors import Location, SourceError
from builder.lock.pins import GitPin
from builder.pinning import named_versions, vendored, version_ranges
from builder.pinning.named_versions import Named

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from packaging.requirements import Requirement
    from packaging.specifiers import SpecifierSet

    from builder.definitions.image import ImageDefinition
    from builder.lock.pins import Pins
    from builder.project import Project

_REQUIREMENT_FILE = re.compile(r"(?:.*/)?(?:requirements[^/]*\.(?:txt|in)|requirements/.*\.(?:txt|in))")
_ADDED = re.compile(r"\+(?P<indent>\s*)(?P<text>[A-Za-z0-9][^#]*)")
_BUILT = frozenset(image.PACKAGES_BUILT_FROM["flashinfer"])
_HINT = "write the version that the pinned vllm names, or leave the requirement out"
_HINT_FOR_PULLS = "packages are those of the commit without its pull requests: drop that one, or take a commit with it"
_END_OF_NAME = re.compile(r"[^A-Za-z0-9._-]")


@dataclass(frozen=True)
class Mention:
    """A requirement for one package that stands in a file of the project."""

    location: Location
    package: str
    specifiers: SpecifierSet


def check(
    project: Project, definition: ImageDefinition, pins: Pins, patches: Mapping[str, bytes], named: Mapping[str, Named]
) -> None:
    """Raises SourceError with every place in the files of ``definition`` that disagrees with what is ``named``: its
    packages, its FlashInfer, and requirement files that its pull requests change. ``patches`` are theirs, by SHA-256.
    """
    of_pulls = list(_of_pulls(project, definition, pins, patches))
    problems: dict[str, str] = {}
    for mention in (*_of_definition(project, definition), *of_pulls):
        there = named.get(mention.package)
        # FlashInfer that is built here follows a pull request which moves it; what is installed follows the commit.
        built = mention.package in _BUILT and "flashinfer" in definition.git_sources and mention in of_pulls
        if there and not built and not version_ranges.agree(mention.specifiers, there.specifiers):
            message = f"{mention.location}: {mention.package}{mention.specifiers}, and {there.text(mention.package)}"
            problems[message] = _HINT_FOR_PULLS if mention in of_pulls else _HINT
    moved = {mention.package: Named(mention.specifiers, str(mention.location)) for mention in of_pulls}
    flashinfer = moved.get(named_versions.FLASHINFER) or named.get(named_versions.FLASHINFER)
    if flashinfer:
        problems |= _of_flashinfer(project, definition, pins, flashinfer)
    if problems:
        raise SourceError("\n".join(problems), hint="; ".join(dict.fromkeys(problems.values())))


def check_rust(project: Project, definition: ImageDefinition, named: str, patches: Mapping[str, bytes]) -> None:
    """Raises SourceError where ``definition`` has another Rust than the pinned vLLM has ``named`` for its front end.
    The build would end there, after hours where FlashInfer is compiled before. Nothing is known against a definition
    without Rust, and where a pull request, one of ``patches``, changes the name."""
    rust = str(definition.args.get("rust") or "")
    fits = named == "stable" or f"{rust}.".startswith(f"{named}.")
    if not rust or not named or fits or any(named_versions.RUST_FILE.encode() in patch for patch in patches.values()):
        return
    location = image.location(project, definition.name, "args", "rust")
    version = "" if named[:1].isalpha() else f"write `rust: {named}` and its `rust_sha256` under `args:`, or "
    raise SourceError(
        f"{location}: Rust {rust}, and the front end of the pinned vllm is written for Rust {named}",
        hint=f"{version}take `rust` out: vllm is then built without that front end",
    )


def _of_flashinfer(project: Project, definition: ImageDefinition, pins: Pins, named: Named) -> dict[str, str]:
    """The problem with a FlashInfer that is built from git, and what to do; none where its version is the named one."""
    pin, source = pins.sources.get("flashinfer"), definition.sources.get("flashinfer")
    if not (isinstance(pin, GitPin) and isinstance(source, image.GitSource)):
        return {}
    if named.specifiers.contains(pin.version, prereleases=True):
        return {}
    key = "version" if source.follows_vllm else "ref"
    location = image.location(project, definition.name, "sources", "flashinfer", key)
    exact = version_ranges.exact(named.specifiers)
    other = f", or `ref: v{exact}`" if exact else ""
    message = (
        f"{location}: FlashInfer is at {pin.version} ({pin.commit[:12]}), and {named.text(named_versions.FLASHINFER)}"
    )
    return {message: f"write `version: from-vllm` in place of FlashInfer's `ref`{other}"}


def _of_definition(project: Project, definition: ImageDefinition) -> Iterator[Mention]:
    wants = definition.python
    lists = {"packages": wants.packages, "build": wants.build} if wants else {}
    written: dict[tuple[str | int, ...], str] = {
        ("python", key, number): text for key, texts in lists.items() for number, text in enumerate(texts)
    }
    written |= {("sources", name, "wheel"): source.requirement for name, source in definition.wheel_sources.items()}
    for where, text in written.items():
        if requirement := _named(definition, text):
            location = image.location(project, definition.name, *where)
            yield Mention(location, canonical(requirement.name), requirement.specifier)


def _of_pulls(
    project: Project, definition: ImageDefinition, pins: Pins, patches: Mapping[str, bytes]
) -> Iterator[Mention]:
    """The requirements that the pull requests of vLLM add to its requirement files."""
    pin = pins.sources.get("vllm")
    for pull in pin.pulls if isinstance(pin, GitPin) and patches else ():
        file = project.relative(vendored.patch_file(project, definition.name, "vllm", pull))
        target = ""
        for number, line in enumerate(patches[pull.sha256].decode("utf-8", "replace").split("\n"), start=1):
            if line.startswith("+++ "):
                target = line[4:].removeprefix("b/")
            added = _ADDED.match(line) if _REQUIREMENT_FILE.fullmatch(target) else None
            if added and (requirement := _named(definition, added["text"].strip())):
                location = Location(file, number, 2 + len(added["indent"]))
                yield Mention(location, canonical(requirement.name), requirement.specifier)


def _named(definition: ImageDefinition, text: str) -> Requirement | None:
    """The requirement in ``text`` where it limits a package that vLLM may name, and counts on this platform."""
    if canonical(_END_OF_NAME.split(text, maxsplit=1)[0]) not in named_versions.PACKAGES:
        return None
    python = definition.python.version if definition.python else "3.12"
    requirement = version_ranges.parse(text, definition.platform, python)
    return requirement if requirement and requirement.specifier else None
