"""Requirements that are held against each other: for one package, is there a version that suits all of them?"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from packaging.requirements import Requirement
    from packaging.specifiers import SpecifierSet

_SYSTEM = {"os_name": "posix", "sys_platform": "linux", "platform_system": "Linux"}
_MACHINES = {"linux/amd64": "x86_64", "linux/arm64": "aarch64"}


def parse(text: str, platform: str, python: str) -> Requirement | None:
    """The requirement in ``text`` where it counts on ``platform`` and the Python of this version (``3.12``); None where
    it does not, or is no requirement."""
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        requirement = Requirement(text)
    except InvalidRequirement:
        return None
    versions = {"python_version": python, "python_full_version": f"{python}.0", "extra": ""}
    target = {**_SYSTEM, "platform_machine": _MACHINES.get(platform, ""), **versions}
    return requirement if requirement.marker is None or requirement.marker.evaluate(target) else None


def only(version: str) -> SpecifierSet:
    """The range of this version alone. One that is none by PEP 440, as images of others have them, equals itself."""
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        return SpecifierSet(f"=={version}")
    except InvalidSpecifier:
        return SpecifierSet(f"==={version}")


def exact(specifiers: SpecifierSet) -> str:
    """The one version that ``specifiers`` allow; empty where they allow several, or none is written."""
    pinned = [part.version for part in specifiers if part.operator in {"==", "==="} and not part.version.endswith(".*")]
    return pinned[0] if pinned else ""


def agree(first: SpecifierSet, other: SpecifierSet) -> bool:
    """False if no version suits both, as far as the versions that are written in them tell."""
    both = first & other
    return not list(both) or any(both.contains(version, prereleases=True) for version in _candidates(both))


def _candidates(specifiers: SpecifierSet) -> set[str]:
    """Versions at, right below and right above each one that is written."""
    from packaging.version import InvalidVersion, Version

    candidates: set[str] = set()
    for specifier in specifiers:
        text = specifier.version.removesuffix(".*")
        try:
            version = Version(text)
        except InvalidVersion:
            candidates.add(text)
            continue
        release = [*version.release, 0, 0][: max(3, len(version.release))]
        candidates |= {text, version.public, version.base_version, f"{version.base_version}.post1"}
        for place in range(len(release)):
            further = [*release[:place], release[place] + 1, *([0] * (len(release) - place - 1))]
            candidates.add(".".join(map(str, further)))
            if release[place]:
                before = [*release[:place], release[place] - 1, *([999] * (len(release) - place - 1))]
                candidates.add(".".join(map(str, before)))
        candidates.add(".".join(map(str, [*version.release, 1])))
    return candidates
