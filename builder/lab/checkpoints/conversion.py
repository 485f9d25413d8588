"""A checkpoint is made from its plan, one file at a time.

The journal and the speed of builds come first, then the conversion of tensors, digest checks, and naming.
The small files, the weights, the whole build, the download of sources, and leftovers follow.
An interrupted build continues with the unfinished files. One rename at the end makes the result visible.
The same source bytes give the same result on every machine.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import threading
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from math import prod
from typing import IO, TYPE_CHECKING, Any

from builder.base import files
from builder.base.errors import ConflictError, SourceError, UsageError
from builder.base.events import Message, TransferProgress
from builder.base.files import locked, make_folder, naming, sync_folder, write_atomically
from builder.definitions import checkpoint_definition
from builder.lab.checkpoints import layout, planning
from builder.lab.checkpoints.layout import ByteCopy
from builder.lock import checkpoints_lock
from builder.lock.checkpoints_lock import UNFINISHED, CheckpointRevision, RecordedFile, revision_of
from builder.sources import hub, safetensors_files
from builder.sources.safetensors_files import DTYPES

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator
    from pathlib import Path

    import numpy as np

    from builder.base.events import Report
    from builder.base.project import Project
    from builder.lab.checkpoints.layout import Conversion, PlannedShard
    from builder.lab.checkpoints.planning import CheckpointPlan, FileState, SourceContents
    from builder.lab.checkpoints.tensors import PlannedTensor, SourceFile
    from builder.lock.checkpoints_lock import ResultPlace


# The journal of a build that is under way: the files of the result that are whole, so that the next try goes on from
# there, whatever ended this one.

_DIGEST = re.compile("sha256:[0-9a-f]{64}")


class BuildJournal:
    """The finished files by name; each is a line of the file, on the disk before it counts."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self.finished = _read(path)

    def add(self, name: str, file: RecordedFile) -> None:
        """Writes down that a file is whole and on the disk."""
        line = json.dumps([name, file.size, file.digest, file.header]).encode() + b"\n"
        with self._lock:
            is_new = not self._path.exists()
            with self._path.open("ab", buffering=0) as journal:
                journal.write(line)
                os.fsync(journal.fileno())
            if is_new:
                sync_folder(self._path.parent)
            self.finished[name] = file


def _read(path: Path) -> dict[str, RecordedFile]:
    """The finished files; a last line that was cut off, as by a kill, counts for nothing, nor does any after it."""
    finished: dict[str, RecordedFile] = {}
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return {}
    for line in lines[:-1]:
        try:
            name, size, digest, header = json.loads(line)
            if not (isinstance(name, str) and type(size) is int and _DIGEST.fullmatch(digest)):
                break
        except (ValueError, TypeError):
            break
        finished[name] = RecordedFile(size, digest, header)
    return finished


# The speed of earlier builds on this machine, in bytes of the result a second: a memory that may be lost.

# Until a build was measured: what a plain NVMe disk does, read and written at once.
_UNMEASURED = 500_000_000.0
_LEAST_SECONDS = 1.0


def expected_speed(project: Project) -> float:
    """The bytes a second to reckon with."""
    try:
        speed = json.loads((project.state / "checkpoints.json").read_bytes())["bytes_per_second"]
    except (OSError, ValueError, KeyError, TypeError):
        return _UNMEASURED
    return float(speed) if isinstance(speed, int | float) and speed > 0 else _UNMEASURED


def record_speed(project: Project, size: int, seconds: float) -> None:
    """Remembers that ``size`` bytes were made; less than a second says nothing."""
    if seconds >= _LEAST_SECONDS and size > 0:
        content = json.dumps({"bytes_per_second": round(size / seconds)})
        files.write_state(project.state / "checkpoints.json", content.encode())
    else:
        files.remove_stale(project.state / "checkpoints.json")


# Tensors that are computed from others: casts, INT8 rows and FP8 blocks, a piece at a time. All of it is done one
# number at a time in float32 (float64 for F64), so that the same bytes give the same bytes on every machine. A value
# that the new dtype cannot hold is an error, and never an infinity or a NaN in the result. numpy and ml_dtypes do it;
# they are an extra of this package (`checkpoints`).

