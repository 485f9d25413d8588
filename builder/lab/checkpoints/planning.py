"""Plans a checkpoint from the headers of its sources alone. The headers must agree with the source's index."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from threading import Lock
from typing import IO, TYPE_CHECKING

from builder.base import hub_cache, processes
from builder.base.errors import FileProblemsError, Problem, SourceError
from builder.base.events import Message, Report
from builder.base.values import dataclass
from builder.definitions.checkpoint_definition import AddStep, CheckpointDefinition, CheckpointSource
from builder.lab.checkpoints import tensors
from builder.lab.checkpoints.tensors import SourceListing, listed
from builder.lock import checkpoints_lock
from builder.lock.checkpoints_lock import RecordedFile, RecordedSource, is_file_name
from builder.sources import hub, safetensors_files
from builder.sources.safetensors_files import LARGEST_INDEX, PREFIX, Header, HeaderError
from builder.sources.safetensors_files import NAME as INDEX

if TYPE_CHECKING:
    from builder.base.project import Project

README = "README.md"
"""The model card of the result."""
FileState = tuple[int, int, int, int]
"""The values that change when a file is written: its device, inode, size and modification time."""

_FIRST = 1 << 19  # most headers fit, so the Hub gets one request per file
_WORKERS = 8
_MOST_TENSORS = 1_000_000
# The files are read in parallel, but parsed one after the other: parsing needs many times their size in memory.
_PARSING = Lock()


@dataclass(frozen=True)
class CheckpointPlan:
    """The plan of a checkpoint. ``used`` are the source files that the result is made from. ``inputs`` is the digest of
    everything that decides the bytes of the result."""

    definition: CheckpointDefinition
    sources: Mapping[str, SourceContents]
    listings: Mapping[str, SourceListing]
    content: tensors.PlannedContent
    shards: tuple[tensors.PlannedShard, ...]
    index: bytes | None
    used: tuple[tensors.SourceFile, ...]
    inputs: str

    @property
    def missing(self) -> tuple[tensors.SourceFile, ...]:
        return tuple(file for file in self.used if not self.sources[file.source].is_here(file.path))

    def size_of(self, file: tensors.SourceFile) -> int:
        return self.sources[file.source].sizes[file.path]

    @property
    def fetched(self) -> int:
        """The bytes to fetch."""
        return sum(map(self.size_of, self.missing))

    @property
    def read(self) -> int:
        """The bytes to read."""
        return sum(shard.copied for shard in self.shards) + sum(map(self.size_of, self.content.files.values()))

    @property
    def size(self) -> int:
        """The size of the result in bytes."""
        others = sum(map(self.size_of, self.content.files.values())) + len(self.index or b"")
        return sum(shard.size for shard in self.shards) + others


def make_checkpoint_plan(
    project: Project,
    environ: Mapping[str, str],
    definition: CheckpointDefinition,
    records: checkpoints_lock.CheckpointRecords,
    report: Report,
    *,
    update: bool = False,
) -> CheckpointPlan:
    """Plans a checkpoint from the headers of its sources; headers of Hub models are read as byte ranges. A Hub model
    keeps its recorded commit as long as the definition requests the same revision, unless ``update``. Raises
    SourceError if a source cannot be read or is damaged, and FileProblemsError with the place of an impossible step."""

    def problem(message: str, *place: str | int) -> FileProblemsError:
        return FileProblemsError((Problem(definition.location(*place), message),))

    current = records.find(definition.name, records.current(definition.name) or "")
    recorded = current.sources if current and not update else {}
    sources, listings = {}, {}
    for name, source in definition.sources.items():
        report(Message(f"reading the headers of {source}"))
        is_same = name in recorded and recorded[name].requested == str(source)
        sources[name] = look_up(project, environ, source, recorded[name].commit if is_same else None)
        added = [step.file for step in definition.steps if isinstance(step, AddStep) and step.source == name]
        listings[name] = read_source_listing(sources[name], added)
    try:
        content = tensors.apply_step(definition.steps, listings)
        shards = tensors.planned_shards(content, definition.shard_size)
        index = tensors.index_of(shards, content)
    except tensors.StepError as error:
        raise problem(error.message, "steps", error.number) from None
    except HeaderError as error:
        raise problem(str(error), "output", "shard_size") from None
    there = {*content.files, *(shard.name for shard in shards), INDEX, README}
    if missing := sorted(content.digests.keys() - there):
        raise problem(f"the result has no file {', '.join(missing)}, only {', '.join(sorted(there))}", "steps")
    used = sorted({*content.files.values(), *(file for shard in shards for file in shard.sources)})
    identities = {file: sources[file.source].identity(file.path) for file in used}
    card = [definition.name, definition.description, definition.model, definition.license, list(definition.mods)]
    text = json.dumps([*card, steps_digest(definition)])
    inputs = tensors.inputs_digest(shards, content, identities, text)
    return CheckpointPlan(definition, sources, listings, content, shards, index, tuple(used), inputs)


def steps_digest(definition: CheckpointDefinition) -> str:
    content = [[type(step).__name__, vars(step)] for step in definition.steps]
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=vars).encode()).hexdigest()


def recorded_sources(plan: CheckpointPlan) -> dict[str, RecordedSource]:
    files: dict[str, dict[str, RecordedFile]] = {name: {} for name in plan.sources}
    for file in plan.used:
        source, header = plan.sources[file.source], plan.listings[file.source].headers.get(file.path)
        digest = f"sha256:{header.digest}" if header else None
        files[file.source][file.path] = RecordedFile(source.sizes[file.path], source.digest(file.path), digest)
    return {name: RecordedSource(each.requested, files[name], each.commit) for name, each in plan.sources.items()}


# The files of a source: a folder, or a model of the Hub at one commit, with or without files in the cache.


@dataclass(frozen=True)
class SourceContents:
    """A source, ``requested`` as in the definition, and the size of each file. ``folder`` contains the files on this
    machine. ``snapshot`` is set for a model of the Hub."""

    requested: str
    sizes: Mapping[str, int]
    folder: Path
    snapshot: hub.Snapshot | None
    environ: Mapping[str, str]

    @property
    def commit(self) -> str | None:
        return self.snapshot.commit if self.snapshot else None

    def is_here(self, path: str) -> bool:
        return self.snapshot is None or (self.folder / path).exists()

    def shown(self, path: str) -> str:
        return f"{self.snapshot.model}: {path}" if self.snapshot else str(self.folder / path)

    def digest(self, path: str) -> str | None:
        """The digest of a file's content, from the Hub or from the cache; None if neither has one."""
        if self.snapshot is None:
            return None
        blob = next((file.blob for file in self.snapshot.files if file.path == path), None)
        if blob is None and (self.folder / path).is_symlink():
            blob = (self.folder / path).readlink().name
        if not re.fullmatch("[0-9a-f]{40}|[0-9a-f]{64}", blob or ""):
            return None
        return f"sha256:{blob}" if len(blob or "") == hub.SHA256_DIGITS else f"git:{blob}"

    def identity(self, path: str) -> str:
        """The identity of a file's content, found without reading the file."""
        if self.snapshot:
            return f"{self.snapshot.model}@{self.snapshot.commit}:{path}"
        with open_file(self.folder / path) as file:
            _, _, size, changed = state_of(file)
        return f"{self.folder / path}:{size}:{changed}"

    def read(self, path: str, begin: int, size: int) -> bytes:
        """Reads a range of a file, here or on the Hub; shorter if the file ends early. Raises SourceError."""
        if self.snapshot and not self.is_here(path):
            return hub.read_file_range(self.environ, self.snapshot, path, begin, size)
        try:
            with open_file(self.folder / path) as file:
                file.seek(begin)
                return file.read(size)
        except OSError as error:
            raise SourceError(f"{self.folder / path} cannot be read: {error.strerror or error}") from None


