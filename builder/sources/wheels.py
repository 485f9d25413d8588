"""Finds wheels on indexes, and reads single files from them. Only the required bytes of a remote wheel are fetched."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import re
import shutil
import sys
import zipfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, TypeAlias

from builder.base import files, http_client, records, words
from builder.base.errors import SourceError
from builder.base.http_client import NoAnswerError
from builder.base.values import dataclass, replace
from builder.base.words import parse_requirement
from builder.definitions.fields import canonical
from builder.definitions.image import Index, PythonRequirements
from builder.sources import python

if TYPE_CHECKING:
    import httpx2

    from builder.sources.git import UserSettings


# Nothing is built, so this Python suffices: searching for the requested Python would take uv longer than the rest.
_OPTIONS = ["--no-deps", "--quiet", "--python", sys.executable]


RemoteAddress: TypeAlias = Annotated[str, "https?://.*"]


@dataclass(frozen=True)
class Wheel:
    """A wheel on an index or in a folder: its address and its SHA-256 (64 hex digits)."""

    address: str
    sha256: str


@dataclass(frozen=True)
class WheelRequest:
    """A request for a wheel of one exact version (``vllm==0.20.0``), for the Python and from the indexes of ``python``.
    Its SHA-256 must be one of ``hashes``, if there are any. A wheel for ``platform`` is preferred. With
    ``installable`` it is required, so uv downloads no other wheel to compute its hash."""

    requirement: str
    python: PythonRequirements
    platform: str
    hashes: frozenset[str] = frozenset()
    installable: bool = False


def find_wheel(cache: Path, request: WheelRequest, settings: UserSettings) -> Wheel:
    """Finds the requested wheel. ``cache`` stores the answer of an index. Raises SourceError if no wheel is
    suitable."""
    indexes = (settings.index_url, settings.extra_index_urls, settings.find_links, request.python.indexes)
    target = (request.python.glibc, request.platform) if request.installable else ()
    key = hashlib.sha256(repr((request.requirement, request.python.version, indexes, *target)).encode()).hexdigest()
    answer = cache / "found" / f"{key}.json"
    wheel = _suitable(request, _remembered(answer))
    if wheel is None:
        own = python.target_options(request.python, request.platform) if request.installable else ["--universal"]
        listed = _query_index(request.requirement, request.python, request.platform, settings, own)
        wheels = tuple(Wheel(file["url"], python.sha256_of(request.requirement, file)) for file in listed)
        # A local wheel may be built again; an uploaded wheel never changes.
        if not any(each.address.startswith("file:") for each in wheels):
            files.write_state(answer, json.dumps([[each.address, each.sha256] for each in wheels]).encode())
        wheel = _suitable(request, wheels)
    if wheel is None:
        message = f"the index no longer has the pinned wheel of {request.requirement}"
        raise SourceError(message, hint="to pin another wheel: `builder lock DEFINITION --update SOURCE`")
    return wheel


def _suitable(request: WheelRequest, wheels: tuple[Wheel, ...]) -> Wheel | None:
    machine = python.MACHINES[request.platform]
    candidates = [wheel for wheel in wheels if not request.hashes or wheel.sha256 in request.hashes]
    return min(
        candidates, key=lambda each: (machine not in each.address, "-none-any." not in each.address), default=None
    )


def _query_index(
    requirement: str, wants: PythonRequirements, platform: str, settings: UserSettings, target: list[str]
) -> list[dict[str, Any]]:
    """The wheels of ``requirement`` as uv lists them (pylock.toml). Raises SourceError if there is none."""
    closure = python.ClosureRequest(wants, (), (requirement,), platform)
    lock, error = python.compile_closure(closure, settings, (), [*target, *_OPTIONS])
    files = [file for package in lock.get("packages", ()) for file in package.get("wheels", ())]
    if not files:
        failure, hint = python.index_failure(error)
        if failure:
            raise SourceError(f"the wheel of {requirement} cannot be looked up: {failure}\n{error}", hint=hint)
        error = error or "the index has only its source code"
        hint = f"name a version in image.yaml for which the index has a wheel for {platform}"
        raise SourceError(f"no wheel of {requirement} was found:\n{error}", hint=hint)
    return files


def _remembered(answer: Path) -> tuple[Wheel, ...]:
    try:
        # A path on this machine is never stored, so such an address was planted.
        return tuple(Wheel(*each) for each in records.read_file(answer, tuple[tuple[RemoteAddress, str], ...]))
    except (OSError, records.RecordError):
        return ()


# The wheel of one commit: vLLM publishes a wheel for each commit of its main branch, on an index for that commit.

COMMIT = "COMMIT"
"""The placeholder for the 40 digits of the commit in the address of an index."""
PUBLISHED = f"https://wheels.vllm.ai/{COMMIT}"
"""The indexes of vLLM's commits, with what a release has on PyPI: a variant (``/cu130``) may follow. From "Install
specific revisions" in https://docs.vllm.ai/en/latest/getting_started/installation/gpu/."""
# The form of setuptools-scm, followed by the variant: 0.11.2.dev363+ge2f56c309.cu130
_NAMED = re.compile(r"\+(?:[a-z0-9]+\.)*g(?P<digits>[0-9a-f]{7,40})(?:\.|$)")
_INDEX = re.compile(r"https?://[^\s'\"\\]*?/(?P<commit>[0-9a-f]{40})(?![0-9a-f])[^\s'\"\\]*")
# An address that is one word in a requirement file.
_ADDRESS = re.compile(r"https?://[^\s'\"\\$`;#]+")
_SHOWN = 200


