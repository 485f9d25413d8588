"""Makes a checkpoint from its plan, file by file.

An interrupted build continues with the unfinished files. One rename at the end makes the result visible.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, TypeAlias

from builder.base import files, records
from builder.base.errors import ConflictError, SourceError
from builder.base.events import Message, Report, TransferProgress
from builder.base.files import locked, make_folder, naming, put_folder_in_place, sync_folder, write_atomically
from builder.base.values import dataclass, replace
from builder.base.words import sha256_of
from builder.definitions import checkpoint_definition
from builder.lab.checkpoints import planning
from builder.lock import checkpoints_lock
from builder.lock.checkpoints_lock import UNFINISHED, CheckpointRevision, RecordedFile, ResultPlace, revision_of
from builder.sources import hub, safetensors_files

if TYPE_CHECKING:
    from builder.base.project import Project
    from builder.lab.checkpoints.planning import CheckpointPlan, FileState
    from builder.lab.checkpoints.tensors import PlannedShard, SourceFile

LOCK = ".building"
"""The lock file in the folder of the results. A build holds it."""

DigestText: TypeAlias = Annotated[str, "sha256:[0-9a-f]{64}"]
# The maximum size in bytes of a file without weights: tokenizers have some ten million.
_LARGEST = 256 << 20
# Also with fewer processors: some threads wait for the disk while others compute digests.
_WORKERS = 4
# Small enough to stay in the processor's cache: the bytes are read once, for the digest and for the copy. After
# `copy_file_range`, they would be read again for the digest.
_BLOCK = 1 << 20
# The disk starts to write early, not when the file is complete: it works while the rest is digested.
_STRETCH = 8 << 20
BYTES_PER_SECOND = 500_000_000
"""The usual speed of a build: a plain NVMe disk reads and writes at this speed at the same time."""


def make_checkpoint(
    plan: CheckpointPlan, place: ResultPlace, recorded: Mapping[str, CheckpointRevision], report: Report
) -> tuple[str, CheckpointRevision]:
    """Makes the checkpoint, puts it in place, and returns its revision and its record without a sequence. Finished
    files remain for the next try. Raises SourceError if a source changes during the build; OSError; ConflictError if a
    digest differs from the one that the definition requires, or from the one that is ``recorded`` for the same
    inputs."""
    make_folder(place.root)
    work = _work_folder(plan, place)
    on_wait = Message(f"waiting for another process that makes {plan.definition.name}")
    with locked(place.root / LOCK, on_wait=lambda: report(on_wait)):
        journal = BuildJournal(work)
        if work.is_symlink():  # the link may have come with the project
            work.unlink()
        work.mkdir(exist_ok=True)
        # A file counts as finished if it is a file of the plan that still exists with its recorded size.
        small_files = _small_files(plan)
        names = {*small_files, *(shard.name for shard in plan.shards)}
        made = place.folder(revision_of(journal.finished))
        for name, file in list(journal.finished.items()):
            paths = (work / name, made / name, _blob(place, file)) if name in names else ()
            if not any(path.is_file() and path.stat().st_size == file.size for path in paths):
                del journal.finished[name]
        for name, content in small_files.items():
            file = RecordedFile(len(content), sha256_of(content))
            if journal.finished.get(name) != file:
                with naming(work / name):
                    write_atomically(work / name, content)
                journal.add(name, file)
        _write_weights(plan, work, journal, report)
        finished = dict(sorted(journal.finished.items()))
        _require_digests(plan, finished, recorded)
        revision = revision_of(finished)
        _put_in_place(work, place, revision, finished)
        return revision, CheckpointRevision(
            sequence=0,
            model=plan.definition.model,
            inputs=plan.inputs,
            steps=planning.steps_digest(plan.definition),
            tensors=len(plan.content.tensors),
            sources=planning.recorded_sources(plan),
            files=finished,
            mods=plan.definition.mods,
            folder=plan.definition.folder,
        )


def finished_size(plan: CheckpointPlan, place: ResultPlace) -> int:
    """The size in bytes of the files that an earlier try finished."""
    return sum(file.size for file in BuildJournal(_work_folder(plan, place)).finished.values())


def forget_unfinished(place: ResultPlace, inputs: str = "") -> None:
    """Removes the leftovers of builds with a recorded result: all, or only the leftovers for these ``inputs``."""
    pattern = f"{UNFINISHED}{inputs[:16]}*"
    if any(place.root.glob(pattern)):
        with locked(place.root / LOCK):
            remove_leftovers(place.root.glob(pattern))


def _work_folder(plan: CheckpointPlan, place: ResultPlace) -> Path:
    return place.root / f"{UNFINISHED}{plan.inputs[:16]}"


class BuildJournal:
    """The finished files of a build, by name. They are recorded in a file beside the folder ``work``, each after it is
    on the disk. Invalid content of the record is ignored."""

    def __init__(self, work: Path) -> None:
        self._path = work.with_name(f"{work.name}.journal")
        self._lock = threading.Lock()
        self.finished: dict[str, RecordedFile] = {}
        with suppress(OSError, records.RecordError):
            kept = records.read_file(self._path, dict[str, tuple[int, DigestText, str | None]])
            self.finished = {name: RecordedFile(*parts) for name, parts in kept.items()}

    def add(self, name: str, file: RecordedFile) -> None:
        with self._lock:
            finished = {**self.finished, name: file}
            kept = {key: (each.size, each.digest, each.header) for key, each in finished.items()}
            write_atomically(self._path, records.text_of(kept, {}).encode())
            self.finished = finished


def _require_digests(
    plan: CheckpointPlan, made: Mapping[str, RecordedFile], recorded: Mapping[str, CheckpointRevision]
) -> None:
    """Raises ConflictError for digests that differ from `verify` of the definition, or from the record of the same
    inputs."""
    wrong = [
        f"SHA-256 of {name} is {(made[name].digest or '').removeprefix('sha256:')}, not {digest}"
        for name, digest in plan.content.digests.items()
        if made[name].digest != f"sha256:{digest}"
    ]
    if wrong:
        message = f"{plan.definition.file}: the files differ from what `verify` requires: {'; '.join(wrong)}"
        raise ConflictError(message, hint="the files stay until a build succeeds: correct `verify`, or the sources")
    for before in recorded.values():
        others = sorted(name for name in made if made[name].digest != before.files.get(name, made[name]).digest)
        if before.inputs == plan.inputs and others:
            message = f"checkpoints.lock records different content for the same inputs: {', '.join(others[:5])} differ"
            hint = "a disk, a source or the record is damaged; to compare: `builder checkpoints verify --full`"
            raise ConflictError(message, hint=hint)


# Files without weights: copies, JSON files with their changes, the index, the model card.


def _small_files(plan: CheckpointPlan) -> dict[str, bytes]:
    """The files by name. Raises SourceError if a file cannot be read, or must be changed and is not JSON."""
    made: dict[str, bytes] = {}
    for name, file in plan.content.files.items():
        source = plan.sources[file.source]
        if plan.size_of(file) > _LARGEST:
            raise SourceError(f"{source.shown(file.path)} has more than {_LARGEST:,} bytes: exclude it with `files`")
        made[name] = source.read(file.path, 0, _LARGEST)
        if patches := plan.content.patches.get(name):
            try:
                data = json.loads(made[name].decode())
            except (ValueError, RecursionError):
                raise SourceError(
                    f"{source.shown(file.path)} is not JSON, so a `config` step cannot change it"
                ) from None
            for patch in patches:
                data = _merged(data, patch)
            made[name] = (json.dumps(data, indent=2, ensure_ascii=False) + "\n").encode()
    if plan.index is not None:
        made[safetensors_files.NAME] = plan.index
    made[planning.README] = _card(plan).encode()
    return made


def _merged(target: Any, patch: Any) -> Any:
    """``target`` changed by a JSON merge patch (RFC 7396): null removes a key."""
    if not isinstance(patch, Mapping):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = _merged(result.get(key), value)
    return result


def _card(plan: CheckpointPlan) -> str:
    """The model card. It is the same on all machines."""
    definition = plan.definition
    models = [source.snapshot.model for source in plan.sources.values() if source.snapshot]
    lines = [
        "---",
        # JSON is valid YAML, with any names.
        f"base_model: {json.dumps(models)}",
        f"base_model_relation: {json.dumps('merge' if len(models) > 1 else 'quantized')}",
        *([f"license: {json.dumps(definition.license)}"] if definition.license else []),
        *("---", "", f"# {definition.name}", "", definition.description, ""),
        *(f"A form of {definition.model}, made by recorded steps from", ""),
    ]
    for name, source in plan.sources.items():
        commit = f", commit `{source.commit}`" if source.commit else ""
        lines.append(f"- `{name}`: {source.requested}{commit}")
    lines += ["", *(f"{number}. {effect.text}" for number, effect in enumerate(plan.content.effects, 1))]
    if definition.mods:
        these = "these mods" if len(definition.mods) > 1 else "this mod"
        lines += ["", f"An image needs {these}: {', '.join(f'`{mod}`' for mod in definition.mods)}."]
    lines += ["", "This card makes no claim about quality. Measurements are in the project that made the weights.", ""]
    return "\n".join(lines)


# The files of weights: several at a time, each recorded in the journal when it is complete.


def _write_weights(plan: CheckpointPlan, work: Path, journal: BuildJournal, report: Report) -> None:
    """Writes the files that are missing in the journal into the folder ``work``. Raises the errors of `write_shard`."""
    from multiprocessing.pool import ThreadPool

    todo = [shard for shard in plan.shards if shard.name not in journal.finished]
    sources = {}
    for file in {file for shard in todo for file in shard.sources}:
        path = plan.sources[file.source].folder / file.path
        with planning.open_file(path) as opened:
            sources[file] = path, planning.state_of(opened)
            if opened.seek(0, os.SEEK_END) != plan.size_of(file):
                raise _changed(path, "since its header was read")
    total = sum(shard.size for shard in plan.shards)
    progress = MovedBytes(report, plan.definition.name, total)
    progress.add(total - sum(shard.size for shard in todo))
    stopped = threading.Event()
    count_bytes = hub.until_stopped(stopped, progress.add)

    def write_one(shard: PlannedShard) -> None:
        part = work / f"{shard.name}.part"
        file = write_shard(shard, part, sources, count_bytes)
        part.replace(work / shard.name)
        sync_folder(work)
        journal.add(shard.name, file)

    # These threads do not keep the process alive when the user stops it. The largest files come first, so that no large
    # file is written alone at the end.
    with ThreadPool(_WORKERS) as pool:
        try:
            for _ in pool.imap_unordered(write_one, sorted(todo, key=lambda shard: -shard.size)):
                pass
        finally:
            stopped.set()
            pool.close()
            pool.join()


def write_shard(
    shard: PlannedShard,
    target: Path,
    sources: Mapping[SourceFile, tuple[Path, FileState]],
    count_bytes: Callable[[int], None],
) -> RecordedFile:
    """Writes a file of weights from ``sources``, and returns its size and digests when it is on the disk. Raises
    SourceError if a source changed while it was read, and OSError. An error from ``count_bytes`` ends the work."""
    digest = hashlib.sha256()
    counted = at = 0

    def count() -> None:
        with suppress(OSError):
            # Linux starts to write the pages that are no longer needed. The call does not wait for them.
            os.posix_fadvise(out.fileno(), counted, at - counted, os.POSIX_FADV_DONTNEED)
        count_bytes(at - counted)

    with ExitStack() as stack:
        opened = {file: stack.enter_context(planning.open_file(sources[file][0])) for file in shard.sources}
        target.unlink(missing_ok=True)
        with naming(target), target.open("xb", buffering=0) as out:
            for content in _content(shard, opened):
                digest.update(content)
                rest = memoryview(content)
                while rest:
                    rest = rest[out.write(rest) :]
                at += len(content)
                if at - counted >= _STRETCH:
                    count()
                    counted = at
            os.fsync(out.fileno())
            count()
        for file, (path, state) in sources.items():
            if file in opened and planning.state_of(opened[file]) != state:
                raise _changed(path, "while it was read")
    header = hashlib.sha256(shard.beginning[safetensors_files.PREFIX :]).hexdigest()
    return RecordedFile(shard.size, f"sha256:{digest.hexdigest()}", f"sha256:{header}")


def _content(shard: PlannedShard, sources: Mapping[SourceFile, IO[bytes]]) -> Iterator[bytes | memoryview]:
    """Yields the bytes of a file of weights in blocks. A block is valid until the next one."""
    yield shard.beginning
    block = memoryview(bytearray(_BLOCK))
    for piece in shard.pieces:
        end = piece.begin + piece.size
        for at in range(piece.begin, end, _BLOCK):
            part = block[: end - at]
            _read_into(part, sources[piece.file], at)
            yield part


def _read_into(part: memoryview, source: IO[bytes], begin: int) -> None:
    done = 0
    while done < len(part):
        count = os.preadv(source.fileno(), [part[done:]], begin + done)
        if not count:
            end = begin + len(part)
            raise SourceError(f"{source.name} ends before byte {end:,}: it was truncated while being read")
        done += count


def _changed(path: Path, when: str) -> SourceError:
    hint = "wait until the file is complete, then run the command again: results from other files are kept"
    return SourceError(f"{path} was changed {when}", hint=hint)


class MovedBytes:
    """The bytes that several threads have moved. Each change is reported."""

    def __init__(self, report: Report, what: str, total: int) -> None:
        self._report, self._what, self._total = report, what, total
        self._current = 0
        self._lock = threading.Lock()

    def add(self, size: int) -> None:
        with self._lock:
            self._current += size
            self._report(TransferProgress(self._what, self._current, self._total))


# A complete result gets its name: a folder, or a snapshot of the cache with links to its blobs.


def _put_in_place(work: Path, place: ResultPlace, revision: str, made: Mapping[str, RecordedFile]) -> None:
    """Gives the result its name by one rename. In an existing result, which may be damaged, files are replaced."""
    fresh = work
    if place.is_cache:
        fresh = work / ".snapshot"
        make_folder(place.root / "blobs")
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir()
        for name, file in made.items():
            blob = _blob(place, file)
            if (work / name).exists():
                (work / name).replace(blob)
            (fresh / name).symlink_to(f"../../blobs/{blob.name}")
        sync_folder(place.root / "blobs")
    else:
        for extra in work.iterdir():
            if extra.name not in made:
                extra.unlink()
    if place.has(revision):
        for path in fresh.iterdir():
            path.replace(place.folder(revision) / path.name)
        sync_folder(place.folder(revision))
    else:
        put_folder_in_place(fresh, place.folder(revision))
    if place.is_cache:
        make_folder(place.root / "refs")
        write_atomically(place.root / "refs" / "main", revision.encode())
    shutil.rmtree(work, ignore_errors=True)


def is_whole(folder: Path, recorded: Mapping[str, RecordedFile]) -> bool:
    """True if ``folder`` has every file with its size. The content is compared only by `verify`."""
    files = ((folder / name, file.size) for name, file in recorded.items())
    return all(path.is_file() and path.stat().st_size == size for path, size in files)


def _blob(place: ResultPlace, file: RecordedFile) -> Path:
    return place.root / "blobs" / (file.digest or "").removeprefix("sha256:")


def fetch_source(plan: CheckpointPlan, report: Report) -> None:
    """Fetches the missing files of the sources into the Hugging Face cache. Raises SourceError."""
    for name, source in plan.sources.items():
        missing = {file.path for file in plan.missing if file.source == name}
        if missing and source.snapshot:
            fetched = tuple(file for file in source.snapshot.files if file.path in missing)
            wanted = replace(source.snapshot, files=fetched)
            progress = MovedBytes(report, source.snapshot.model, wanted.size)
            progress.add(wanted.size - hub.missing_bytes(source.environ, wanted))
            hub.fetch_from_hub(source.environ, wanted, progress.add)


# Results that no pairing names any more, and leftovers of killed builds: `prune` removes these.


@dataclass(frozen=True)
class RemovableCheckpoint:
    """A revision, or an unfinished build (``revision`` is empty), with the paths to remove and their size in bytes."""

    name: str
    revision: str
    paths: tuple[Path, ...]
    size: int

    @property
    def title(self) -> str:
        return f"{self.name}@{self.revision[:12]}" if self.revision else f"the unfinished build of {self.name}"


def find_leftovers(
    project: Project, environ: Mapping[str, str], wanted: Collection[str]
) -> tuple[RemovableCheckpoint, ...]:
    """The recorded revisions on this machine that are neither the latest nor ``wanted`` (``NAME@REVISION``), and
    unfinished builds. Files that a remaining revision also uses are not included."""
    records = checkpoints_lock.read_checkpoints_lock(project)
    removable = []
    for name in sorted({*records.checkpoints, *checkpoint_definition.checkpoint_names(project)}):
        revisions, current = records.checkpoints.get(name, {}), records.current(name)
        for folder in dict.fromkeys((None, *(made.folder for made in revisions.values()))):
            place = checkpoints_lock.result_place(project, environ, name, folder)
            here = [revision for revision in revisions if place.has(revision)]
            going = [each for each in here if each != current and f"{name}@{each}" not in wanted]
            # Other projects' revisions are in the same folder, and the files that they link to stay.
            staying = [each for each in place.revisions() if each not in going]
            kept = {path.resolve() for each in staying for path in place.folder(each).iterdir()}
            for revision in going:
                paths = [place.folder(revision)]
                if place.is_cache:
                    linked = sorted({path.resolve() for path in paths[0].iterdir()} - kept)
                    paths += [blob for blob in linked if blob.parent == (place.root / "blobs").resolve()]
                kept.update(paths)
                removable.append(RemovableCheckpoint(name, revision, tuple(paths), sum(map(_size, paths))))
            unfinished = tuple(sorted(place.root.glob(f"{UNFINISHED}*")))
            if unfinished and not files.is_held(place.root / LOCK):
                removable.append(RemovableCheckpoint(name, "", unfinished, sum(map(_size, unfinished))))
    return tuple(removable)


def remove_leftovers(paths: Iterable[Path]) -> None:
    """Removes the paths in order. The named folder comes first, so that no reader mistakes a part for the whole."""
    for path in paths:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with suppress(OSError):
                path.unlink(missing_ok=True)


def _size(path: Path) -> int:
    if path.is_dir():
        return sum(_size(each) for each in path.iterdir() if not each.is_symlink())
    with suppress(OSError):
        return path.lstat().st_size
    return 0
