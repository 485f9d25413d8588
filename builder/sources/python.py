"""uv resolves Python packages for the target platform, with the hashes of their files."""

from __future__ import annotations

import hashlib
import os
import re
import threading
import time
import zipfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from json import dumps as quoted  # an ASCII string in JSON is a valid TOML string
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.base import http_client, words
from builder.base.errors import SourceError
from builder.base.http_client import NoAnswerError
from builder.base.values import dataclass, replace
from builder.base.words import parse_version
from builder.definitions.fields import canonical
from builder.definitions.image import AS_OF_SOURCE, ImageDefinition, PythonRequirements
from builder.lock.model import LockedPackage, PythonPin, SourcePin
from builder.sources import git

if TYPE_CHECKING:
    from builder.sources.git import UserSettings

_COMPILE = ["--format", "pylock.toml", "--generate-hashes", "--no-annotate", "--no-header"]
_COMPILE += ["--no-python-downloads", "--color", "never"]
_NO_WHEEL = re.compile(r"no usable wheels|building from source is disabled|[Bb]uilding source distributions")
_NO_ROOM = re.compile("Failed to initialize cache|No space left|Disk quota exceeded|Read-only file system")
_REFUSED = re.compile(r"An index (?:URL )?\((?P<index>[^\s)]+)\) .*?(?P<status>40[13] [A-Z]\w+)")
_UNREACHABLE = re.compile(r"Failed to fetch: `?(?P<address>[^\s`]+)")
_LAST_CAUSE = re.compile(r".*(?:cause|Caused by): (?P<cause>[^\n]*?)(?: for url \([^\n]*)?(?:\n|$)", re.DOTALL)
MACHINES = {"linux/amd64": "x86_64", "linux/arm64": "aarch64"}


def markers(platform: str, version: str) -> dict[str, str]:
    """The environment (PEP 508) of the Python of this version (``3.12``) on ``platform``."""
    return {
        "extra": "",
        "os_name": "posix",
        "platform_machine": MACHINES.get(platform, ""),
        "platform_system": "Linux",
        "python_full_version": f"{version}.0",
        "python_version": version,
        "sys_platform": "linux",
    }


@dataclass(frozen=True)
class ClosureRequest:
    """A closure to resolve: the Python version and the indexes (``wants``), the request in the form of images.lock, and
    the requirements for uv. Packages of the ``previous`` closure keep their version if possible. No package was
    uploaded after ``as_of`` (RFC 3339 UTC; empty for no limit), except those in ``exempt``."""

    wants: PythonRequirements
    requested: tuple[str, ...]
    requirements: tuple[str, ...]
    platform: str
    previous: Sequence[LockedPackage] = ()
    as_of: str = ""
    exempt: frozenset[str] = frozenset()


@dataclass(frozen=True)
class ResolvedClosure:
    """A resolved closure, with the address of the first suitable wheel of each package, and uv's ``warnings`` of yanked
    releases and unknown extras."""

    pin: PythonPin
    addresses: Mapping[str, str]
    warnings: tuple[str, ...] = ()


def requested_packages(
    definition: ImageDefinition, sources: Mapping[str, SourcePin], inherited: Sequence[LockedPackage]
) -> tuple[str, ...]:
    """Returns the run-time requests of a definition in the form of images.lock. A changed line makes the pin stale.
    ``inherited`` are the packages of its base images, which may affect the closure."""
    wants = definition.python
    if wants is None:
        return ()
    base = []
    if definition.parent or inherited:
        text = "".join(f"{package.name}=={package.version}\n" for package in inherited)
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        base = [f"on {definition.parent or definition.base}: {len(inherited)} packages, sha256 {digest}"]
    wheels = sorted(source.requirement for source in definition.wheel_sources.values())
    files = []
    for name, source in definition.git_sources.items():
        commit = str(sources[name].commit)[:12] if name in sources else None
        files += [f"{file} of {name} {commit}" for file in source.requirements]
    return _recorded(wants, (*base, *wheels, *wants.packages, *files))


def requested_build_packages(wants: PythonRequirements) -> tuple[str, ...]:
    """Returns the requests for building the git sources, in the form of images.lock."""
    return _recorded(wants, wants.build)


def _recorded(wants: PythonRequirements, requested: tuple[str, ...]) -> tuple[str, ...]:
    return (
        f"python {wants.version}, glibc {wants.glibc}",
        *requested,
        *([f"as of {wants.as_of}"] if wants.as_of != AS_OF_SOURCE else []),
        *(f"without {name}" for name in wants.without),
        *(f"{name} from {index.url}" for index in wants.indexes for name in index.packages),
    )


