"""Python packages: uv resolves the whole closure for the target platform, with the hashes of all files that suit it."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder import timestamp
from builder.definitions.image import AS_OF_SOURCE
from builder.definitions.package_name import canonical
from builder.errors import SourceError
from builder.lock.pins import LockedPackage, PythonPin
from builder.sources import stub_wheels, upload_dates, uv_program

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.definitions.image import ImageDefinition, PythonRequirements
    from builder.lock.pins import SourcePin
    from builder.sources.environment import UserSettings

_COMPILE = ["--format", "pylock.toml", "--generate-hashes", "--no-annotate", "--no-header"]
_COMPILE += ["--no-python-downloads", "--color", "never"]
_NO_WHEEL = re.compile(r"no usable wheels|building from source is disabled|[Bb]uilding source distributions")
MACHINES = {"linux/amd64": "x86_64", "linux/arm64": "aarch64"}


@dataclass(frozen=True)
class ClosureRequest:
    """A closure to resolve: the Python version and the indexes (``wants``), the request as images.lock records it, and
    the requirements for uv. Packages of the ``previous`` closure keep their version where that satisfies them. Nothing
    is taken that was uploaded after ``as_of`` (RFC 3339 UTC; empty for no limit), but of the packages ``exempt``."""

    wants: PythonRequirements
    requested: tuple[str, ...]
    requirements: tuple[str, ...]
    platform: str
    previous: tuple[LockedPackage, ...] = ()
    as_of: str = ""
    exempt: frozenset[str] = frozenset()


@dataclass(frozen=True)
class ResolvedClosure:
    """A resolved closure, and the address of the first suitable wheel of each package."""

    pin: PythonPin
    addresses: Mapping[str, str]


def requested_packages(
    definition: ImageDefinition, sources: Mapping[str, SourcePin], inherited: tuple[LockedPackage, ...]
) -> tuple[str, ...]:
    """Returns all that a definition requests at run time, as images.lock records it; a changed line makes the pin
    stale. ``inherited`` are the packages of its base images: other packages there may need others here."""
    wants = definition.python
    if wants is None:
        return ()
    files = []
    for name, source in definition.git_sources.items():
        commit = sources[name].commit if name in sources else None
        files += [f"{file} of {name} {commit}" for file in source.requirements]
    wheels = sorted(source.requirement for source in definition.wheel_sources.values())
    base = (
        [f"on {definition.parent or definition.base}: {len(inherited)} packages, sha256 {_digest(inherited)}"]
        if definition.parent or inherited
        else []
    )
    return (*_environment(wants), *base, *wheels, *wants.packages, *files, *_limits(wants))


def requested_build_packages(wants: PythonRequirements) -> tuple[str, ...]:
    """Returns all that is requested for building the sources taken from git, as images.lock records it."""
    return (*_environment(wants), *wants.build, *_limits(wants))


def _environment(wants: PythonRequirements) -> tuple[str, ...]:
    return (f"python {wants.version}, glibc {wants.glibc}",)


def _digest(packages: tuple[LockedPackage, ...]) -> str:
    import hashlib

    text = "".join(f"{package.name}=={package.version}\n" for package in packages)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _limits(wants: PythonRequirements) -> tuple[str, ...]:
    return (
        *([f"as of {wants.as_of}"] if wants.as_of != AS_OF_SOURCE else []),
        *(f"without {name}" for name in wants.without),
        *(f"{name} from {index.url}" for index in wants.indexes for name in index.packages),
    )


def resolve(
    request: ClosureRequest, settings: UserSettings, inherited: tuple[LockedPackage, ...] = ()
) -> ResolvedClosure:
    """Resolves the closure of all requested packages; those that are ``inherited`` keep their version.

    Inherited packages without hashes come with a base image: no index needs to have them, and one that is requested
    itself moves where the base's version does not satisfy that.

    Raises SourceError if there is none, or an index does not answer.
    """
    wants, platform = request.wants, request.platform
    _refuse_repositories(request.requirements)
    # A day to come leaves nothing out, and an index without dates need not be asked for them.
    as_of = request.as_of if request.as_of < timestamp.now() else ""
    target = target_options(wants, platform)
    own = {name for index in wants.indexes for name in index.packages}
    dated = upload_dates.compile_as_of(
        lambda options: compile_closure(request, settings, inherited, [*target, *options]),
        as_of,
        # Those that are installed already are fixed to their versions, whatever their age.
        request.exempt | {package.name for package in inherited if package.hashes},
        _names(request.requirements) - request.exempt - own if as_of else frozenset(),
    )
    lock, error = dated.lock, dated.messages
    if not lock:
        hint = "change `python:` in the definition's image.yaml, or look whether the package index answers"
        if dated.limited:
            hint = (
                f"nothing newer than {as_of} is taken, but for packages that `python.packages` names with an"
                " exact version (NAME==VERSION): name what has to be newer, or write `as_of: today` under `python:`"
            )
        if uv_program.only_wheels() and _NO_WHEEL.search(error):
            hint = (
                "request a version that has a wheel. To tell what a source distribution needs, its own code would run"
                " on this machine: `UV_NO_BUILD=0` in the environment allows that to all packages"
            )
        raise SourceError(
            f"the Python packages cannot be resolved for {platform}, Python {wants.version}:\n{error}", hint=hint
        )
    addresses = {package["name"]: package["wheels"][0]["url"] for package in lock["packages"] if package.get("wheels")}
    undated = tuple(sorted(dated.undated & {canonical(package["name"]) for package in lock["packages"]}))
    effective = "" if as_of and not dated.limited else request.as_of
    pin = replace(_pin(lock, request.requested), as_of=effective, undated=undated if effective else ())
    return ResolvedClosure(pin, addresses)


def _refuse_repositories(requirements: tuple[str, ...]) -> None:
    """Raises SourceError for a package from a repository (`NAME @ git+ADDRESS`). No pin could hold it, and uv would
    check it out on this machine first, with the settings of the user's git."""
    from packaging.requirements import Requirement

    for requirement in map(Requirement, requirements):
        if "+" in (requirement.url or "").partition(":")[0]:
            raise _own_address(requirement.name)


