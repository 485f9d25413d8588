"""The files of an importable package, at the version that an image pins or at another one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from builder.definitions.image import PACKAGES_BUILT_FROM, GitSource, PythonRequirements, WheelSource
from builder.definitions.package_name import canonical
from builder.errors import EngineError, SourceError, UsageError
from builder.lock.pins import GitPin, IncludedPin
from builder.sources.git import mirror_reading
from builder.sources.git.patch_dry_run import CandidatePatch, PackageFiles
from builder.sources.wheels import wheel_files, wheel_lookup
from builder.sources.wheels.wheel_lookup import WheelRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from pathlib import Path

    from builder.definitions.image import ImageDefinition
    from builder.lock.pins import Pins
    from builder.project import Project
    from builder.sources.environment import UserSettings

# For a version that no definition pins: the Python files are the same in the wheels of all platforms.
_ANY = PythonRequirements(version="3.12", glibc="2.39", packages=())
_ANY_PLATFORM = "linux/arm64"


@dataclass(frozen=True)
class Access:
    """The way to files: the folders of the git mirrors and of what was read of wheels, the user's environment and
    settings, and a function that gets a message about each step that takes long."""

    mirrors: Path
    wheels: Path
    environ: Mapping[str, str]
    settings: UserSettings
    say: Callable[[str], None]


@dataclass(frozen=True)
class PinnedDefinition:
    """One definition of a chain, its pins, and the vendored patches that they name, by SHA-256."""

    definition: ImageDefinition
    pins: Pins
    patches: Mapping[str, bytes]


@dataclass(frozen=True)
class Package:
    """A package at one version. ``label`` is both in a few words: ``vllm 0.20.0``."""

    version: str
    label: str
    tree: PackageFiles


def access(project: Project, environ: Mapping[str, str], say: Callable[[str], None]) -> Access:
    """The access that a project has, with the settings in ``environ``."""
    from builder.sources import environment

    return Access(project.mirrors, project.state / "wheels", environ, environment.read(environ), say)


def pinned(reach: Access, chain: Sequence[PinnedDefinition], package: str) -> Package | None:
    """``package`` as the images of ``chain`` (the base first) hold it before any mod, or None where no pin tells its
    version. Nothing is fetched before its files are read."""
    for level in reversed(chain):
        pin, source = level.pins.sources.get(package), level.definition.sources.get(package)
        if isinstance(pin, GitPin) and isinstance(source, GitSource):
            pulls = tuple(
                CandidatePatch(f"pull request {pull.number}", level.patches[pull.sha256]) for pull in pin.pulls
            )
            with_pulls = "".join(f" with {pull.name}" for pull in pulls)
            label = f"{package} {pin.version} ({pin.commit[:12]}){with_pulls}"
            return Package(pin.version, label, _of_commit(reach, source.git, pin.commit, package, pulls))
        if isinstance(pin, IncludedPin):
            label = f"{package} {pin.version} of {level.definition.base}"
            return Package(pin.version, label, _of_base(reach, level, package))
        name = source.package if isinstance(source, WheelSource) else _distribution(package)
        for locked in level.pins.python.packages if level.pins.python else ():
            if locked.name == name:
                wants, platform = level.definition.python or _ANY, level.definition.platform
                wheel = WheelRequest(f"{name}=={locked.version}", wants, platform, frozenset(locked.hashes))
                return Package(locked.version, f"{name} {locked.version}", _of_wheel(reach, wheel, package))
        for brought in level.pins.base.packages if level.pins.base else ():
            if brought.name == name:
                label = f"{name} {brought.version} of {level.definition.base}"
                return Package(brought.version, label, _of_base(reach, level, package))
    return None


def released(reach: Access, definitions: Iterable[ImageDefinition], package: str, version: str) -> Package:
    """``package`` as the wheel of ``version`` on the user's index, or on one that a definition names for it."""
    label = f"{_distribution(package)} {version}"
    return Package(version, label, _of_wheel(reach, _released(definitions, package, version), package))


def _released(definitions: Iterable[ImageDefinition], package: str, version: str) -> WheelRequest:
    wants = [definition.python for definition in definitions if definition.python]
    indexes = dict.fromkeys(index for python in wants for index in python.indexes)
    name = _distribution(package)
    return WheelRequest(f"{name}=={version}", replace(_ANY, indexes=tuple(indexes)), _ANY_PLATFORM)


def committed(reach: Access, definitions: Iterable[ImageDefinition], package: str, ref: str) -> Package:
    """``package`` at the branch, tag or commit ``ref`` of the repository that a definition takes it from, without pull
    requests. Raises UsageError where no definition takes it from git, SourceError where there is no such ref."""
    from builder.sources.git import ref_resolution

    sources = [definition.git_sources for definition in definitions]
    addresses = [by_name[package].git for by_name in sources if package in by_name]
    if not addresses:
        raise UsageError(
            f"`{ref}` is no version, and no definition takes {package} from git",
            hint=f"a release of {package} is written 1.2.3, or {package}=1.2.3",
        )
    pin = ref_resolution.resolve(reach.mirrors, addresses[0], ref, reach.say)
    label = f"{package} {ref[:12] if ref == pin.commit else ref}"
    return Package(pin.version, label, _of_commit(reach, addresses[0], pin.commit, package))


def _of_wheel(reach: Access, request: WheelRequest, package: str) -> PackageFiles:
    def read(paths: Collection[str]) -> dict[str, bytes]:
        wheel = wheel_lookup.find(reach.wheels, request, reach.settings)
        return wheel_files.read(reach.wheels, wheel, paths, reach.settings.ca_file)

    return PackageFiles(package, read)


def _of_base(reach: Access, level: PinnedDefinition, package: str) -> PackageFiles:
    def read(paths: Collection[str]) -> dict[str, bytes]:
        from builder.engine.client import endpoint
        from builder.pinning import base_contents

        if level.pins.base is None:
            raise ValueError("the base is not pinned")
        try:
            engine = endpoint.find(reach.environ)
        except EngineError as error:
            raise SourceError(error.message, hint=error.hint) from None
        return base_contents.read_files(engine, level.pins.base, level.definition.platform, package, paths)

    return PackageFiles(package, read)


def _of_commit(
    reach: Access, url: str, commit: str, package: str, pulls: tuple[CandidatePatch, ...] = ()
) -> PackageFiles:
    def read(paths: Collection[str]) -> dict[str, bytes]:
        return mirror_reading.read_files(reach.mirrors, url, commit, paths, reach.say)

    return PackageFiles(package, read, pulls)


def _distribution(package: str) -> str:
    """The name of the wheel that holds ``package``, as an index has it."""
    return PACKAGES_BUILT_FROM.get(package, (canonical(package),))[0]
