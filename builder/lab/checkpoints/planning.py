"""The plan of a checkpoint is made from the headers of its sources alone.

The files of a source come first, then their headers, then the plan.
A header must agree with the index of its source.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import IO, TYPE_CHECKING

from builder.base import hub_cache
from builder.base.errors import FileProblemsError, Problem, SourceError
from builder.base.events import Message
from builder.definitions.checkpoint_definition import AddStep
from builder.lab.checkpoints import layout, tensors
from builder.lab.checkpoints.tensors import SourceListing
from builder.lock import checkpoints_lock
from builder.lock.checkpoints_lock import RecordedFile, RecordedSource, is_file_name
from builder.sources import hub, safetensors_files
from builder.sources.safetensors_files import NAME as INDEX
from builder.sources.safetensors_files import Header, HeaderError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from builder.base.events import Report
    from builder.base.project import Project
    from builder.definitions.checkpoint_definition import CheckpointDefinition, CheckpointSource
    from builder.lab.checkpoints.layout import PlannedShard
    from builder.lab.checkpoints.tensors import PlannedContent, SourceFile
    from builder.lock.checkpoints_lock import CheckpointRecords
    from builder.sources.hub import Snapshot


# The files of a checkpoint's source: a model of the Hub at one commit, in the cache or not yet, or a folder.

_DIGEST_KINDS = {64: "sha256", 40: "git"}
_HEX = re.compile("[0-9a-f]+")


@dataclass(frozen=True)
class FileState:
    """The state of a file: all that changes when it is written."""

    device: int
    inode: int
    size: int
    changed: int


@dataclass(frozen=True)
class SourceContents:
    """A source that was looked up: its name in the definition, ``requested`` as the definition has it, and by path the
    size of each file. ``folder`` has those that are here; ``snapshot`` is the model, of a source on the Hub."""

    name: str
    requested: str
    sizes: Mapping[str, int]
    folder: Path
    snapshot: Snapshot | None
    environ: Mapping[str, str]

    def is_here(self, path: str) -> bool:
        """True for a file that need not be fetched."""
        return self.snapshot is None or (self.folder / path).exists()

    def shown(self, path: str) -> str:
        """The name of a file for messages."""
        return f"{self.snapshot.model}: {path}" if self.snapshot else str(self.folder / path)

    def digest(self, path: str) -> str | None:
        """The digest of a file's content as the Hub lists it; None where nothing does."""
        if self.snapshot is None:
            return None
        listed = next((file.blob for file in self.snapshot.files if file.path == path), None)
        if listed is None and (self.folder / path).is_symlink():
            listed = (self.folder / path).readlink().name
        kind = _DIGEST_KINDS.get(len(listed or ""))
        return f"{kind}:{listed}" if kind and listed and _HEX.fullmatch(listed) else None

    def identity(self, path: str) -> str:
        """All that decides the content of a file, as far as it is known without reading it."""
        if self.snapshot:
            return f"{self.snapshot.model}@{self.snapshot.commit}:{path}"
        with open_file(self.folder / path) as file:
            state = state_of(file)
        return f"{self.folder / path}:{state.size}:{state.changed}"

    def read(self, path: str, begin: int, size: int) -> bytes:
        """Reads a range of a file, fewer bytes where it ends before: here, or from the Hub. Raises SourceError."""
        if self.snapshot and not self.is_here(path):
            return hub.read_file_range(self.environ, self.snapshot, path, begin, size)
        try:
            with open_file(self.folder / path) as file:
                file.seek(begin)
                return file.read(size)
        except OSError as error:
            raise SourceError(f"{self.folder / path}: {error.strerror or error}") from None


def look_up(
    project: Project, environ: Mapping[str, str], name: str, source: CheckpointSource, commit: str | None
) -> SourceContents:
    """Looks up a source: of the Hub at ``commit`` where that is given, else at the revision that is wanted. Raises
    SourceError where it cannot be read."""
    if source.model:
        snapshot = hub.find_snapshot(environ, source.model, commit or source.revision)
        folder = hub_cache.folder(environ, source.model) / "snapshots" / snapshot.commit
        sizes = {file.path: file.size for file in snapshot.files} or _sizes(folder)
        return SourceContents(name, str(source), sizes, folder, snapshot, environ)
    folder = checkpoints_lock.expanded(project, environ, source.folder or "")
    return SourceContents(name, str(source), _sizes(folder), folder, None, environ)