def resolve_closure(
    request: ClosureRequest, settings: UserSettings, inherited: Sequence[LockedPackage] = ()
) -> ResolvedClosure:
    """Resolves the closure of all requested packages. ``inherited`` packages keep their version. Inherited packages
    without hashes come with a base image: they need no index, and they move if their version does not satisfy a
    request. Raises SourceError if there is no solution, or if an index does not answer."""
    from packaging.requirements import Requirement

    wants, platform = request.wants, request.platform
    for requirement in map(Requirement, request.requirements):
        if "+" in (requirement.url or "").partition(":")[0]:
            # `git+ADDRESS`: uv would check it out on this machine, with the user's git settings.
            raise _own_address(requirement.name)
    # A future day excludes nothing, so indexes without dates need no special treatment.
    as_of = request.as_of if request.as_of < words.now() else ""
    target = target_options(wants, platform)
    own = {name for index in wants.indexes for name in index.packages}
    lock, messages, undated = compile_as_of(
        lambda options: compile_closure(request, settings, inherited, [*target, *options]),
        as_of,
        # Installed packages keep their versions, whatever their age.
        request.exempt | {package.name for package in inherited if package.hashes},
        _names(request.requirements) - request.exempt - own if as_of else frozenset(),
    )
    if not lock:
        failure, hint = index_failure(messages)
        hint = hint or "change `python:` in image.yaml"
        if undated is not None and not failure:
            hint = (
                f"packages newer than {as_of} are used only if `python.packages` names their exact version"
                " (NAME==VERSION). Name the packages that must be newer, or write `as_of: today` under `python:`"
            )
        if only_wheels() and _NO_WHEEL.search(messages):
            hint = (
                "request a version that has a wheel. Reading the requirements of a source distribution would run its"
                " code on this machine. `UV_NO_BUILD=0` in the environment allows this for all packages"
            )
        if _NO_ROOM.search(messages):
            hint = "make room in uv's cache (~/.cache/uv, or UV_CACHE_DIR), or set UV_CACHE_DIR to a folder with room"
        message = f"the Python packages cannot be resolved for {platform}, Python {wants.version}:"
        raise SourceError(f"{message}{failure and f' {failure}'}\n{messages}", hint=hint)
    listed = lock["packages"]
    addresses = {package["name"]: package["wheels"][0]["url"] for package in listed if package.get("wheels")}
    effective = "" if as_of and undated is None else request.as_of
    without_date = (undated or frozenset()) & {canonical(package["name"]) for package in listed}
    pin = replace(
        _pin(lock, request.requested), as_of=effective, undated=tuple(sorted(without_date)) if effective else ()
    )
    warnings = tuple(line.removeprefix("warning: ") for line in messages.splitlines() if _NOTABLE.match(line))
    return ResolvedClosure(pin, addresses, warnings)


def index_failure(messages: str) -> tuple[str, str]:
    """By uv's messages, what an index answered instead of its packages, and what to do. Two empty texts if every
    index answered."""
    settings = "the address of the index (image.yaml, UV_DEFAULT_INDEX, PIP_INDEX_URL, UV_INDEX or PIP_EXTRA_INDEX_URL)"
    if refused := _REFUSED.search(messages):
        hint = f"check {settings}, and its login, which belongs into the address or into ~/.netrc"
        return f"the package index {refused['index']} answers {refused['status']}", hint
    if failed := _UNREACHABLE.search(messages):
        cause = _LAST_CAUSE.match(messages)
        hint = f"check the network, HTTPS_PROXY and {settings}; then run the command again"
        return f"{failed['address']} cannot be fetched: {cause['cause'] if cause else 'no reason was given'}", hint
    return "", ""


def target_options(wants: PythonRequirements, platform: str) -> list[str]:
    """Returns uv's options for the platform that packages are for."""
    return ["--python-platform", f"{MACHINES[platform]}-manylinux_{wants.glibc.replace('.', '_')}"]


