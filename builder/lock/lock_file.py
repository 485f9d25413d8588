"""This page reads images.lock and is its only writer.

The journal of unfinished changes comes first, then the check for a lost file, the reader and the writer.
A file with any error is rejected as a whole. A killed writer leaves the old file or the new one.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from builder.base import files, records, words
from builder.base.errors import Location, LockBusyError, LockError, NewerLockError, Problem
from builder.base.values import dataclass
from builder.lock import checking, layout, text
from builder.lock.checking import TAKE_BACK, lock_error
from builder.lock.model import VERSION, ImageName, Lock
from builder.lock.text import comments_of, dump_lock

if TYPE_CHECKING:
    from builder.base.project import Project
    from builder.lock.layout import Load


# The journal of changes that are under way: a new number, or a pointer that moves. A change has happened when
# images.lock is written. Its other parts (the tags in the engine, the build directory) are announced in the journal
# first. So the next process that locks images.lock can finish or undo the change of a killed process
# (``builder.numbers.images_lock``).


@dataclass(frozen=True)
class Entry:
    """A change to a repository: ``number`` is given, removed, or made current. ``engine_id`` is the engine's id of an
    image that keeps the number only if images.lock records it; empty if only the pointer moves. Anyone may have written
    the file of an entry, and its names become folders."""

    repository: Annotated[str, checking.pattern("repository")]
    number: int
    engine_id: Annotated[str, "(?:sha256:[0-9a-f]{64})?"]

    def __post_init__(self) -> None:
        if not 0 <= self.number < 10**18:
            raise ValueError(f"{self.number} is not a valid image number")

    @property
    def name(self) -> ImageName:
        return ImageName(self.repository, self.number)


def journal_file(project: Project, repository: str) -> Path:
    return project.journal / f"{repository.replace('/', '+')}.json"  # no repository has `+` in its name


def write_journal(project: Project, name: ImageName, engine_id: str) -> None:
    """Announces a change; the entry is on the disk when this returns. A repository has one entry, the last one."""
    files.make_folder(project.journal)
    content = records.text_of(Entry(name.repository, name.number, engine_id), {})
    files.write_atomically(journal_file(project, name.repository), content.encode())


def is_empty(project: Project) -> bool:
    return not any(project.journal.glob("*"))


def journal_entries(project: Project) -> Iterator[Entry]:
    """The announced changes, without those that another process finishes meanwhile. Raises LockError for a file that
    announces no change, because undoing an entry deletes an image and a folder."""
    for path in sorted(project.journal.glob("*.json")):
        entry: Entry | None = None
        try:
            entry = records.read_file(path, Entry, largest=1 << 16)
        except FileNotFoundError:
            continue
        except (OSError, ValueError):
            pass
        if entry is None or path != journal_file(project, entry.repository):
            message = f"{project.relative(path)} does not describe a change that builder makes"
            hint = "find out where the file came from, then remove it; `builder verify` shows what does not match"
            raise LockError(message, hint=hint)
        yield entry


# images.lock is lost if it is missing although images were built here. A lost lock must not be read as an empty one.

# A build directory has one of these files: the first for an image that was built here, the second for an adopted image.
_OF_IMAGES = ("bake.json", "adopted.json")
MESSAGE = "lost, but builds/ has images"


def is_lost(project: Project) -> bool:
    """True if images.lock is missing although ``builds/`` has images. The very first number does not count while it is
    in the journal: the next writer finishes or undoes it."""
    if project.lock.exists():
        return False
    # The order matters: another process creates the directory first and removes its journal entry last.
    built = [path.parent for file in _OF_IMAGES for path in project.builds.glob(f"**/[0-9]*/{file}")]
    begun = {
        project.build_directory(entry.repository, entry.number) for entry in journal_entries(project) if entry.engine_id
    }
    return any(begun.isdisjoint((path, *path.parents)) for path in built) and not project.lock.exists()


def refuse_lost_lock(project: Project) -> None:
    """Raises LockError if images.lock is lost."""
    if is_lost(project):
        raise LockError(f"images.lock is {MESSAGE}", hint=TAKE_BACK)


# Reading images.lock. A file with any problem is rejected as a whole, and each problem is listed with its place.
# Nothing is guessed, because the lock decides which image runs.

RECORD = "images.lock"
_LARGEST_LOCK = 256 << 20  # bytes; a link may lead to a device without an end
_NEW = ".new"


def read_project_lock(project: Project) -> Lock:
    """The lock of a project; an empty one if nothing was built yet. Raises LockError as `parse_and_explain` does, and
    for a lost file."""
    lock = read_lock(project.lock)
    refuse_lost_lock(project)
    return lock


def read_lock(path: Path) -> Lock:
    """The lock in ``path``; an empty one if the file does not exist. Raises LockError as `parse_and_explain` does, and
    for a file that cannot be opened."""
    content = read_bytes(path)
    return Lock() if content is None else parse_bytes(content, path.name, files_below(path.parent))


def read_record(directory: Path) -> Lock:
    """Reads the part of images.lock in a build directory. Raises LockError and OSError."""
    content = files.read_plain_file(directory / RECORD, _LARGEST_LOCK)
    return parse_bytes(content, RECORD, lambda _, digest: _read_file(directory / layout.name_of_copy(digest)))


def record_files(part: Lock) -> dict[str, bytes]:
    copies = {layout.name_of_copy(file.digest): file.content for file in layout.packages_files(part)}
    return {RECORD: dump_lock(part).encode(), **copies}


def files_below(root: Path) -> Load:
    """The files with packages of the project in ``root``. A killed writer may have left a new file beside its place."""

    def load(path: str, digest: str) -> bytes | None:
        contents = [_read_file(root / name) for name in (path, path + _NEW)]
        return next((content for content in contents if content and words.sha256_of(content) == digest), contents[0])

    return load


def _read_file(path: Path) -> bytes | None:
    try:
        return files.read_plain_file(path, _LARGEST_LOCK)
    except OSError:
        return None


def read_bytes(path: Path) -> bytes | None:
    """The bytes of ``path``; None if the file does not exist. Raises LockError if it cannot be opened."""
    try:
        return files.read_plain_file(Path(os.path.realpath(path)), _LARGEST_LOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        hint = "make the file readable for the current user" if isinstance(error, PermissionError) else TAKE_BACK
        raise LockError(f"{path} cannot be read: {error.strerror}", hint=hint) from None


def parse_bytes(content: bytes, file: str, load: Load = lambda _path, _digest: None) -> Lock:
    """The same as `parse_and_explain` for the bytes of a file. Also raises LockError if they are not UTF-8."""
    try:
        return parse_and_explain(content.decode(), file, load)
    except UnicodeDecodeError as error:
        before = content[: error.start].decode()
        place = Location(file, before.count("\n") + 1, len(before) - before.rfind("\n"))
        raise lock_error([Problem(place, "not UTF-8 text")], TAKE_BACK) from None


def parse_and_explain(content: str, file: str = "images.lock", load: Load = lambda _path, _digest: None) -> Lock:
    """Returns the lock in a text; errors call it ``file``. ``load`` returns the content of a file with packages. Raises
    LockError with every problem: a conflict marker, a truncated file, invalid YAML, another version, an unknown key, a
    wrong value, a repeated key or number."""
    if marks := checking.conflict_marks(content):
        problems = (Problem(Location(file, line), f"git conflict marker `{mark}`") for line, mark in marks)
        raise lock_error(problems, checking.MERGE)
    written = content.rstrip()
    if not written:
        raise lock_error([Problem(Location(file), "the file is empty")], TAKE_BACK)
    if written.rpartition("\n")[2] != checking.END:  # a truncated lock can be valid YAML with fewer images
        before, end, _ = f"\n{written}".partition(f"\n{checking.END}\n")
        if end:
            place = Location(file, before.count("\n") + 2)
            raise lock_error([Problem(place, f"nothing may follow `{checking.END}`")], checking.CORRECT)
        place = Location(file, written.count("\n") + 1)
        raise lock_error([Problem(place, f"truncated here: the last line must be `{checking.END}`")], TAKE_BACK)
    if (data := text.read_layout(content)) is not None and not checking.problems(data):
        lock = layout.lock_of(data, load)
        if not any(lock.broken_rules()):
            return lock
    return _read_with_places(content, file, load)


def _read_with_places(content: str, file: str, load: Load) -> Lock:
    tree = text.read_tree(content, file)
    version = tree.data.get("version") if isinstance(tree.data, dict) else None
    if isinstance(version, str) and version.isdecimal() and version != str(VERSION):
        message = f"{file} has version {version[:20]}, but this builder reads version {VERSION}"
        problem = Problem(tree.places["version",], message)
        older = "remove the file, then rebuild it from builds/ and the engine: `builder lock --recover`"
        other = older if len(version) < 3 and int(version) < VERSION else "update builder"
        raise NewerLockError(str(problem), hint=f"{other}; or restore a file of version {VERSION} with git")
    wrong = checking.problems(tree.data)
    if not wrong:
        lock = layout.lock_of(tree.data, load)
        wrong = list(lock.broken_rules())
    if tree.problems or wrong:
        named = (Problem(tree.places.get(path, Location(file)), message) for path, message in wrong)
        raise lock_error([*tree.problems, *named], checking.CORRECT)
    return lock


# The only writer of images.lock. A process that is killed at any moment leaves the old file or the new one. The text is
# written to a file beside it, forced to the disk, and replaces the old file in one step. If a killed writer leaves the
# new file, the next writer removes it.

if TYPE_CHECKING:
    Read = Callable[[bytes, str, Load], Lock]


class LockWriter:
    """The right to write images.lock until the block of ``writing`` ends. ``lock`` is its present content.
    ``has_written`` is true once any writer of this process changed images.lock."""

    has_written: ClassVar[bool] = False

    def __init__(self, path: Path, root: Path, read: Read) -> None:
        self._path, self._root = path, root
        self._load = files_below(root)
        self._content = read_bytes(path)
        self.lock = Lock() if self._content is None else read(self._content, path.name, self._load)
        _settle(root, self.lock)

    def commit(self, lock: Lock, commented: bytes | None = None) -> bool:
        """Writes ``lock`` to images.lock, and the new files with packages; returns False if nothing changed. The user's
        comments in the file stay; in a merge, the comments in ``commented``.

        Raises LockError if a file cannot be written or was changed meanwhile, and leaves images.lock unchanged. Raises
        UsageError for text that is not Unicode, and ValueError for a lock that could not be read back (a bug).
        """
        lock = lock.dated(self.lock, words.now())
        if broken := list(lock.broken_rules()):
            raise ValueError("; ".join(line for _, line in broken))
        text = dump_lock(lock, comments_of((commented or self._content or b"").decode(errors="replace")))
        content = text.encode()
        stored = {(file.path, file.digest) for file in layout.packages_files(self.lock)}
        new = {
            file.path: file.content for file in layout.packages_files(lock) if (file.path, file.digest) not in stored
        }
        if content == self._content and not new:
            return False
        try:
            written = parse_and_explain(text, self._path.name, self._load)
        except LockError as error:
            raise ValueError(f"this would make images.lock unreadable: {error}") from error
        try:
            # The old packages stay in place until images.lock has the new digest.
            for path, packages in new.items():
                files.make_folder((self._root / path).parent)
                files.write_atomically(self._root / (path + _NEW), packages)
            files.write_atomically(self._path, content, check=self._refuse_changed)
        except OSError as error:
            raise LockError(
                f"{self._path} cannot be written, and was left unchanged: {error.strerror}",
                hint="make room on its disk (`builder prune --dry-run` lists images that `docker image rm` can remove),"
                f" or make {self._path.parent} writable; then run the command again",
            ) from None
        self._content, self.lock = content, written
        LockWriter.has_written = True
        _settle(self._root, written)
        return True

    def read_again(self) -> None:
        """Brings ``lock`` up to date: ^C may have ended `commit` after the new file was in place. Raises LockError."""
        if (content := read_bytes(self._path)) != self._content:
            self.lock = Lock() if content is None else parse_bytes(content, self._path.name, self._load)
            self._content = content
            LockWriter.has_written = True

    def _refuse_changed(self) -> None:
        if read_bytes(self._path) != self._content:
            message = f"{self._path.name} changed while it was being updated, by git or an editor"
            raise LockError(message, hint="nothing was written: run the command again")


def _settle(root: Path, lock: Lock) -> None:
    """Moves the new files with packages that images.lock records into place, and removes the others, which a killed
    writer left."""
    for path in root.glob(f"dockerfiles/*/.*packages.*.txt{_NEW}.*"):
        path.unlink(missing_ok=True)
    beside = list(root.glob(f"dockerfiles/*/*packages.*.txt{_NEW}"))
    recorded = {file.path: file.digest for file in layout.packages_files(lock)} if beside else {}
    for path in beside:
        place = path.with_name(path.name.removesuffix(_NEW))
        if words.sha256_of(_read_file(path) or b"") == recorded.get(place.relative_to(root).as_posix()):
            path.replace(place)
        else:
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def writing(
    path: Path,
    *,
    root: Path | None = None,
    wait_seconds: float = 30,
    on_wait: Callable[[], None] | None = None,
    read: Read = parse_bytes,
) -> Iterator[LockWriter]:
    """Locks images.lock for writing and reads it; only ``commit`` writes. Keep the block short: others wait.
    ``root`` is the folder of the files with packages, by default the folder of ``path``. ``on_wait`` is called once if
    another process writes for longer than a moment. ``read`` makes a lock of the file's bytes and its name, to repair a
    damaged file.

    Raises LockBusyError after ``wait_seconds``, and LockError if the lock is damaged or its folder cannot be written
    to. A symbolic link is followed.
    """
    real = Path(os.path.realpath(path))
    file = real.with_name(f".{real.name}.writer")
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(files.locked(file, wait_seconds=wait_seconds, on_wait=on_wait))
        except files.LockHeldError as error:
            who = "another process" if error.holder is None else f"process {error.holder}"
            message = f"{who} has been writing images.lock for more than {wait_seconds:g} s"
            hint = "wait for that process, or stop it if it hangs, then run the command again; do not delete any file"
            raise LockBusyError(message, hint=hint) from None
        except OSError as error:
            message = f"{file} cannot be locked: {error.strerror}"
            hint = f"{file.parent} must be writable, and on a file system that supports file locks"
            raise LockError(message, hint=hint) from None
        yield LockWriter(real, root or path.parent, read)