if TYPE_CHECKING:
    Numbers = np.ndarray[Any, np.dtype[Any]]
    ReadBytes = Callable[[int, int], bytes]
    """Takes the place of a byte in the stored tensor and a number of bytes, and gives just these."""

PIECE = 1 << 21
"""The numbers that are computed at once: some ten times as many bytes of memory, for each file that is written."""
LONGEST_ROW = 1 << 22

_PACKAGES = {"numpy": "numpy", "ml-dtypes": "ml_dtypes"}
"""The modules that compute, by the names of their packages."""
_LEAST_SCALE = 1e-12
_LARGEST_INT8 = 127.0
_LARGEST_FP8 = 448.0  # of float8_e4m3fn


class ConversionError(Exception):
    """Numbers that cannot be converted; the text says why, with the tensor's name."""


def require_packages(tensors: Iterable[PlannedTensor]) -> None:
    """Raises UsageError where one of the tensors is computed, and the packages for that are not installed."""
    import shlex
    import sys
    from importlib.util import find_spec

    if all(tensor.operation == "copy" for tensor in tensors):
        return
    if missing := [name for name, module in _PACKAGES.items() if find_spec(module) is None]:
        python = shlex.quote(sys.executable)
        raise UsageError(
            f"`cast` and `quantize` require the extra `builder[checkpoints]`; not installed: {', '.join(missing)}",
            hint=f"install them: {python} -m uv pip install --python {python} {' '.join(missing)}",
        )


def converted(tensor: PlannedTensor, read: ReadBytes) -> Iterator[bytes]:
    """Yields the bytes of a tensor that is computed, in their order. Raises ConversionError."""
    if tensor.operation == "cast":
        yield from _cast(tensor, read)
        return
    columns = tensor.stored_shape[-1]
    if columns > LONGEST_ROW:
        raise ConversionError(f"{tensor.name} has rows of {columns:,} numbers: at most {LONGEST_ROW:,} are quantized")
    if tensor.operation.startswith("int8"):
        yield from _int8_rows(tensor, read)
        return
    rows, height = tensor.stored_shape[-2], tensor.block[0]
    for matrix in range(prod(tensor.stored_shape[:-2])):
        for first in range(0, rows, height):
            yield from _fp8_blocks(tensor, read, matrix * rows + first, min(height, rows - first))


def _int8_rows(tensor: PlannedTensor, read: ReadBytes) -> Iterator[bytes]:
    import numpy as np

    for values in _rows(tensor, read, 0, prod(tensor.stored_shape[:-1])):
        scales = _stored_scales(tensor, np.abs(values).max(axis=1, keepdims=True), _LARGEST_INT8)
        if tensor.operation.endswith("-scale"):
            yield _encoded(tensor, scales, tensor.dtype).tobytes()
        else:
            scaled = np.rint(values / scales)
            yield np.clip(scaled, -_LARGEST_INT8, _LARGEST_INT8).astype(np.int8).tobytes()


def _cast(tensor: PlannedTensor, read: ReadBytes) -> Iterator[bytes]:
    width = DTYPES[tensor.stored_dtype]
    for begin in range(0, tensor.size, PIECE * width):
        values = _values(tensor, read(begin, min(PIECE * width, tensor.size - begin)))
        yield _encoded(tensor, values, tensor.dtype).tobytes()