def compile_closure(
    request: ClosureRequest, settings: UserSettings, inherited: Sequence[LockedPackage], options: list[str]
) -> tuple[dict[str, Any], str]:
    """Runs `uv pip compile`; returns its lock (pylock.toml, PEP 751; empty without a solution) and its messages."""
    import subprocess
    import tempfile
    import tomllib

    with tempfile.TemporaryDirectory(prefix="builder-") as name:
        folder = Path(name)
        project, constraints, lock = (folder / file for file in ("pyproject.toml", "constraints.txt", "pylock.toml"))
        # Distributions have some versions that a resolver cannot compare.
        brought = [package for package in inherited if not package.hashes and parse_version(package.version)]
        direct = _names(request.requirements) if brought else frozenset()
        lines = _project(request, local_wheel_names(settings, MACHINES[request.platform]), brought)
        project.write_text("\n".join(lines) + "\n", encoding="utf-8")
        links = [link if "://" in link else str(Path(link).absolute()) for link in settings.find_links]
        if brought:
            write(folder / "stubs", brought)
            links.append(str(folder / "stubs"))
        fixed = [package for package in inherited if package.hashes]
        fixed += [package for package in brought if package.name not in direct]
        constraints.write_text("".join(f"{p.name}=={p.version}\n" for p in fixed), encoding="utf-8")
        if preferred := (*(package for package in brought if package.name in direct), *request.previous):
            # The parts of an earlier output file that uv reads. uv keeps the versions in it if possible.
            lines = ['lock-version = "1.0"', 'created-by = "builder"']
            for package in preferred:
                lines += ["[[packages]]", f"name = {quoted(package.name)}", f"version = {quoted(package.version)}"]
            lock.write_text("\n".join(lines) + "\n", encoding="utf-8")
        options = [*options, *options_of_user(), "--output-file", str(lock)]
        options += ["--constraints", str(constraints), "--python-version", request.wants.version]
        process = subprocess.run(
            [path(), "pip", "compile", str(project), *_COMPILE, *options],
            # uv reads the overrides and indexes of a pyproject.toml only in its working folder.
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
            # uv breaks the lines of its messages at the width of the terminal.
            env={**os.environ, "COLUMNS": "10000", **variables(settings, links)},
        )
        if process.returncode:
            return {}, process.stderr.strip() or "uv gave no reason"
        return tomllib.loads(lock.read_text(encoding="utf-8")), process.stderr.strip()


def _names(requirements: tuple[str, ...]) -> frozenset[str]:
    from packaging.requirements import Requirement

    return frozenset(canonical(Requirement(text).name) for text in requirements)


def local_wheel_names(settings: UserSettings, machine: str) -> frozenset[str]:
    """Returns the names of the packages for which the user has local wheels for this platform."""
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


def _project(request: ClosureRequest, local: frozenset[str], brought: Iterable[LockedPackage]) -> list[str]:
    """Returns the lines of a pyproject.toml that requires the packages. Each index provides only its own packages. A
    local wheel has priority if the index allows it. The packages ``brought`` get no dependencies."""
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
    for package in brought:
        lines += ["[[tool.uv.dependency-metadata]]", f"name = {quoted(package.name)}"]
        lines += [f"version = {quoted(package.version)}", "requires-dist = []"]
    return lines


def _pin(lock: dict[str, Any], requested: tuple[str, ...]) -> PythonPin:
    packages: list[LockedPackage] = []
    newest = datetime(1980, 1, 1, tzinfo=UTC)
    for package in lock["packages"]:
        name = package["name"]
        files = package.get("wheels") or [package[key] for key in ("sdist",) if key in package]
        if not files:  # NAME @ ADDRESS, PEP 508
            raise _own_address(name)
        packages.append(LockedPackage(name, package["version"], tuple(sorted(sha256_of(name, file) for file in files))))
        newest = max([newest, *(file["upload-time"] for file in files if "upload-time" in file)])
    stamp = words.timestamp_of(newest)
    return PythonPin(requested, stamp, tuple(sorted(packages, key=lambda package: package.name)))


def _own_address(name: str) -> SourceError:
    return SourceError(
        f"the Python package {name} is requested by its address, but builder pins packages by the version and"
        " the hashes of an index",
        hint=f"request `{name}==VERSION`; if no index has the wheel, put it into a folder of PIP_FIND_LINKS",
    )


def sha256_of(name: str, file: dict[str, Any]) -> str:
    if (digest := file["hashes"].get("sha256")) is None:
        message = f"the index has no sha256 of {name}, only {', '.join(file['hashes'])}"
        raise SourceError(message, hint="use an index that lists SHA-256 hashes, as PyPI does")
    return str(digest)


_FIND_LOCK = threading.Lock()  # sysconfig, which find_uv_bin uses, is not thread-safe on its first call


def path() -> str:
    from uv import find_uv_bin

    with _FIND_LOCK:
        return find_uv_bin()


def only_wheels() -> bool:
    """True unless the user's environment allows packages to run code on this machine."""
    return os.environ.get("UV_NO_BUILD", "").lower() not in {"0", "false", "no"}


def options_of_user() -> tuple[str, ...]:
    return ("--no-build",) if only_wheels() else ()


def variables(settings: UserSettings, links: Sequence[str]) -> dict[str, str]:
    """The user's settings as variables of uv. An address may contain a password, and every user can see arguments.
    ``links`` are the folders and addresses with wheels."""
    named = {
        "SSL_CERT_FILE": str(settings.ca_file or ""),
        "UV_DEFAULT_INDEX": settings.index_url,
        "UV_INDEX": " ".join(settings.extra_index_urls),
        "UV_FIND_LINKS": ",".join(links),
    }
    return {name: value for name, value in named.items() if value}


# A closure as of a day. uv excludes files that are newer than the day, and also files without an upload date (PEP 700),
# except files in a folder of wheels. An index without dates would thus provide nothing, or only old versions.