def look_up(
    project: Project, environ: Mapping[str, str], source: CheckpointSource, commit: str | None
) -> SourceContents:
    """Looks up a source; a Hub model at ``commit``, or at the requested revision. Raises SourceError."""
    if source.model:
        snapshot = hub.find_snapshot(environ, source.model, commit or source.revision)
        folder = hub_cache.folder(environ, source.model) / "snapshots" / snapshot.commit
        sizes = {file.path: file.size for file in snapshot.files} or _sizes(folder)
        return SourceContents(str(source), sizes, folder, snapshot, environ)
    folder = checkpoints_lock.expanded(project, environ, source.folder or "")
    return SourceContents(str(source), _sizes(folder), folder, None, environ)


def open_file(path: Path) -> IO[bytes]:
    """Opens a regular file to read; links are followed. Raises OSError for anything else, and never waits."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    file = os.fdopen(descriptor, "rb", buffering=0)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        file.close()
        raise OSError("it is not a regular file")
    return file


def state_of(file: IO[bytes]) -> FileState:
    status = os.fstat(file.fileno())
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _sizes(folder: Path) -> dict[str, int]:
    """The sizes of the files in a folder. A link must lead into the folder; in a snapshot of the cache, it must lead
    into the model's folder. Raises SourceError for any other link, which could select any file of this machine."""
    real = folder.resolve()
    root = real.parent.parent if real.parent.name == "snapshots" else real
    try:
        entries = [entry for entry in os.scandir(folder) if entry.is_file()]
        for entry in entries:
            if entry.is_symlink() and not Path(os.path.realpath(entry.path)).is_relative_to(root):
                hint = "put the file itself there, or name the folder that contains it in checkpoint.yaml"
                raise SourceError(f"{entry.path} is a link that points outside its folder", hint=hint)
        return {entry.name: entry.stat().st_size for entry in entries}
    except OSError as error:
        hint = "name its folder with `folder` of this source in checkpoint.yaml"
        raise SourceError(f"{folder} cannot be read: {error.strerror}", hint=hint) from None