@dataclass(frozen=True)
class CommitWheel(Wheel):
    """The wheel of a commit, and its version."""

    version: str

    def line(self, package: str) -> str:
        """The entry in a requirement file. It has the address, so it does not depend on the indexes of the image."""
        return f"{package} @ {self.address} \\\n    --hash=sha256:{self.sha256}\n"


def named(version: str) -> str:
    """The first digits (7 to 40) of the commit that a version names; empty for a release."""
    match = _NAMED.search(version)
    return match["digits"] if match else ""


def template(text: str, version: str) -> str:
    """The address of the index in ``text`` for the commit of ``version``, with ``COMMIT`` in its place, or nothing."""
    digits = named(version)
    of_commit = (match for match in _INDEX.finditer(text) if digits and match["commit"].startswith(digits))
    return next((match[0].replace(match["commit"], COMMIT) for match in of_commit), "")


def find_commit_wheel(
    cache: Path, package: str, index: str, commit: str, wants: PythonRequirements, platform: str, settings: UserSettings
) -> CommitWheel:
    """The wheel of ``package`` for ``commit`` on the index, for this Python and platform. Raises SourceError."""
    from urllib.parse import unquote

    from packaging.utils import InvalidWheelFilename, parse_wheel_filename

    address = index.replace(COMMIT, commit)
    own = replace(wants, indexes=(Index(address, (package,), local=False),))
    try:
        wheel = find_wheel(cache, WheelRequest(package, own, platform, installable=True), settings)
        version = str(parse_wheel_filename(unquote(wheel.address.rpartition("/")[2]))[1])
    except SourceError as error:
        if python.index_failure(error.message)[0]:  # the index did not answer, so it may have the wheel
            raise
        why = " ".join(error.message.split("\n", 1)[-1].split())[:_SHOWN]
        message = f"{address} has no wheel of {package} for {platform}, Python {wants.version}: {why}"
        raise SourceError(message) from None
    except InvalidWheelFilename as error:
        raise SourceError(f"{address}: {error}") from None
    if not _ADDRESS.fullmatch(wheel.address):
        message = f"a build cannot fetch the wheel from {wheel.address!r}"
        hint = "the address must begin with http:// or https://, and contain no space, quote or any of \\ $ ` ; #"
        raise SourceError(message, hint=hint)
    if not commit.startswith(named(version)):
        raise SourceError(f"{address} has only a wheel of another commit, {version}")
    return CommitWheel(wheel.address, wheel.sha256, version)


def read_upload_date(requirement: str, wants: PythonRequirements, platform: str, settings: UserSettings) -> str:
    """The upload time (RFC 3339 UTC) of the first wheel of ``requirement`` (``vllm==0.32.0``); empty if the index has
    no dates. Raises SourceError if the index has no such wheel."""
    files = _query_index(requirement, wants, platform, settings, python.target_options(wants, platform))
    times = [words.timestamp_of(file["upload-time"]) for file in files if "upload-time" in file]
    return min(times, default="")


