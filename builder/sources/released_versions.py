"""The versions of a package on the user's index, with the hashes of their wheels (PEP 691)."""

from __future__ import annotations

import functools
import json
import re
from typing import TYPE_CHECKING, Any

from builder import http_client
from builder.errors import SourceError
from builder.http_client import NoAnswerError
from builder.lock.pins import LockedPackage
from builder.plan import python
from builder.sources import environment

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from builder.sources.environment import UserSettings

_DEFAULT = "https://pypi.org/simple"
_JSON = "application/vnd.pypi.simple.v1+json"
_LARGEST = 64 << 20


def between(package: str, old: str, new: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    """The versions strictly between two, beginning at the side of ``old``; no pre-releases, unless one end is one.
    Raises SourceError where the index does not answer."""
    from packaging.version import InvalidVersion, Version

    try:
        ends = (Version(old), Version(new))
    except InvalidVersion:
        return ()
    versions: list[Version] = []
    for text in _files(package, environ):
        version = Version(text)
        wanted = not version.is_prerelease or any(end.is_prerelease for end in ends)
        if min(ends) < version < max(ends) and wanted and version.local == ends[0].local:
            versions.append(version)
    return tuple(str(version) for version in sorted(versions, reverse=ends[0] > ends[1]))


def newest(package: str, settings: UserSettings) -> tuple[str, ...]:
    """The versions that the user's index has, the newest first; pre-releases only where there is nothing else. Raises
    SourceError where it does not answer."""
    from packaging.version import Version

    versions = sorted(map(Version, _files_of(package, settings)), reverse=True)
    return tuple(map(str, [each for each in versions if not each.is_prerelease] or versions))


def line(package: str, version: str, environ: Mapping[str, str]) -> str:
    """The entry of a version in a requirement file, with the hashes of its wheels. Raises SourceError."""
    hashes = _files(package, environ).get(version)
    if not hashes:
        raise SourceError(f"the index has no wheel of {package} {version}")
    return python.line(LockedPackage(package, version, tuple(sorted(hashes))))


def _files(package: str, environ: Mapping[str, str]) -> dict[str, set[str]]:
    return _files_of(package, environment.read(environ))


def _files_of(package: str, settings: UserSettings) -> dict[str, set[str]]:
    index = (settings.index_url or _DEFAULT).rstrip("/")
    return _wheels(f"{index}/{package}/", settings.ca_file)


@functools.cache
def _wheels(address: str, ca_file: Path | None) -> dict[str, set[str]]:
    """The hashes of the wheels that were not withdrawn, by version."""
    from packaging.utils import InvalidWheelFilename, parse_wheel_filename

    from builder.sources.git import credentials

    shown = credentials.split(address).url
    try:
        with http_client.following(ca_file) as client:
            headers = {"Accept": f"{_JSON}, text/html;q=0.1"}
            answer = http_client.send(client, "GET", address, largest=_LARGEST, headers=headers)
    except NoAnswerError as error:
        raise SourceError(f"{shown} does not answer: {error}") from None
    if not answer.is_success:
        raise SourceError(f"{shown}: the server says {http_client.status(answer)}")
    versions: dict[str, set[str]] = {}
    for name, sha256 in _listed(answer.text):
        try:
            version = str(parse_wheel_filename(name)[1])
        except InvalidWheelFilename:
            continue
        versions.setdefault(version, set()).add(sha256)
    return versions


def _listed(text: str) -> list[tuple[str, str]]:
    """The name and SHA-256 of each file of a page, in either of its two forms."""
    try:
        data: Any = json.loads(text)
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