# The headers of a source's files of weights.


def read_source_listing(source: SourceContents, further: Iterable[str]) -> SourceListing:
    """Reads the headers of the files in a source's index (without an index, of all its weights), and of ``further``
    files. Raises SourceError for a damaged file, for a tensor in two files, and if the index names a missing file or
    tensor."""
    usable = {path for path in source.sizes if is_file_name(path)}
    weights = sorted(path for path in usable if path.endswith(".safetensors"))
    index = {}
    if INDEX in source.sizes:
        if source.sizes[INDEX] > LARGEST_INDEX:
            raise _damaged(source, INDEX, f"it has more than {LARGEST_INDEX:,} bytes")
        try:
            index = safetensors_files.parse_index(source.read(INDEX, 0, LARGEST_INDEX))
        except HeaderError as error:
            raise _damaged(source, INDEX, error) from None
        if missing := sorted(set(index.values()) - usable):
            raise _damaged(source, INDEX, f"it names files that do not exist: {listed(missing)}")
    in_index = sorted(set(index.values())) or weights
    if not in_index:
        raise SourceError(f"{source.requested} has no safetensors files", hint="no other format is supported")
    headers = _read_headers(source, sorted({*in_index, *usable.intersection(further)}))
    places: dict[str, str] = {}
    for path in in_index:
        for tensor in headers[path].tensors:
            if (other := places.setdefault(tensor.name, path)) != path:
                raise _damaged(source, path, f"`{tensor.name}` is also in {other}")
    if missing := sorted(f"{name} in {path}" for name, path in index.items() if places.get(name) != path):
        raise _damaged(source, INDEX, f"it names tensors that do not exist: {listed(missing)}")
    others = {path: source.sizes[path] for path in sorted(usable.difference(weights))}
    return SourceListing(headers, tuple(in_index), others)


def _read_headers(source: SourceContents, paths: list[str]) -> dict[str, Header]:
    headers: dict[str, Header] = {}
    read = processes.in_parallel(lambda path: _read_header(source, path), paths, _WORKERS)
    for path, header in zip(paths, read, strict=True):
        headers[path] = header
        if (count := sum(len(each.tensors) for each in headers.values())) > _MOST_TENSORS:
            message = f"with the earlier files, there are {count:,} tensors, but at most {_MOST_TENSORS:,} are read"
            raise _damaged(source, path, message)
    return headers


def _read_header(source: SourceContents, path: str) -> Header:
    size = source.sizes[path]
    try:
        content = source.read(path, 0, min(size, _FIRST))
        end = PREFIX + safetensors_files.length(content[:PREFIX], size)
        if len(content) < end:
            content += source.read(path, len(content), end - len(content))
        if len(content) < end:
            raise _damaged(source, path, "it ends within its header: the file was truncated")
        with _PARSING:
            return safetensors_files.parse_header(content[PREFIX:end], size)
    except HeaderError as error:
        raise _damaged(source, path, error) from None


def _damaged(source: SourceContents, path: str, problem: object) -> SourceError:
    hint = "the source is damaged or incomplete: fetch it again, or name another source in checkpoint.yaml"
    return SourceError(f"{source.shown(path)}: {problem}", hint=hint)