def stage(folder: Path, hashes_by_group: Mapping[str, frozenset[str]], settings: UserSettings) -> bool:
    """Copies the user's wheels with these SHA-256 hashes into ``folder``, one subfolder for each group; returns True if
    there are any. Raises SourceError if one cannot be copied."""
    staged = False
    for wheel in settings.local_wheels() if any(hashes_by_group.values()) else ():
        with wheel.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        for own in (folder / group for group, hashes in hashes_by_group.items() if digest in hashes):
            try:
                own.mkdir(parents=True, exist_ok=True)
                # A hard link would change the wheel's ctime, and uv would unpack it again at the next resolution
                # (torch: 5 s, and 700 MB more in its cache, each time).
                shutil.copy2(wheel, own)
            except OSError as error:
                raise SourceError(f"{wheel} cannot be copied to {own}: {error.strerror}") from None
            staged = True
    return staged


# The form of setuptools-scm and vcs-versioning: commit_id = 'gb1388b1fb', where g means git.
_COMMIT = re.compile(r"commit_id = ['\"]g?([0-9a-f]{7,40})['\"]")


def read_wheel_commit(address: str, ca_file: Path | None) -> str | None:
    """Returns the first digits (7 to 40) of the commit that a wheel names, or None. Raises SourceError."""
    with open_wheel(address, ca_file) as archive:
        names = [name for name in archive.namelist() if re.fullmatch(r"[^/]+/_version\.py", name)]
        matches = [_COMMIT.search(_read(archive, name).decode("utf-8", "replace")) for name in names]
    return next((match[1] for match in matches if match), None)


# Single files of a wheel are read in place, a few kilobytes of hundreds of megabytes, and cached by the wheel's hash.

# A wheel may keep files for site-packages in a folder of its own:
# https://packaging.python.org/en/latest/specifications/binary-distribution-format/
_LARGEST = 64 << 20  # bytes


def read_wheel_files(cache: Path, wheel: Wheel, paths: Collection[str], ca_file: Path | None) -> dict[str, bytes]:
    """Returns the contents of the ``paths`` that the wheel installs into site-packages. ``cache`` stores them, and the
    list of all names. Raises SourceError if the wheel cannot be read."""
    folder = cache / wheel.sha256
    listing = _cached(folder / "names")
    if listing is not None:
        names = frozenset(listing.decode().split("\n"))
        wanted = {path for path in paths if path in names}
        contents = read_cached(cache, wheel.sha256, wanted)
        if len(contents) == len(wanted):
            return contents
    with open_wheel(wheel.address, ca_file) as archive:
        members = {re.sub(r"^[^/]+\.data/(?:purelib|platlib)/", "", name): name for name in archive.namelist()}
        contents = {path: _read(archive, members[path]) for path in paths if path in members}
    for path, content in contents.items():
        files.write_state(_file(folder, path), content)
    files.write_state(folder / "names", "\n".join(members).encode())
    return contents


def _read(archive: zipfile.ZipFile, name: str) -> bytes:
    """The content of a file, which may be highly compressed: at most its declared size is read."""
    if (size := archive.getinfo(name).file_size) > _LARGEST:
        raise zipfile.BadZipFile(f"{name} in it has {size:,} bytes, but at most {_LARGEST:,} are read")
    return archive.read(name)


def read_cached(cache: Path, sha256: str, paths: Collection[str]) -> dict[str, bytes]:
    """Returns the contents of the ``paths`` of this wheel in the cache. Needs no network."""
    contents = {path: _cached(_file(cache / sha256, path)) for path in paths}
    return {path: content for path, content in contents.items() if content is not None}


def _file(folder: Path, path: str) -> Path:
    return folder / hashlib.sha256(path.encode()).hexdigest()


def _cached(path: Path) -> bytes | None:
    try:
        return files.read_plain_file(path, _LARGEST)
    except OSError:
        return None


def read_requirements(cache: Path, wheel: Wheel, ca_file: Path | None) -> tuple[str, ...]:
    """The requirements (``Requires-Dist``) of a wheel, read in place. Raises SourceError if it cannot be read."""
    from email.parser import BytesHeaderParser
    from urllib.parse import unquote

    name, version = unquote(wheel.address.rpartition("/")[2]).split("-")[:2]
    file = f"{name}-{version}.dist-info/METADATA"
    metadata = read_wheel_files(cache, wheel, [file], ca_file).get(file, b"")
    return tuple(map(str, BytesHeaderParser().parsebytes(metadata).get_all("Requires-Dist", [])))


