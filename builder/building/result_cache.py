"""Caches the results of builds that had nothing to do, by the typed request and the state of all files.

As in git's index, the state of a file is its time of change (ctime), its size and its inode: writing to a file or
replacing it changes its ctime, which no program can set. The images in the engine are checked each time."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from builder.base import files, records
from builder.base.values import dataclass
from builder.building.request import BuildOutcome  # noqa: TC001 (the type of a record)
from builder.engine import images

if TYPE_CHECKING:
    from builder.base.project import Project
    from builder.building.request import BuildRequest
    from builder.building.resolve import PlannedImage
    from builder.numbers.workspace import Workspace


# Checking more files than this takes longer than planning the build.
_LARGEST = 16 << 20
_MOST_FILES = 20_000
_DIGITS = 2  # of a request's digest that name its file: at most 256 files
# Two writes within one tick of the file system's clock have the same ctime. A tick of Linux is at most 10 ms. Some file
# systems store whole seconds.
_TICK = 100_000_000
_COARSE_TICK = 2_000_000_000
_PROGRAM = Path(__file__).parent.parent


@dataclass(frozen=True)
class CacheKey:
    """A request with the state of the files. ``path`` is the file of its results, which another request may replace;
    ``files`` is a digest of the request and the files' states. ``settled``: every later change to the files changes the
    digest."""

    path: Path
    files: str
    settled: bool


@dataclass(frozen=True)
class CachedResults:
    """The results of a request for this state of ``files``. They are valid while the images of ``repositories`` in the
    engine include ``images``, which maps names to fingerprints."""

    files: str
    repositories: tuple[str, ...]
    images: Mapping[str, str]
    results: tuple[BuildOutcome, ...]


def cache_key(workspace: Workspace, request: BuildRequest) -> CacheKey | None:
    """Returns the key of ``request`` in the present project. None if the request always needs planning, if the project
    has too many files or an unreadable file, or if a build is running or was killed."""
    always = request.update or request.force or request.push or request.candidate
    if always or request.without_checks or request.promote_anyway or workspace.project.unfinished:
        return None
    states = hashlib.sha256()
    newest = 0
    try:
        typed = (request.targets, request.models, request.mods, request.platform, sorted(request.settings.items()))
        parts = (workspace.engine.host, Path.cwd(), *typed, request.locked, request.promote)
        name = hashlib.sha256(repr(parts).encode()).hexdigest()
        states.update(name.encode())
        for number, path in enumerate(_files(workspace.project)):
            if number > _MOST_FILES:
                return None
            state = _state(path)
            newest = max(newest, state.st_ctime_ns)
            states.update(os.fsencode(path))
            states.update(f"\0{state.st_ctime_ns} {state.st_size} {state.st_ino} {state.st_dev}\0".encode())
    except OSError:
        return None
    tick = _TICK if newest % 1_000_000_000 else _COARSE_TICK
    place = workspace.project.state / "unchanged" / name[:_DIGITS]
    return CacheKey(place, states.hexdigest(), newest < time.time_ns() - tick)


def look_up(workspace: Workspace, key: CacheKey) -> tuple[BuildOutcome, ...] | None:
    """Returns the results stored under ``key``; None unless the files and the images in the engine are unchanged."""
    try:
        stored = records.read_file(key.path, CachedResults, largest=_LARGEST)
    except (OSError, records.RecordError):
        return None
    if stored.files != key.files:
        return None
    cache = workspace.project.engine_cache
    _, existing = images.find_images(workspace.engine, stored.repositories, stored.images, cache)
    return stored.results if existing == stored.images else None


def store(key: CacheKey, planned: Sequence[PlannedImage], results: Sequence[BuildOutcome]) -> None:
    """Stores the ``results`` of plans that need no build, if they stay valid while nothing changes.

    They are not stored if something was just recorded, if a later number with the same inputs may return to the engine,
    if a recipe is outside recipes/, if a source is a local checkout, which is outside the project's state, or if
    evidence is missing, which may be recorded at any time.
    """
    images: dict[str, str] = {}
    definitions = [part.definition for image in planned for part in image.plan.chain]
    has_checkout = any(source.checkout for each in definitions for source in each.git_sources.values())
    if not key.settled or not planned or has_checkout or any(result.waiting for result in results):
        return
    for image in planned:
        name = image.comparison.existing
        if name is None or not image.is_recorded or (image.recipe and not image.recipe.file.startswith("recipes/")):
            return
        numbers = image.lock.images[name.repository].numbers
        if name.number != max(n for n, record in numbers.items() if record.input_hash == image.plan.input_hash):
            return
        images[str(name)] = numbers[name.number].fingerprint
    content = CachedResults(key.files, tuple(planned[0].lock.images), images, tuple(results))
    files.write_state(key.path, records.text_of(content, {}).encode())


def _files(project: Project) -> Iterator[Path]:
    """Lists all files that a plan depends on, including the program. A new recipe changes the state of its folder."""
    settings = project.root / "builder.yaml"
    yield from (project.root, project.lock, *([settings] if settings.exists() else []))
    for top in (project.dockerfiles, project.mods, project.recipes, _PROGRAM):
        for path, folders, names in os.walk(top, followlinks=True):
            folders.sort()
            yield Path(path)
            yield from (Path(path, name) for name in sorted(names) if top != _PROGRAM or not name.endswith(".pyc"))


def _state(path: Path) -> os.stat_result:
    try:
        return path.stat()
    except FileNotFoundError:
        return path.lstat()  # a dangling link
