"""Reads the files of a package at the pinned version or another version, and its released versions on an index."""

from __future__ import annotations

import contextlib
import functools
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from builder.base import http_client, records
from builder.base.errors import EngineError, SourceError, UsageError
from builder.base.http_client import NoAnswerError
from builder.base.values import dataclass, replace
from builder.base.words import parse_version
from builder.definitions.fields import canonical
from builder.definitions.image import PACKAGES_BUILT_FROM, GitSource, ImageDefinition, PythonRequirements, WheelSource
from builder.lock import layout
from builder.lock.model import GitPin, IncludedPin, Lock, LockedPackage, Pins
from builder.sources import git, mirror, wheels
from builder.sources.patches import CandidatePatch, PackageFiles
from builder.sources.wheels import WheelRequest

if TYPE_CHECKING:
    from builder.base.project import Project
    from builder.sources.git import UserSettings


# For versions without a pin: the wheels of all platforms contain the same Python files.
_ANY = PythonRequirements(version="3.12", glibc="2.39", packages=())
_ANY_PLATFORM = "linux/arm64"


@dataclass(frozen=True)
class Access:
    """Access to files: the project with its mirrors and its files from wheels, the user's environment, and a function
    that receives a message about each slow step."""

    project: Project
    environ: Mapping[str, str]
    say: Callable[[str], None]


@dataclass(frozen=True)
class PinnedDefinition:
    """A definition of a chain, its pins, and their vendored patches by SHA-256."""

    definition: ImageDefinition
    pins: Pins
    patches: Mapping[str, bytes]


@dataclass(frozen=True)
class Package:
    """A package at one version. ``label`` names both: ``vllm 0.20.0``."""

    version: str
    label: str
    tree: PackageFiles


def pinned(reach: Access, chain: Sequence[PinnedDefinition], package: str) -> Package | None:
    """``package`` in the images of ``chain`` (the base first), before any mod; None if no pin determines its version.
    Nothing is fetched until its files are read."""
    for level in reversed(chain):
        pin, source = level.pins.sources.get(package), level.definition.sources.get(package)
        if isinstance(pin, GitPin) and isinstance(source, GitSource):
            prior = tuple(CandidatePatch(p.label, level.patches[p.sha256], p.strip) for p in pin.patches)
            label = f"{package} {pin.version} ({pin.commit[:12]}){''.join(f' with {each.name}' for each in prior)}"
            return Package(pin.version, label, _of_commit(reach, source.git, pin.commit, package, prior))
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
    """``package`` from the wheel of ``version`` on the user's index, or on an index that a definition names for it."""
    wants = [definition.python for definition in definitions if definition.python]
    indexes = tuple(dict.fromkeys(index for python in wants for index in python.indexes))
    name = _distribution(package)
    request = WheelRequest(f"{name}=={version}", replace(_ANY, indexes=indexes), _ANY_PLATFORM)
    return Package(version, f"{name} {version}", _of_wheel(reach, request, package))


def committed(reach: Access, definitions: Iterable[ImageDefinition], package: str, ref: str) -> Package:
    """``package`` at the branch, tag or commit ``ref`` of the repository in a definition, without pull requests. Raises
    UsageError if no definition gets the package from git, SourceError if the ref does not exist."""
    sources = [definition.git_sources for definition in definitions]
    address = next((by_name[package].git for by_name in sources if package in by_name), "")
    if not address:
        message = f"`{ref}` is not a version, and no definition takes {package} from git"
        raise UsageError(message, hint=f"write a release as `{package}=1.2.3`")
    pin = mirror.resolve_ref(mirror.locate(reach.project.mirrors, address, reach.say), ref)
    label = f"{package} {ref[:12] if ref == pin.commit else ref}"
    return Package(pin.version, label, _of_commit(reach, address, pin.commit, package))


def _of_wheel(reach: Access, request: WheelRequest, package: str) -> PackageFiles:
    def read(paths: Collection[str]) -> dict[str, bytes]:
        cache, settings = reach.project.state / "wheels", git.read_index_settings(reach.environ)
        return wheels.read_wheel_files(cache, wheels.find_wheel(cache, request, settings), paths, settings.ca_file)

    return PackageFiles(package, read)


def _of_base(reach: Access, level: PinnedDefinition, package: str) -> PackageFiles:
    def read(paths: Collection[str]) -> dict[str, bytes]:
        from builder.engine import client
        from builder.pins import resolver

        if level.pins.base is None:
            raise ValueError("the base is not pinned")
        try:
            engine = client.find_endpoint(reach.environ)
        except EngineError as error:
            raise SourceError(error.message, hint=error.hint) from None
        return resolver.read_base_files(engine, level.pins.base, level.definition.platform, package, paths)

    return PackageFiles(package, read)