def conflict(needs: Iterable[str], installed: Mapping[str, str], platform: str, version: str) -> str:
    """Describes the first requirement of a wheel that an image with these packages (name to version) and this
    ``version`` of Python does not meet; empty if all are met. A package that the image lacks was left out on
    purpose."""
    target = python.markers(platform, version)
    unmet = filter(None, (unmet_need(text, installed, target) for text in needs))
    return next((f"requires {needed}, but the image has {present}" for needed, present in unmet), "")


def unmet_need(text: str, installed: Mapping[str, str], target: Mapping[str, str]) -> tuple[str, str] | None:
    """Returns a requirement (``Requires-Dist``) and the installed version, if the requirement applies to the machine
    ``target`` (markers, PEP 508) and the installed version does not meet it. Otherwise None: also if it cannot be read,
    or the package is not installed. ``installed`` has normalized names (PEP 503)."""
    requirement = parse_requirement(text)
    version = installed.get(canonical(requirement.name)) if requirement else None
    if not requirement or not version or (requirement.marker and not requirement.marker.evaluate(dict(target))):
        return None
    if requirement.specifier.contains(version, prereleases=True):
        return None
    return f"{requirement.name}{requirement.specifier}", version


@contextlib.contextmanager
def open_wheel(address: str, ca_file: Path | None) -> Iterator[zipfile.ZipFile]:
    """Opens the wheel at ``address`` (https: or file:). Raises SourceError if it cannot be read, now or later."""
    errors: tuple[type[Exception], ...] = (*files.zip_errors(), NoAnswerError)
    try:
        with contextlib.ExitStack() as stack:
            yield stack.enter_context(zipfile.ZipFile(stack.enter_context(_open_file(address, ca_file))))
    except errors as error:
        raise SourceError(f"the wheel {address} cannot be read: {error}") from None


@contextlib.contextmanager
def _open_file(address: str, ca_file: Path | None) -> Iterator[IO[bytes]]:
    import netrc
    import os
    from urllib.parse import unquote, urlsplit

    location = urlsplit(address)
    if location.scheme == "file":
        with Path(unquote(location.path)).open("rb") as file:
            yield file
        return
    import httpx2

    login = None
    if not location.username:
        # The user's logins by host, which uv also uses.
        with contextlib.suppress(OSError, RuntimeError, netrc.NetrcParseError):
            login = httpx2.NetRCAuth(str(Path(os.environ.get("NETRC") or "~/.netrc").expanduser()))
    # One connection for all ranges. Otherwise, each range costs a name lookup and three round trips.
    with http_client.following(ca_file, login=login) as client:
        yield io.BufferedReader(_RemoteFile(address, client), 1 << 16)


class _RemoteFile(io.RawIOBase):
    """A remote file, read in ranges (RFC 9110, section 14)."""

    def __init__(self, address: str, client: httpx2.Client) -> None:
        super().__init__()
        self._address = address
        self._client = client
        self._at = 0
        length = self._request("HEAD", {}, 0)[0].get("Content-Length", "")
        if not length.isdecimal():
            reason = "the server does not say how large the file is (Content-Length)"
            raise NoAnswerError(f"{reason}; use an index whose server sends the file size and supports range requests")
        self._size = int(length)

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence] + offset
        return self._at

    def readinto(self, buffer: Any, /) -> int:
        wanted = min(len(buffer), self._size - self._at)
        if wanted <= 0:
            return 0
        _, data = self._request("GET", {"Range": f"bytes={self._at}-{self._at + wanted - 1}"}, wanted)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)

    def _request(self, method: str, headers: dict[str, str], largest: int) -> tuple[httpx2.Headers, bytes]:
        """The headers and content of an answer. If the answer is the whole wheel, it is not downloaded. A failure is
        not an OSError, because zipfile would report an OSError as an invalid zip file."""
        plain = {"Accept-Encoding": "identity", **headers}
        with self._client.stream(method, self._address, headers=plain) as answer:
            if not answer.is_success:
                raise NoAnswerError(f"the server answers {http_client.status(answer)}")
            if method == "GET" and answer.status_code != 206:
                reason = "the server does not support range requests, which are needed to read a wheel's metadata"
                message = f"{reason}; use an index that supports them"
                raise NoAnswerError(message)
            # The connection can be used again only after the answer is read to its end.
            return answer.headers, b"".join(http_client.limited(answer.iter_bytes(), largest))