def open_file(path: Path) -> IO[bytes]:
    """Opens a plain file to read, links followed. Raises OSError for anything else; it never waits, as opening a pipe
    would."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    file = os.fdopen(descriptor, "rb", buffering=0)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        file.close()
        raise OSError(f"{path} is no plain file")
    return file


def state_of(file: IO[bytes]) -> FileState:
    """The state of an open file."""
    status = os.fstat(file.fileno())
    return FileState(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def _sizes(folder: Path) -> dict[str, int]:
    """The sizes of the files of a folder. Links lead to files of the folder, or of a snapshot in the cache to those of
    its model. Raises SourceError for any other link: whoever made the folder chose a file of this machine by it."""
    real = folder.resolve()
    root = real.parent.parent if real.parent.name == "snapshots" else real
    try:
        entries = [entry for entry in os.scandir(folder) if entry.is_file()]
        for entry in entries:
            if entry.is_symlink() and not Path(os.path.realpath(entry.path)).is_relative_to(root):
                hint = "put the file itself there, or name its own folder in checkpoint.yaml"
                raise SourceError(f"{entry.path}: a link that leads out of its folder", hint=hint)
        return {entry.name: entry.stat().st_size for entry in entries}
    except OSError as error:
        hint = "`folder` of this source in checkpoint.yaml says where it is"
        raise SourceError(f"{folder}: {error.strerror}", hint=hint) from None


# The headers of a source's files of weights, read and held against its index.

_SUFFIX = ".safetensors"
# Most headers fit in, so that the Hub is asked once for each file.
_FIRST = 1 << 19
_WORKERS = 8
_MOST_NAMES = 5
_MOST_TENSORS = 1_000_000
# The files are read side by side, and taken apart one after the other: that takes many times their bytes of memory.
_PARSING = Lock()


def read_source_listing(source: SourceContents, further: Iterable[str]) -> SourceListing:
    """Reads the headers of the files that a source's index lists (of all its files of weights where it has none), and
    of ``further`` files, as far as they are there.

    Raises SourceError for a file that is damaged, for a tensor that two files have, and for an index that names what
    is not there.
    """
    from concurrent.futures import ThreadPoolExecutor

    usable = {path for path in source.sizes if is_file_name(path)}
    weights = sorted(path for path in usable if path.endswith(_SUFFIX))
    in_index = _index(source)
    listed = sorted(set(in_index.values())) if in_index is not None else weights
    if missing := [path for path in listed if path not in usable]:
        raise _bad(source, safetensors_files.NAME, f"it names files that are not there: {_listed(missing)}")
    if not listed:
        raise SourceError(f"{source.requested} has no safetensors files", hint="other formats are not read")
    wanted = sorted({*listed, *(path for path in further if path in usable)})
    headers: dict[str, Header] = {}
    pool = ThreadPoolExecutor(_WORKERS)
    try:
        tensors = 0
        for path, read_one in zip(wanted, pool.map(lambda path: read_header(source, path), wanted), strict=True):
            headers[path] = read_one
            tensors += len(read_one.tensors)
            if tensors > _MOST_TENSORS:
                message = f"with those before it has {tensors:,} tensors, and at most {_MOST_TENSORS:,} are read"
                raise _bad(source, path, message)
    finally:  # after ^C nothing is waited for
        pool.shutdown(wait=False, cancel_futures=True)
    _require_agreement(source, headers, listed, in_index)
    others = {path: source.sizes[path] for path in sorted(usable.difference(weights))}
    return SourceListing(headers, tuple(listed), others)


def read_header(source: SourceContents, path: str) -> Header:
    """Reads the header of one file. Raises SourceError."""
    size = source.sizes[path]
    try:
        content = source.read(path, 0, min(size, _FIRST))
        count = safetensors_files.length(content[: safetensors_files.PREFIX], size)
        end = safetensors_files.PREFIX + count
        if len(content) < end:
            content += source.read(path, len(content), end - len(content))
        if len(content) < end:
            raise HeaderError("it ends before its header does: it was cut off")  # noqa: TRY301
        with _PARSING:
            return safetensors_files.parse_header(content[safetensors_files.PREFIX : end], size)
    except HeaderError as error:
        raise _bad(source, path, str(error)) from None


def _index(source: SourceContents) -> dict[str, str] | None:
    if safetensors_files.NAME not in source.sizes:
        return None
    if source.sizes[safetensors_files.NAME] > safetensors_files.LARGEST_INDEX:
        raise _bad(source, safetensors_files.NAME, f"it has more than {safetensors_files.LARGEST_INDEX:,} bytes")
    try:
        return safetensors_files.parse_index(source.read(safetensors_files.NAME, 0, safetensors_files.LARGEST_INDEX))
    except HeaderError as error:
        raise _bad(source, safetensors_files.NAME, str(error)) from None


def _require_agreement(
    source: SourceContents, headers: dict[str, Header], listed: list[str], in_index: dict[str, str] | None
) -> None:
    places: dict[str, str] = {}
    for path in listed:
        for tensor in headers[path].tensors:
            if tensor.name in places:
                raise _bad(source, path, f"`{tensor.name}` is in {places[tensor.name]} as well")
            places[tensor.name] = path
    missing = [f"{name} in {path}" for name, path in (in_index or {}).items() if places.get(name) != path]
    if missing:
        raise _bad(
            source, safetensors_files.NAME, f"it names {len(missing)} tensors that are not there: {_listed(missing)}"
        )


def _bad(source: SourceContents, path: str, message: str) -> SourceError:
    hint = "the source is damaged or not whole: fetch it again, or name another in checkpoint.yaml"
    return SourceError(f"{source.shown(path)}: {message}", hint=hint)


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"{', '.join(sorted(names)[:_MOST_NAMES])}{more}"


# The plan of one checkpoint: its sources looked up, their headers read, and the steps applied to them.


@dataclass(frozen=True)
class CheckpointPlan:
    """All that will be done. ``inputs`` is the digest over everything that decides the bytes of the result."""

    definition: CheckpointDefinition
    sources: Mapping[str, SourceContents]
    listings: Mapping[str, SourceListing]
    content: PlannedContent
    shards: tuple[PlannedShard, ...]
    index: bytes | None
    inputs: str

    @property
    def used(self) -> frozenset[SourceFile]:
        """The files of the sources that something is taken from."""
        of_weights = (file for shard in self.shards for file in shard.sources)
        return frozenset((*of_weights, *self.content.files.values()))

    @property
    def missing(self) -> tuple[SourceFile, ...]:
        """The files that have to be fetched first."""
        return tuple(sorted(file for file in self.used if not self.sources[file.source].is_here(file.path)))

    def size_of(self, file: SourceFile) -> int:
        """The size of a file of a source, in bytes."""
        return self.sources[file.source].sizes[file.path]

    @property
    def fetched(self) -> int:
        """The bytes that have to be fetched."""
        return sum(map(self.size_of, self.missing))

    @property
    def read(self) -> int:
        """The bytes that are read of sources."""
        return sum(shard.read for shard in self.shards) + sum(map(self.size_of, self.content.files.values()))

    @property
    def size(self) -> int:
        """The bytes of the result."""
        others = sum(map(self.size_of, self.content.files.values())) + len(self.index or b"")
        return sum(shard.size for shard in self.shards) + others


def make_checkpoint_plan(
    project: Project,
    environ: Mapping[str, str],
    definition: CheckpointDefinition,
    records: CheckpointRecords,
    report: Report,
    *,
    update: bool = False,
) -> CheckpointPlan:
    """Plans a checkpoint: reads the headers of its sources, of the Hub's by ranges, and nothing else.

    A source of the Hub is taken at the commit that is recorded, as long as the definition asks for the same, unless
    ``update``. Raises SourceError for a source that cannot be read or is damaged, FileProblemsError with the place of a
    step that cannot be done.
    """
    current = records.find(definition.name, records.current(definition.name) or "")
    pinned = {
        name: source.commit
        for name, source in (current.sources if current and not update else {}).items()
        if name in definition.sources and source.requested == str(definition.sources[name])
    }
    sources, listings = {}, {}
    for name, source in definition.sources.items():
        report(Message(f"reading the headers of {source}"))
        sources[name] = look_up(project, environ, name, source, pinned.get(name))
        added = [step.file for step in definition.steps if isinstance(step, AddStep) and step.source == name]
        listings[name] = read_source_listing(sources[name], added)
    try:
        content = tensors.apply_step(definition.steps, listings)
    except tensors.StepError as error:
        raise FileProblemsError((Problem(definition.location("steps", error.number), error.message),)) from None
    try:
        shards = layout.shards(content, definition.shard_size)
        index = layout.index_of(shards, content)
    except HeaderError as error:
        raise FileProblemsError((Problem(definition.location("output", "shard_size"), str(error)),)) from None
    _require_files(definition, content, shards)
    files = {*content.files.values(), *(file for shard in shards for file in shard.sources)}
    identities = {file: sources[file.source].identity(file.path) for file in files}
    inputs = layout.digest(shards, content, identities, _card_inputs(definition))
    return CheckpointPlan(definition, sources, listings, content, shards, index, inputs)


def steps_digest(definition: CheckpointDefinition) -> str:
    """The digest over the steps of a definition."""
    content = [[type(step).__name__, vars(step)] for step in definition.steps]
    text = json.dumps(content, sort_keys=True, default=vars)
    return hashlib.sha256(text.encode()).hexdigest()


def recorded_sources(plan: CheckpointPlan) -> dict[str, RecordedSource]:
    """The sources of a plan, with the files that it uses."""
    recorded = {}
    for name, source in plan.sources.items():
        headers = plan.listings[name].headers
        files = {
            file.path: RecordedFile(
                source.sizes[file.path],
                source.digest(file.path),
                f"sha256:{headers[file.path].digest}" if file.path in headers else None,
            )
            for file in sorted(plan.used)
            if file.source == name
        }
        recorded[name] = RecordedSource(source.requested, source.snapshot.commit if source.snapshot else None, files)
    return recorded


def _card_inputs(definition: CheckpointDefinition) -> str:
    parts = [definition.name, definition.description, definition.model, definition.license, list(definition.mods)]
    return json.dumps([*parts, steps_digest(definition)])


def _require_files(definition: CheckpointDefinition, content: PlannedContent, shards: tuple[PlannedShard, ...]) -> None:
    """Raises FileProblemsError for a file that `verify` names and that the result does not have."""
    there = {*content.files, *(shard.name for shard in shards), INDEX, layout.README}
    if missing := sorted(content.digests.keys() - there):
        message = f"the result has no file {', '.join(missing)}; it has {', '.join(sorted(there))}"
        raise FileProblemsError((Problem(definition.location("steps"), message),))