_UNDATED = re.compile(r"warning: `(?P<file>[^`]+)` is missing an upload date.*")
_NOTABLE = re.compile(r"warning: (?:`\S+` is yanked|The package `\S+` does not have an extra)")
_PROGRESS = re.compile(r"Resolved \d+ packages? in .*")
_SUFFIX = re.compile(r"(\.tar\.\w+|\.zip|\.tgz)$")
# Each run of uv finds more packages without a date. The number of runs is the depth of the dependencies on that index.
_RUNS = 12


def compile_as_of(
    compile_closure: Callable[[list[str]], tuple[dict[str, Any], str]],
    as_of: str,
    exempt: Collection[str],
    requested: frozenset[str],
) -> tuple[dict[str, Any], str, frozenset[str] | None]:
    """Runs `compile_closure` with a date limit: nothing newer than ``as_of`` (RFC 3339; empty for no limit), except the
    packages ``exempt``. Returns uv's lock, its messages, and the packages whose index has no dates, which are accepted
    at any age. The packages are None for a closure without a limit, for example if all ``requested`` packages have no
    dates."""
    undated: frozenset[str] = frozenset()
    for _ in range(_RUNS if as_of else 0):
        lasting = [f"--exclude-newer-package={name}=false" for name in sorted({*exempt, *undated})]
        lock, messages = compile_closure(["--exclude-newer", as_of, *lasting])
        lines = messages.splitlines()
        more = {_package(match["file"]) for match in map(_UNDATED.fullmatch, lines) if match} - undated
        if not more:
            return lock, _without_noise(lines), undated
        undated |= more
        if requested and requested <= undated:
            break
    lock, messages = compile_closure([])
    return lock, _without_noise(messages.splitlines()), None


def _without_noise(lines: Iterable[str]) -> str:
    """uv's messages without its progress and without warnings that do not concern the request. Its ``--quiet`` would
    leave out all warnings."""
    left = (line for line in lines if _NOTABLE.match(line) or not line.startswith("warning: "))
    return "\n".join(line for line in left if not _PROGRESS.fullmatch(line)).strip()


def _package(file: str) -> str:
    """The package of a wheel or a source distribution, from its file name."""
    name = file.partition("-")[0] if file.endswith(".whl") else _SUFFIX.sub("", file).rpartition("-")[0]
    return canonical(name)


# Empty wheels represent the packages of a community base image, which need no index: they take part in the resolution,
# and require nothing.


def write(folder: Path, packages: Iterable[LockedPackage]) -> None:
    """Writes a wheel for each package into a new ``folder``."""
    folder.mkdir()
    for package in packages:
        stem = f"{re.sub('[-_.]+', '_', package.name)}-{package.version}"
        metadata = f"Metadata-Version: 2.1\nName: {package.name}\nVersion: {package.version}\n"
        with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as archive:
            archive.writestr(f"{stem}.dist-info/METADATA", metadata)
            archive.writestr(
                f"{stem}.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
            )
            archive.writestr(f"{stem}.dist-info/RECORD", "")


_PAUSES = (1.0, 3.0)  # seconds before the second and third try
_BUSY = (429, 500, 502, 503, 504)  # a server that asks for a later retry
_ABSENT = (404, 410)


def download_web_file(address: str, largest: int, ca_file: Path | None, notify: Callable[[str], None]) -> bytes:
    """The content of the file at ``address``, of at most ``largest`` bytes. Raises SourceError."""
    shown = git.split(address).url
    tries = 0
    while True:
        tries += 1
        try:
            return _receive(address, largest, ca_file)
        except NoAnswerError as error:
            if not error.transient:
                raise SourceError(f"{shown} cannot be fetched: {error}") from None
            if tries > len(_PAUSES):
                message = f"{shown} cannot be fetched ({tries} tries): {error}"
                hint = "check the network and HTTPS_PROXY, then run the command again"
                raise SourceError(message, hint=hint) from None
            notify(f"{shown} cannot be fetched: {error}; trying again in {_PAUSES[tries - 1]:g} s")
            time.sleep(_PAUSES[tries - 1])


def _receive(address: str, largest: int, ca_file: Path | None) -> bytes:
    with http_client.following(ca_file) as client:
        answer = http_client.send(client, "GET", address, largest=largest, headers={"Accept-Encoding": "identity"})
    if answer.status_code in _BUSY:
        raise NoAnswerError(f"the server answers {http_client.status(answer)}", transient=True)
    if not answer.is_success:
        message = f"{git.split(address).url}: the server answers {http_client.status(answer)}"
        hint = "check the address: the server has no such file"
        if answer.status_code not in _ABSENT:
            hint = "check the address in a browser without a login; if the file needs a login, copy it into the mod"
        raise SourceError(message, hint=hint)
    return answer.content