def _fp8_blocks(tensor: PlannedTensor, read: ReadBytes, first: int, count: int) -> Iterator[bytes]:
    """Yields the bytes of one row of blocks, which has ``count`` rows of numbers from row ``first`` on; of scales the
    one row that stands for it."""
    import numpy as np

    columns, width = tensor.stored_shape[-1], tensor.block[1]
    blocks = -(-columns // width)
    largest = np.zeros(blocks, np.float32)
    for values in _rows(tensor, read, first, count):
        padded = np.zeros(blocks * width, np.float32)
        padded[:columns] = np.abs(values).max(axis=0)
        largest = np.maximum(largest, padded.reshape(blocks, width).max(axis=1))
    scales = _stored_scales(tensor, largest, _LARGEST_FP8)
    if tensor.operation.endswith("-scale"):
        yield _encoded(tensor, scales, tensor.dtype).tobytes()
        return
    divisors = np.repeat(scales, width)[:columns]
    for values in _rows(tensor, read, first, count):
        scaled = np.clip(values / divisors, -_LARGEST_FP8, _LARGEST_FP8)
        yield _encoded(tensor, scaled, "F8_E4M3").tobytes()


def _stored_scales(tensor: PlannedTensor, largest: Numbers, most: float) -> Numbers:
    """The scales for the largest numbers, so that these become ``most``; as they are stored, since these are what a
    reader multiplies with."""
    import numpy as np

    scales = np.maximum(largest / np.float32(most), np.float32(_LEAST_SCALE))
    return _encoded(tensor, scales, tensor.scale_dtype).astype(np.float32)


def _rows(tensor: PlannedTensor, read: ReadBytes, first: int, count: int) -> Iterator[Numbers]:
    """Yields ``count`` rows from ``first`` on as float32, as many at a time as one piece has."""
    columns = tensor.stored_shape[-1]
    size = columns * DTYPES[tensor.stored_dtype]
    step = max(1, PIECE // columns)
    for row in range(first, first + count, step):
        number = min(step, first + count - row)
        yield _values(tensor, read(row * size, number * size)).reshape(number, columns)


def _values(tensor: PlannedTensor, content: bytes) -> Numbers:
    import numpy as np

    stored = np.frombuffer(content, _dtype(tensor.stored_dtype))
    values = stored if tensor.stored_dtype == "F64" and tensor.operation == "cast" else stored.astype(np.float32)
    if not np.isfinite(values).all():
        raise ConversionError(f"{tensor.name} has an infinity or NaN in it, or a number too large for float32")
    return values


def _encoded(tensor: PlannedTensor, values: Numbers, dtype: str) -> Numbers:
    import numpy as np

    with np.errstate(over="ignore", under="ignore"):
        encoded = values.astype(_dtype(dtype))
    if not np.isfinite(encoded.astype(np.float64 if dtype == "F64" else np.float32)).all():
        raise ConversionError(f"{tensor.name} has numbers that {dtype} does not hold")
    return encoded


def _dtype(name: str) -> Any:
    import ml_dtypes
    import numpy as np

    return np.dtype(
        {
            "F64": np.float64,
            "F32": np.float32,
            "F16": np.float16,
            "BF16": ml_dtypes.bfloat16,
            "F8_E4M3": ml_dtypes.float8_e4m3fn,
            "F8_E5M2": ml_dtypes.float8_e5m2,
        }[name]
    )


# The digests of what was made, against those that a definition demands and those on record.


def require_demanded(plan: CheckpointPlan, files: Mapping[str, RecordedFile]) -> None:
    """Raises ConflictError for files that have other digests than `verify` of the definition demands."""
    wrong = [
        f"SHA-256 of {name} is {(files[name].digest or '').removeprefix('sha256:')}, and not {digest}"
        for name, digest in plan.content.digests.items()
        if files[name].digest != f"sha256:{digest}"
    ]
    if wrong:
        message = f"{plan.definition.file}: the files are not those that `verify` demands: {'; '.join(wrong)}"
        raise ConflictError(message, hint="the files stay until a build succeeds: correct `verify`, or the sources")


def require_recorded(
    plan: CheckpointPlan, files: Mapping[str, RecordedFile], recorded: Mapping[str, CheckpointRevision]
) -> None:
    """Raises ConflictError where the same inputs are recorded with other content."""
    for before in recorded.values():
        others = sorted(name for name in files if files[name].digest != before.files.get(name, files[name]).digest)
        if before.inputs == plan.inputs and others:
            raise ConflictError(
                f"checkpoints.lock records other content for the same inputs: {', '.join(others[:5])} differ",
                hint="a disk or a source is damaged, or the record is: `builder checkpoints verify --full` compares",
            )


# Giving a whole result its name, by one rename: a folder, or a snapshot of the cache with links to its blobs.


def put_in_place(work: Path, place: ResultPlace, revision: str, files: Mapping[str, RecordedFile]) -> None:
    """Gives the result its name by one rename; what is there already stays."""
    if place.is_cache:
        links = _link(work, place, files)
        _rename(links, place.folder(revision))
        make_folder(place.root / "refs")
        write_atomically(place.root / "refs" / "main", revision.encode())
        shutil.rmtree(work, ignore_errors=True)
    else:
        for extra in work.iterdir():
            if extra.name not in files:
                extra.unlink()
        _rename(work, place.folder(revision))


def blobs(place: ResultPlace, file: RecordedFile) -> tuple[Path, ...]:
    """The path of a file of a result in the cache; none in a plain folder."""
    digest = (file.digest or "").removeprefix("sha256:")
    return (place.root / "blobs" / digest,) if place.is_cache and digest else ()


def _link(work: Path, place: ResultPlace, files: Mapping[str, RecordedFile]) -> Path:
    """Moves the files to the cache's blobs; returns a folder with links to them, as a snapshot has them."""
    of_all, links = place.root / "blobs", work / ".snapshot"
    for folder in (of_all, place.root / "snapshots"):
        make_folder(folder)
    shutil.rmtree(links, ignore_errors=True)
    links.mkdir()
    for name, file in files.items():
        (blob,) = blobs(place, file)
        if (work / name).exists():
            (work / name).replace(blob)
        (links / name).symlink_to(f"../../blobs/{blob.name}")
    sync_folder(of_all)
    sync_folder(links)
    return links


def _rename(fresh: Path, target: Path) -> None:
    if target.is_dir():
        shutil.rmtree(fresh, ignore_errors=True)
        return
    fresh.rename(target)
    with suppress(OSError):
        sync_folder(target.parent)


# The files of a result that are no weights: taken over as they are, JSON files with their changes, the index, and the
# model card.

LARGEST = 256 << 20
"""The most bytes of such a file: tokenizers have some ten million."""


def contents(plan: CheckpointPlan) -> dict[str, bytes]:
    """The files by name. Raises SourceError for one that cannot be read, or is no JSON where it is changed."""
    made: dict[str, bytes] = {}
    for name, file in plan.content.files.items():
        source = plan.sources[file.source]
        if plan.size_of(file) > LARGEST:
            raise SourceError(f"{source.shown(file.path)} has more than {LARGEST:,} bytes: `files` leaves it out")
        text = source.read(file.path, 0, LARGEST)
        patches = plan.content.patches.get(name, ())
        made[name] = _patched(text, patches, source, file.path) if patches else text
    if plan.index is not None:
        made[safetensors_files.NAME] = plan.index
    made[layout.README] = _card(plan).encode()
    return made


def _patched(text: bytes, patches: tuple[Mapping[str, Any], ...], source: SourceContents, path: str) -> bytes:
    try:
        data = json.loads(text.decode())
    except (ValueError, RecursionError):
        raise SourceError(f"{source.shown(path)} is not JSON, and is to be changed") from None
    for patch in patches:
        data = merged(data, patch)
    return (json.dumps(data, indent=2, ensure_ascii=False) + "\n").encode()


def merged(target: Any, patch: Any) -> Any:
    """``target`` changed by a JSON merge patch (RFC 7396): null removes a key."""
    if not isinstance(patch, Mapping):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


def _card(plan: CheckpointPlan) -> str:
    """The model card: what it is, what it was made from and by which steps. It holds nothing that differs between two
    machines."""
    definition = plan.definition
    models = [source.snapshot.model for source in plan.sources.values() if source.snapshot]
    head = {
        "base_model": models,
        "base_model_relation": "merge" if len(models) > 1 else "quantized",
        **({"license": definition.license} if definition.license else {}),
    }
    sources = [
        f"- `{name}`: {source.requested}" + (f", commit `{source.snapshot.commit}`" if source.snapshot else "")
        for name, source in plan.sources.items()
    ]
    steps = [f"{number}. {effect.text}" for number, effect in enumerate(plan.content.effects, 1)]
    mods = ", ".join(f"`{mod}`" for mod in definition.mods)
    needs = ["", f"An image needs {'these mods' if len(definition.mods) > 1 else 'this mod'}: {mods}."] if mods else []
    return "\n".join(
        (
            "---",
            # JSON is YAML, whatever the names have in them.
            *(f"{key}: {json.dumps(value)}" for key, value in head.items()),
            "---",
            "",
            f"# {definition.name}",
            "",
            definition.description,
            "",
            f"A form of {definition.model}, made by recorded steps from",
            "",
            *sources,
            "",
            *steps,
            *needs,
            "",
            "Nothing is said here of its quality: what was measured is evidence, and kept beside the images.",
            "",
        )
    )


# The progress of bytes that are fetched or written.


class MovedBytes:
    """The bytes that several threads have moved, reported as they are counted."""

    def __init__(self, report: Report, what: str, total: int) -> None:
        self._report, self._what, self._total = report, what, total
        self._current = 0
        self._lock = threading.Lock()

    def add(self, size: int) -> None:
        """Counts bytes; a negative number takes some back."""
        with self._lock:
            self._current += size
            self._report(TransferProgress(self._what, self._current, self._total))


# Writing one file of weights: bytes that do not change are copied, the others are computed, and the digest is taken
# of all of them on their way.

if TYPE_CHECKING:
    CountBytes = Callable[[int], None]
    """Is called with the bytes written since the last call; what it raises ends the work."""

# Small enough to be in the processor's cache still when it is written: the bytes come from memory once, for the digest
# and for the copy. `copy_file_range` would leave them to be read again for the digest.
_BLOCK = 1 << 20
# The disk is given work from the beginning, and not when the file is complete: it writes while the rest is digested.
_STRETCH = 8 << 20


def write_shard(
    shard: PlannedShard,
    target: Path,
    paths: Mapping[SourceFile, Path],
    states: Mapping[SourceFile, FileState],
    count_bytes: CountBytes,
) -> RecordedFile:
    """Writes a file of weights from the files at ``paths``, and returns its size and digests when it is on the disk.

    Raises SourceError where a file is no longer in the state that ``states`` has, before or after it was read, and
    OSError, with the name of the file.
    """
    with ExitStack() as stack:
        files = {file: stack.enter_context(planning.open_file(paths[file])) for file in sorted(shard.sources)}
        _require_unchanged(files, paths, states)
        target.unlink(missing_ok=True)
        with naming(target), target.open("xb", buffering=0) as out:
            out.truncate(shard.size)
            writer = _Writer(out, count_bytes)
            writer.put(shard.beginning)
            for piece in shard.pieces:
                if isinstance(piece, ByteCopy):
                    writer.copy(files[piece.file], piece)
                else:
                    _convert(writer, files[piece.tensor.file], piece)
            writer.finish()
        _require_unchanged(files, paths, states)
    header = hashlib.sha256(shard.beginning[8:]).hexdigest()
    return RecordedFile(shard.size, f"sha256:{writer.digest.hexdigest()}", f"sha256:{header}")


class _Writer:
    """A file that is written from its beginning to its end, with the digest of what it has so far."""

    def __init__(self, out: IO[bytes], count_bytes: CountBytes) -> None:
        self.digest = hashlib.sha256()
        self._out = out
        self._at = 0
        self._counted = 0
        self._count_bytes = count_bytes
        self._buffer = memoryview(bytearray(_BLOCK))

    def put(self, content: bytes | memoryview) -> None:
        """Writes ``content``."""
        self.digest.update(content)
        rest = memoryview(content)
        while rest:
            written = os.pwrite(self._out.fileno(), rest, self._at)
            rest = rest[written:]
            self._advance(written)

    def copy(self, source: IO[bytes], piece: ByteCopy) -> None:
        """Copies bytes as they are. A hole in the source is one in the result."""
        at, end = piece.begin, piece.begin + piece.size
        while at < end:
            part = self._buffer[: min(_BLOCK, end - at)]
            if _is_hole(source, at, len(part)):
                self._skip(len(part))
            else:
                _read_into(source, at, part)
                self.put(part)
            at += len(part)

    def finish(self) -> None:
        """Returns when everything is on the disk."""
        os.fsync(self._out.fileno())
        self._count()

    def _skip(self, size: int) -> None:
        self.digest.update(bytes(size))
        self._advance(size)

    def _advance(self, size: int) -> None:
        self._at += size
        if self._at - self._counted >= _STRETCH:
            self._count()

    def _count(self) -> None:
        begin, size = self._counted, self._at - self._counted
        with suppress(OSError):
            # Linux begins to write what it is told to forget, and does not wait for the end of that.
            os.posix_fadvise(self._out.fileno(), begin, size, os.POSIX_FADV_DONTNEED)
        self._counted = self._at
        self._count_bytes(size)


def _convert(writer: _Writer, source: IO[bytes], piece: Conversion) -> None:
    tensor = piece.tensor

    def read(begin: int, size: int) -> bytes:
        content = bytearray(size)
        _read_into(source, tensor.begin + begin, memoryview(content))
        return bytes(content)

    try:
        for content in converted(tensor, read):
            writer.put(content)
    except ConversionError as error:
        raise SourceError(str(error), hint="`except` leaves a tensor as it is") from None


def _is_hole(source: IO[bytes], begin: int, size: int) -> bool:
    """True where a file that goes on for ``size`` bytes has no data in them; false also where nobody knows."""
    try:
        return os.lseek(source.fileno(), begin, os.SEEK_DATA) >= begin + size
    except OSError as error:
        return error.errno == errno.ENXIO and begin + size <= os.fstat(source.fileno()).st_size


def _read_into(file: IO[bytes], begin: int, part: memoryview) -> None:
    done = 0
    while done < len(part):
        count = os.preadv(file.fileno(), [part[done:]], begin + done)
        if not count:
            raise SourceError(f"{file.name} ends before byte {begin + len(part):,}: it was cut off while it was read")
        done += count


def _require_unchanged(
    files: Mapping[SourceFile, IO[bytes]], paths: Mapping[SourceFile, Path], states: Mapping[SourceFile, FileState]
) -> None:
    for file, opened in files.items():
        with planning.open_file(paths[file]) as now:
            if planning.state_of(opened) == states[file] == planning.state_of(now):
                continue
        raise SourceError(
            f"{paths[file]} was changed while it was read",
            hint="wait until it is whole, and run this again: what was finished from other files stays",
        )


# Writing the files of weights of a plan, several at a time, each into the journal when it is whole.

# Also where there are fewer processors: some wait for the disk while others take digests.
_WORKERS = 4
_PART = ".part"


class _StoppedError(Exception):
    """Another file could not be written: this one is no longer needed."""


def write_weights(plan: CheckpointPlan, work: Path, journal: BuildJournal, report: Report) -> None:
    """Writes the files that the journal does not have into the folder ``work``. Raises what `shard_writing.write`
    does."""
    from multiprocessing.pool import ThreadPool

    todo = [shard for shard in plan.shards if shard.name not in journal.finished]
    if not todo:
        return
    paths = {file: plan.sources[file.source].folder / file.path for shard in todo for file in shard.sources}
    states = _states(plan, paths)
    total = sum(shard.size for shard in plan.shards)
    progress = MovedBytes(report, plan.definition.name, total)
    progress.add(total - sum(shard.size for shard in todo))
    stopped = threading.Event()

    def count(size: int) -> None:
        if stopped.is_set():
            raise _StoppedError
        progress.add(size)

    def write_one(shard: PlannedShard) -> None:
        part = work / f"{shard.name}{_PART}"
        file = write_shard(shard, part, paths, states, count)
        part.replace(work / shard.name)
        files.sync_folder(work)
        journal.add(shard.name, file)

    # Threads that do not keep the process alive when the user stops it; the largest files first, so that none is left
    # to be written alone at the end.
    with ThreadPool(_WORKERS) as pool:
        try:
            for _ in pool.imap_unordered(write_one, sorted(todo, key=lambda shard: -shard.size)):
                pass
        finally:
            stopped.set()
            pool.close()
            pool.join()


def _states(plan: CheckpointPlan, paths: dict[SourceFile, Path]) -> dict[SourceFile, FileState]:
    """The states of the sources' files as they were planned. Raises SourceError for one that is another now."""
    states = {}
    for file, path in paths.items():
        with planning.open_file(path) as opened:
            states[file] = planning.state_of(opened)
        if states[file].size != plan.size_of(file):
            raise SourceError(
                f"{path} has {states[file].size:,} bytes, and had {plan.size_of(file):,} when its header was read",
                hint="wait until it is whole, and run this again",
            )
    return states


# Making a checkpoint from its plan: into an unfinished folder beside the others, a file at a time, and at the end one
# rename. Killed at any moment, the next run goes on with the files that are not whole yet.

LOCK = ".building"
"""The lock file in the folder of the results, which a build holds."""


def make_checkpoint(
    plan: CheckpointPlan, place: ResultPlace, recorded: Mapping[str, CheckpointRevision], report: Report
) -> tuple[str, CheckpointRevision]:
    """Makes the checkpoint and puts it in its place; returns its revision and the record of it, without a sequence.

    Raises SourceError for a source that changes meanwhile; ConflictError for a file whose digest is not the one that
    the definition demands, or that was ``recorded`` for the same inputs; OSError. What is whole stays for the next try.
    """
    make_folder(place.root)
    work = _work_folder(plan, place)
    on_wait = Message(f"waiting for another process that makes {plan.definition.name}")
    with locked(place.root / LOCK, on_wait=lambda: report(on_wait)):
        journal = BuildJournal(_journal_path(work))
        if work.is_symlink():  # a folder of the project may have come with it
            work.unlink()
        work.mkdir(exist_ok=True)
        _forget_lost(journal, work, place)
        _write_small(plan, work, journal)
        write_weights(plan, work, journal, report)
        files = dict(sorted(journal.finished.items()))
        require_demanded(plan, files)
        require_recorded(plan, files, recorded)
        revision = revision_of(files)
        put_in_place(work, place, revision, files)
        made = CheckpointRevision(
            sequence=0,
            model=plan.definition.model,
            inputs=plan.inputs,
            steps=planning.steps_digest(plan.definition),
            tensors=len(plan.content.tensors),
            sources=planning.recorded_sources(plan),
            files=files,
            mods=plan.definition.mods,
            folder=plan.definition.folder,
        )
        return revision, made


def finished(plan: CheckpointPlan, place: ResultPlace) -> int:
    """The bytes of the files that an earlier try finished, which take no further room."""
    journal = BuildJournal(_journal_path(_work_folder(plan, place)))
    return sum(file.size for file in journal.finished.values())


def forget_result(place: ResultPlace) -> None:
    """Removes the journal of a build whose result is recorded, and what is left of others that nobody is making."""
    with locked(place.root / LOCK):
        for path in place.root.glob(f"{UNFINISHED}*"):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)


def forget_this(plan: CheckpointPlan, place: ResultPlace) -> None:
    """Removes what is left of a build of these inputs that was killed after its result was recorded."""
    work = _work_folder(plan, place)
    if not work.exists() and not _journal_path(work).exists():
        return
    with locked(place.root / LOCK):
        shutil.rmtree(work, ignore_errors=True)
        _journal_path(work).unlink(missing_ok=True)


def _work_folder(plan: CheckpointPlan, place: ResultPlace) -> Path:
    return place.root / f"{UNFINISHED}{plan.inputs[:16]}"


def _journal_path(work: Path) -> Path:
    return work.with_name(f"{work.name}.journal")


def _forget_lost(journal: BuildJournal, work: Path, place: ResultPlace) -> None:
    """Takes files out of the journal that are not where they should be, with the size that they had."""
    made = place.folder(revision_of(journal.finished))
    for name, file in list(journal.finished.items()):
        paths = (work / name, made / name, *blobs(place, file))
        if not any(path.is_file() and path.stat().st_size == file.size for path in paths):
            del journal.finished[name]


def _write_small(plan: CheckpointPlan, work: Path, journal: BuildJournal) -> None:
    for name, content in contents(plan).items():
        file = RecordedFile(len(content), f"sha256:{hashlib.sha256(content).hexdigest()}")
        if journal.finished.get(name) != file:
            with naming(work / name):
                write_atomically(work / name, content)
            journal.add(name, file)


# Fetching the files of sources on the Hub that are not here.


def fetch_source(plan: CheckpointPlan, report: Report) -> None:
    """Fetches the files of the sources that are not here, into the Hugging Face cache. Raises SourceError."""
    for name, source in plan.sources.items():
        missing = {file.path for file in plan.missing if file.source == name}
        if not missing or source.snapshot is None:
            continue
        wanted = replace(source.snapshot, files=tuple(file for file in source.snapshot.files if file.path in missing))
        done = MovedBytes(report, source.snapshot.model, wanted.size)
        done.add(wanted.size - hub.missing_bytes(source.environ, wanted))
        hub.fetch_from_hub(source.environ, wanted, done.add)


# Results that nothing names any more, and what killed builds left: what `prune` removes of checkpoints.


@dataclass(frozen=True)
class RemovableCheckpoint:
    """A revision of a checkpoint, or an unfinished one (``revision`` is empty), with the paths that go and the bytes
    that they take, each file counted once."""

    name: str
    revision: str
    paths: tuple[Path, ...]
    size: int

    @property
    def title(self) -> str:
        """The revision for messages."""
        return f"{self.name}@{self.revision[:12]}" if self.revision else f"what an unfinished {self.name} left"


def find_leftovers(
    project: Project, environ: Mapping[str, str], wanted: Collection[str]
) -> tuple[RemovableCheckpoint, ...]:
    """The revisions on this machine that checkpoints.lock records, that were not made last, and that are none of
    ``wanted`` (``NAME@REVISION``); and what is unfinished. Files that a revision which stays has too are left."""
    records = checkpoints_lock.read_checkpoints_lock(project)
    removable = []
    for name in sorted({*records.checkpoints, *checkpoint_definition.checkpoint_names(project)}):
        revisions, current = records.checkpoints.get(name, {}), records.current(name)
        folders = dict.fromkeys((None, *(made.folder for made in revisions.values())))
        places = [checkpoints_lock.result_place(project, environ, name, folder) for folder in folders]
        for place in places:
            here = [revision for revision in revisions if place.has(revision)]
            going = [each for each in here if each != current and f"{name}@{each}" not in wanted]
            # Another project's revisions lie in the same folder: whatever they link to stays.
            staying = [each for each in place.revisions() if each not in going]
            kept = {path.resolve() for each in staying for path in place.folder(each).iterdir()}
            for revision in going:
                paths = _paths(place, revision, kept)
                kept |= set(paths)
                removable.append(RemovableCheckpoint(name, revision, paths, sum(map(_size, paths))))
            unfinished = tuple(sorted(place.root.glob(f"{UNFINISHED}*")))
            if unfinished and not files.is_held(place.root / LOCK):
                removable.append(RemovableCheckpoint(name, "", unfinished, sum(map(_size, unfinished))))
    return tuple(removable)


def remove_leftovers(removable: RemovableCheckpoint) -> None:
    """Removes the paths; the folder first that has the name, so that nobody takes a part for the whole."""
    for path in removable.paths:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with suppress(OSError):
                path.unlink(missing_ok=True)


def _paths(place: ResultPlace, revision: str, kept: Collection[Path]) -> tuple[Path, ...]:
    folder = place.folder(revision)
    blobs = sorted({path.resolve() for path in folder.iterdir()} - set(kept)) if place.is_cache else []
    return (folder, *(blob for blob in blobs if blob.parent == (place.root / "blobs").resolve()))


def _size(path: Path) -> int:
    if path.is_dir():
        return sum(_size(each) for each in path.iterdir() if not each.is_symlink())
    with suppress(OSError):
        return path.lstat().st_size
    return 0