def target_options(wants: PythonRequirements, platform: str) -> list[str]:
    """Returns uv's options for the platform that packages are for."""
    return ["--python-platform", f"{MACHINES[platform]}-manylinux_{wants.glibc.replace('.', '_')}"]


def compile_closure(
    request: ClosureRequest, settings: UserSettings, inherited: tuple[LockedPackage, ...], options: list[str]
) -> tuple[dict[str, Any], str]:
    """Runs `uv pip compile`; returns the lock that it writes (pylock.toml, PEP 751), an empty one where it finds none,
    and its messages."""
    import subprocess
    import tempfile
    import tomllib

    with tempfile.TemporaryDirectory(prefix="builder-") as folder:
        project = Path(folder) / "pyproject.toml"
        brought = stub_wheels.resolvable(package for package in inherited if not package.hashes)
        direct = _names(request.requirements) if brought else frozenset()
        preferred = (*(package for package in brought if package.name in direct), *request.previous)
        lines = _project(request, local_wheel_names(settings, MACHINES[request.platform]))
        lines += stub_wheels.project_lines(brought)
        links = [link if "://" in link else str(Path(link).absolute()) for link in settings.find_links]
        project.write_text("\n".join(lines) + "\n", encoding="utf-8")
        if brought:
            stub_wheels.write(Path(folder) / "stubs", brought)
            links.append(str(Path(folder) / "stubs"))
        constraints = Path(folder) / "constraints.txt"
        fixed = [package for package in inherited if package.hashes]
        fixed += [package for package in brought if package.name not in direct]
        constraints.write_text("".join(f"{p.name}=={p.version}\n" for p in fixed), encoding="utf-8")
        lock = Path(folder) / "pylock.toml"
        if preferred:
            lock.write_text(_preferences(preferred), encoding="utf-8")
        options = [*options, *uv_program.options_of_user(), "--output-file", str(lock)]
        options += ["--constraints", str(constraints), "--python-version", request.wants.version]
        process = subprocess.run(
            [uv_program.path(), "pip", "compile", str(project), *_COMPILE, *options],
            # uv reads the overrides and indexes of a pyproject.toml only in the folder that it is run in.
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **uv_program.variables(settings, links)},
        )
        if process.returncode:
            return {}, process.stderr.strip() or "uv said nothing"
        return tomllib.loads(lock.read_text(encoding="utf-8")), process.stderr.strip()


