"""The wheels of one exact version, looked up by uv on the user's indexes, once for each version."""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.errors import SourceError
from builder.sources import python
from builder.storage import regular_file, state_file

if TYPE_CHECKING:
    from pathlib import Path

    from builder.definitions.image import PythonRequirements
    from builder.sources.environment import UserSettings

# Nothing is built, so any Python will do: uv would search for the requested one, which takes longer than the rest.
_LARGEST = 64 << 20  # bytes
_OPTIONS = ["--no-deps", "--quiet", "--python", sys.executable]


@dataclass(frozen=True)
class Wheel:
    """A wheel on an index or in a folder: its address and its SHA-256 (64 hex digits)."""

    address: str
    sha256: str


@dataclass(frozen=True)
class WheelRequest:
    """A request for a wheel of one exact version (``vllm==0.20.0``), for the Python and from the indexes of ``python``.
    Its SHA-256 must be one of ``hashes``; if there are none, a wheel for ``platform`` is preferred to any other, as the
    Python files in them are the same. With ``installable`` none but one for ``platform`` will do, and where the index
    tells no hashes, no other is downloaded to compute one."""

    requirement: str
    python: PythonRequirements
    platform: str
    hashes: frozenset[str] = frozenset()
    installable: bool = False


def find(cache: Path, request: WheelRequest, settings: UserSettings) -> Wheel:
    """Finds the requested wheel. The answer of an index is stored in ``cache``.

    Raises SourceError if there is no wheel, none with such a hash, or no answer.
    """
    wheel = _suitable(request, _remembered(cache, request, settings))
    if wheel is None:
        wheels = _query_index(request, settings)
        _remember(cache, request, settings, wheels)
        wheel = _suitable(request, wheels)
    if wheel is None:
        raise SourceError(f"none of the wheels of {request.requirement} that are found is the pinned one")
    return wheel


def _suitable(request: WheelRequest, wheels: tuple[Wheel, ...]) -> Wheel | None:
    machine = python.MACHINES[request.platform]
    candidates = [wheel for wheel in wheels if wheel.sha256 in request.hashes] if request.hashes else wheels
    return min(
        candidates,
        key=lambda candidate: (machine not in candidate.address, "-none-any." not in candidate.address),
        default=None,
    )


def _query_index(request: WheelRequest, settings: UserSettings) -> tuple[Wheel, ...]:
    closure = python.ClosureRequest(request.python, (), (request.requirement,), request.platform)
    target = python.target_options(request.python, request.platform) if request.installable else ["--universal"]
    lock, error = python.compile_closure(closure, settings, (), [*target, *_OPTIONS])
    files = [file for package in lock.get("packages", ()) for file in package.get("wheels", ())]
    if not files:
        error = error or "it is there as source code only"
        hint = f"name a version in image.yaml that the index has a wheel of for {request.platform}"
        raise SourceError(f"no wheel of {request.requirement} is found:\n{error}", hint=hint)
    return tuple(Wheel(file["url"], python.sha256_of(request.requirement, file)) for file in files)


def _remembered(cache: Path, request: WheelRequest, settings: UserSettings) -> tuple[Wheel, ...]:
    try:
        content = regular_file.read(_cache_path(cache, request, settings), _LARGEST)
        wheels = tuple(Wheel(*fields) for fields in json.loads(content))
        # No file of this machine is ever remembered: such an address was planted.
        return wheels if all(wheel.address.startswith(("https://", "http://")) for wheel in wheels) else ()
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return ()


def _remember(cache: Path, request: WheelRequest, settings: UserSettings, wheels: tuple[Wheel, ...]) -> None:
    if not any(wheel.address.startswith("file:") for wheel in wheels):  # a local wheel may be made anew, an upload not
        content = json.dumps([[wheel.address, wheel.sha256] for wheel in wheels]).encode()
        state_file.write(_cache_path(cache, request, settings), content)


def _cache_path(cache: Path, request: WheelRequest, settings: UserSettings) -> Path:
    indexes = (settings.index_url, settings.extra_index_urls, settings.find_links, request.python.indexes)
    target = (request.python.glibc, request.platform) if request.installable else ()
    key = hashlib.sha256(repr((request.requirement, request.python.version, indexes, *target)).encode()).hexdigest()
    return cache / "found" / f"{key}.json"