def _of_commit(
    reach: Access, url: str, commit: str, package: str, prior: tuple[CandidatePatch, ...] = ()
) -> PackageFiles:
    repository = functools.partial(mirror.locate, reach.project.mirrors, url, reach.say)
    return PackageFiles(package, lambda paths: mirror.read_files(repository(), commit, paths), prior)


def _distribution(package: str) -> str:
    return PACKAGES_BUILT_FROM.get(package, (canonical(package),))[0]


# The cache of files from wheels, on which patches are tried (``.builder/wheels``).

_WHEEL = re.compile("[0-9a-f]{64}")


def stale_wheels(project: Project, lock: Lock) -> tuple[Path, ...]:
    """The folders of wheels that ``lock`` does not pin, and the answers of indexes that name only such wheels. An index
    provides them again. Other files in the cache are ignored."""
    cache = project.state / "wheels"
    pinned = {
        digest
        for platforms in lock.pins.values()
        for pins in platforms.values()
        for closure in (pins.python, pins.build)
        for package in (closure.packages if closure else ())
        for digest in package.hashes
    }
    folders = (path for path in cache.glob("*") if _WHEEL.fullmatch(path.name) and path.name not in pinned)
    answers = (path for path in cache.glob("found/*.json") if not pinned & _named(path))
    return tuple(sorted(path for path in (*folders, *answers) if not path.is_symlink()))


def remove_wheels(paths: Iterable[Path]) -> None:
    """Removes files and folders of the cache, as far as that is possible: other processes may remove or write them at
    the same time, and another user may own them."""
    for path in paths:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                path.unlink()


def _named(answer: Path) -> set[str]:
    try:
        return {sha256 for _, sha256 in records.read_file(answer, tuple[tuple[str, str], ...])}
    except (OSError, records.RecordError):
        return set()


# The versions of a package on the user's index, with the hashes of their wheels (PEP 691).

_DEFAULT = "https://pypi.org/simple"
_JSON = "application/vnd.pypi.simple.v1+json"
_LARGEST_PAGE = 64 << 20


def releases_between(package: str, old: str, new: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    """The versions strictly between two versions, beginning near ``old``. Pre-releases are included only if one end is
    a pre-release. Raises SourceError if the index does not answer."""
    start, end = parse_version(old), parse_version(new)
    if start is None or end is None:
        return ()
    offered = filter(None, map(parse_version, _wheels_of(package, git.read_index_settings(environ))))
    between = [
        version
        for version in offered
        if min(start, end) < version < max(start, end)
        and (not version.is_prerelease or start.is_prerelease or end.is_prerelease)
        and version.local == start.local
    ]
    return tuple(map(str, sorted(between, reverse=start > end)))


def line(package: str, version: str, environ: Mapping[str, str]) -> str:
    """The entry of a version in a requirement file, with the hashes of its wheels. Raises SourceError."""
    hashes = _wheels_of(package, git.read_index_settings(environ)).get(version)
    if not hashes:
        raise SourceError(f"the index has no wheel of {package} {version}")
    return layout.requirement_line(LockedPackage(package, version, tuple(sorted(hashes))))


def _wheels_of(package: str, settings: UserSettings) -> dict[str, set[str]]:
    index = (settings.index_url or _DEFAULT).rstrip("/")
    return _wheels(f"{index}/{package}/", settings.ca_file)


@functools.cache
def _wheels(address: str, ca_file: Path | None) -> dict[str, set[str]]:
    from packaging.utils import InvalidWheelFilename, parse_wheel_filename

    shown = git.split(address).url
    try:
        with http_client.following(ca_file) as client:
            headers = {"Accept": f"{_JSON}, text/html;q=0.1"}
            answer = http_client.send(client, "GET", address, largest=_LARGEST_PAGE, headers=headers)
    except NoAnswerError as error:
        hint = "check the network and HTTPS_PROXY, then run the command again"
        raise SourceError(f"{shown} does not answer: {error}", hint=hint) from None
    if not answer.is_success:
        raise SourceError(f"{shown}: the server answers {http_client.status(answer)}")
    versions: dict[str, set[str]] = {}
    for name, sha256 in _listed(answer.text):
        with contextlib.suppress(InvalidWheelFilename):
            versions.setdefault(str(parse_wheel_filename(name)[1]), set()).add(sha256)
    return versions


def _listed(text: str) -> list[tuple[str, str]]:
    try:
        data = records.parse_json(text)
    except ValueError:
        links = re.findall(r'<a [^>]*href="[^"]*?/?([^/"#]+)#sha256=([0-9a-f]{64})"[^>]*>', text)
        return [(name, sha256) for name, sha256 in links if name.endswith(".whl")]
    files = data.get("files", []) if isinstance(data, dict) else []
    return [
        (file["filename"], file["hashes"]["sha256"])
        for file in files
        if isinstance(file, dict)
        and not file.get("yanked")
        and str(file.get("filename", "")).endswith(".whl")
        and re.fullmatch("[0-9a-f]{64}", str((file.get("hashes") or {}).get("sha256", "")))
    ]