def _names(requirements: tuple[str, ...]) -> frozenset[str]:
    """Returns the canonical names of the packages that requirements are for."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    return frozenset(canonicalize_name(Requirement(text).name) for text in requirements)


def _preferences(packages: tuple[LockedPackage, ...]) -> str:
    """Returns an output file of an earlier run, as far as uv reads it: versions in it are kept while they satisfy."""
    from json import dumps as quoted

    lines = ['lock-version = "1.0"', 'created-by = "builder"']
    for package in packages:
        lines += ["[[packages]]", f"name = {quoted(package.name)}", f"version = {quoted(package.version)}"]
    return "\n".join(lines) + "\n"


def local_wheel_names(settings: UserSettings, machine: str) -> frozenset[str]:
    """Returns the names of the packages that the user has local wheels of for this machine type."""
    from packaging.utils import InvalidWheelFilename, parse_wheel_filename

    names: set[str] = set()
    for wheel in settings.local_wheels():
        try:
            name, _, _, tags = parse_wheel_filename(wheel.name)
        except InvalidWheelFilename:
            continue
        if any(tag.platform == "any" or tag.platform.endswith(machine) for tag in tags):
            names.add(name)
    return frozenset(names)


def _project(request: ClosureRequest, local: frozenset[str]) -> list[str]:
    """Returns the lines of a pyproject.toml that requires the packages, each index serving only its own; a local wheel
    takes precedence where the index allows it."""
    from json import dumps as quoted  # a JSON string of ASCII is a TOML string

    wants = request.wants
    never = [f"{name}; sys_platform == 'never'" for name in wants.without]
    lines = [
        "[project]",
        'name = "image"',
        'version = "0"',
        f"requires-python = {quoted('>=' + wants.version)}",
        f"dependencies = {quoted(request.requirements)}",
        "[tool.uv]",
        f"override-dependencies = {quoted(never)}",
        "[tool.uv.sources]",
    ]
    for number, index in enumerate(wants.indexes, start=1):
        own = [name for name in index.packages if not (index.local and name in local)]
        lines += [f"{quoted(name)} = {{index = 'index-{number}'}}" for name in own]
    for number, index in enumerate(wants.indexes, start=1):
        lines += ["[[tool.uv.index]]", f"name = 'index-{number}'", f"url = {quoted(index.url)}", "explicit = true"]
    return lines


def _pin(lock: dict[str, Any], requested: tuple[str, ...]) -> PythonPin:
    from datetime import UTC, datetime

    packages: list[LockedPackage] = []
    newest = datetime(1980, 1, 1, tzinfo=UTC)
    for package in lock["packages"]:
        files = _files(package)
        hashes = (sha256_of(package["name"], file) for file in files)
        packages.append(LockedPackage(package["name"], package["version"], tuple(sorted(hashes))))
        newest = max([newest, *(f["upload-time"] for f in files if "upload-time" in f)])
    stamp = timestamp.of(newest)
    return PythonPin(requested, stamp, tuple(sorted(packages, key=lambda package: package.name)))


def _files(package: dict[str, Any]) -> list[dict[str, Any]]:
    """The files of a package of the lock. Raises SourceError for one that no index has: ``NAME @ ADDRESS``, PEP 508."""
    files: list[dict[str, Any]] = package.get("wheels") or [package[key] for key in ("sdist",) if key in package]
    if not files:
        raise _own_address(package["name"])
    return files


def _own_address(name: str) -> SourceError:
    return SourceError(
        f"the Python package {name} comes from an address of its own: packages are pinned by the version and the"
        " hashes that an index has",
        hint=f"request `{name}==VERSION`; a wheel that no index has is found in a folder of PIP_FIND_LINKS",
    )


def sha256_of(name: str, file: dict[str, Any]) -> str:
    """The SHA-256 of a file of the package ``name`` in a lock. Raises SourceError where its index has other hashes."""
    if (digest := file["hashes"].get("sha256")) is None:
        raise SourceError(f"the index has no sha256 of {name}, only {', '.join(file['hashes'])}")
    return str(digest)
