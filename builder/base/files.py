"""This page reads and writes files safely, whoever wrote them and whenever a process is killed.

Reading comes first: links, pipes, devices and oversized files are refused. Locks and the kinds of writing follow.
A reader sees the old content or the new content of an atomic write, never a part of either.
Atomic files and folders also survive a loss of power. Files in the state folder do not, and may vanish at any time.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from builder.base.errors import TransferError, UsageError


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Adds the name of ``path`` to each OSError of the block that names no file, such as an error of an open file."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno is not None:
            error.filename = str(path)
        raise


# Reading a file that anyone may have put there: links, pipes, devices and files that are too large are refused.

_STATE = ".builder"
LONGEST_NAME = 255  # bytes, on every file system


def read_plain_file(path: Path | str, largest: int) -> bytes:
    """Returns the content of a plain file of at most ``largest`` bytes. Raises OSError for anything else. Unlike a
    plain `open`, it never waits for the writer of a pipe."""
    try:
        descriptor = opened(path, os.O_RDONLY)
    except OSError as error:
        # ELOOP: a link; ENXIO: a socket.
        raise _no_file(path) if error.errno in (errno.ELOOP, errno.ENXIO) else error from None
    try:
        status = os.fstat(descriptor)
        if stat.S_ISDIR(status.st_mode):
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(status.st_mode):
            raise _no_file(path)
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            content = file.read(largest + 1) if status.st_size <= largest else b""
    finally:
        os.close(descriptor)
    if max(len(content), status.st_size) > largest:
        raise OSError(errno.EFBIG, f"larger than {largest:,} bytes", str(path))
    return content


def opened(path: Path | str, flags: int, mode: int = 0o666) -> int:
    """Opens a file and returns its descriptor. Raises OSError if the file is a symbolic link.

    A state folder may contain foreign files. Below it, no folder of the path may be a link when the file
    is opened; the state folder itself may be a link to another disk. Opening a pipe never waits."""
    flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    parts = Path(path).parts
    if _STATE not in parts[:-1]:
        return os.open(path, flags, mode)
    at = parts.index(_STATE) + 1
    try:
        folder = os.open(Path(*parts[:at]), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for name in parts[at:-1]:
                inner = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
                os.close(folder)
                folder = inner
            return os.open(parts[-1], flags, mode, dir_fd=folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


def zip_errors() -> tuple[type[Exception], ...]:
    """The errors that zipfile raises for a damaged or encrypted file, an unknown compression, or an invalid name."""
    import lzma
    import zipfile
    import zlib

    return (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError, RuntimeError, ValueError)


def _no_file(path: Path | str) -> OSError:
    return OSError(errno.EINVAL, "not a regular file", str(path))


def _require_plain(path: Path) -> None:
    """Raises OSError if ``path`` is a device, a pipe or a socket, or a link to one: root would replace /dev/null."""
    with suppress(FileNotFoundError):
        kind = path.stat().st_mode
        if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):
            raise _no_file(path)


def write_plain_file(path: Path, content: bytes) -> None:
    """Writes a file that no other process can read yet, because its folder is not in place. Raises OSError."""
    with naming(path):
        path.write_bytes(content)


# Advisory locks of the operating system on files and folders. One process at a time holds a lock. The system releases
# the lock when the process ends, however it ends.

_TELL_AFTER = 0.3  # seconds; most locks are held for some tens of milliseconds
_LONGEST_PAUSE = 0.02  # seconds between two tries
_READ_AND_WRITE = os.O_RDWR | os.O_CREAT
_AT_ONCE = fcntl.LOCK_EX | fcntl.LOCK_NB


class LockHeldError(Exception):
    """Another process kept the lock for longer than the caller waits; ``holder`` is its process id, if known."""

    def __init__(self, holder: int | None) -> None:
        super().__init__(holder)
        self.holder = holder


@contextmanager
def locked(
    path: Path, *, wait_seconds: float = float("inf"), on_wait: Callable[[], None] | None = None
) -> Iterator[None]:
    """Holds the lock file ``path`` during the block. The file is made if it is missing, and contains the process id of
    the holder.

    The file is never deleted: a process that waits for a deleted file would not see the holder of the new file.
    ``on_wait`` is called once if the wait takes longer than a moment. Raises LockHeldError after the same process has
    held the lock for ``wait_seconds``, and OSError if the file cannot be opened or locked.
    """
    descriptor = _open_lock(path)
    try:
        with naming(path):
            _wait(descriptor, wait_seconds, on_wait)
        _write_holder(descriptor, f"{os.getpid()}\n")
        try:
            yield
        finally:
            _write_holder(descriptor, "")
            _unlock(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def folder_locked(path: Path) -> Iterator[None]:
    """Locks the folder itself during the block, even if it is renamed. Raises BlockingIOError at once if another
    process holds the lock, and OSError if the folder cannot be opened."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, _AT_ONCE)
        yield
        _unlock(descriptor)
    finally:
        os.close(descriptor)


def open_locked_to_append(path: Path) -> int:
    """Opens the file ``path`` to append to it, and returns its descriptor. The file is made if it is missing, and is
    locked until the descriptor is closed. Waits for other processes. If the file was renamed or removed during the
    wait, the function opens it again."""
    while True:
        descriptor = opened(path, _READ_AND_WRITE | os.O_APPEND)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if _is_at(path, descriptor):
            return descriptor
        os.close(descriptor)


def lock_new(path: Path, descriptor: int) -> bool:
    """Locks a new file of this process until it is closed. False if another process removed the file first, as
    `remove_unlocked` does. On a file system without locks, `remove_unlocked` removes nothing."""
    try:
        fcntl.flock(descriptor, _AT_ONCE)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return _is_at(path, descriptor)


def remove_unlocked(path: Path) -> None:
    """Removes a file that no process holds."""
    with suppress(OSError), _held_at_once(path):
        path.unlink()


def is_held(path: Path) -> bool:
    """True for a file that another process holds, or that cannot be opened."""
    try:
        with _held_at_once(path):
            return False
    except OSError:
        return True


@contextmanager
def _held_at_once(path: Path) -> Iterator[None]:
    descriptor = opened(path, os.O_RDWR)
    try:
        fcntl.flock(descriptor, _AT_ONCE)
        yield
    finally:
        os.close(descriptor)


def _open_lock(path: Path) -> int:
    try:
        return opened(path, _READ_AND_WRITE)
    except PermissionError:  # another user, such as root, made the file: locking requires only read access
        with suppress(OSError):
            return opened(path, os.O_RDONLY)
        raise


def _wait(descriptor: int, wait_seconds: float, on_wait: Callable[[], None] | None) -> None:
    started = time.monotonic()
    holder, since = _holder(descriptor), started
    pause = 0.001
    while True:
        try:
            return fcntl.flock(descriptor, _AT_ONCE)
        except BlockingIOError:
            pass
        now = time.monotonic()
        if (current := _holder(descriptor)) != holder:  # processes take turns: the time limit counts for each holder
            holder, since = current, now
        if now - since >= wait_seconds:
            raise LockHeldError(holder)
        if on_wait and now - started >= _TELL_AFTER:
            on_wait()
            on_wait = None
        time.sleep(min(pause, wait_seconds - (now - since)))
        pause = min(pause * 2, _LONGEST_PAUSE)


def _unlock(descriptor: int) -> None:
    # A process that was just forked from this one has a copy of the descriptor: closing alone would not unlock.
    fcntl.flock(descriptor, fcntl.LOCK_UN)


def _is_at(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.lstat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _holder(descriptor: int) -> int | None:
    text = os.pread(descriptor, 20, 0).decode(errors="replace").strip()
    return int(text) if text.isdecimal() else None


def _write_holder(descriptor: int, text: str) -> None:
    with suppress(OSError):  # the id is only for messages, so a full disk does not matter here
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, text.encode(), 0)


# A file has a temporary name until it is complete. A killed writer leaves the temporary file; the next writer of the
# same file removes it. A lock on the temporary file shows that its writer still runs, possibly on another machine.


@contextmanager
def beside(path: Path) -> Iterator[tuple[IO[bytes], Path]]:
    """Makes a temporary file in the folder of ``path``, and yields the file with its name. The block renames the file;
    otherwise the file is removed at the end. Several processes may write the same ``path`` at once. Raises OSError."""
    if not path.name:  # `.` and `/`
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    remove_stale(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")

    try:
        while not lock_new(temporary, descriptor := _make(temporary)):
            os.close(descriptor)
        with naming(temporary), os.fdopen(descriptor, "wb") as file:
            yield file, temporary
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def is_abandoned(path: Path) -> bool:
    """True for a temporary file that a killed writer left."""
    return re.fullmatch(r"\..*\.\d+\.\d+", path.name, re.DOTALL) is not None and not is_held(path)


def remove_stale(path: Path) -> None:
    """Removes the temporary files that killed writers of ``path`` left."""
    left = re.compile(rf"\.{re.escape(path.name)}\.\d+\.\d+")
    with suppress(OSError), os.scandir(path.parent) as entries:
        for entry in entries:
            if left.fullmatch(entry.name):
                remove_unlocked(Path(entry.path))


def _make(path: Path) -> int:
    # An existing file is deleted, not opened: it may belong to another user, or be a link.
    path.unlink(missing_ok=True)
    return opened(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)


# Writing a file that other programs read. The file survives a loss of power: first its content is forced to the disk,
# then its name. `write_state` costs less; its files may vanish at any time.

# The errors of fsync(2) for a folder if the file system cannot force folders to the disk.
_CANNOT_SYNC = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EACCES, errno.EPERM})


def write_atomically(
    path: Path, content: bytes, *, mode: int | None = None, check: Callable[[], None] | None = None
) -> None:
    """Replaces the file ``path`` with ``content``. ``mode`` sets its permissions; by default, an existing file keeps
    its owner, group and permissions. Several processes may write the file at once: the last one wins. ``check`` is
    called when the new content is on the disk. If it raises an error, the file is unchanged, as after an OSError."""
    _require_plain(path)
    with beside(path) as (file, temporary):
        if mode is not None:
            os.fchmod(file.fileno(), mode)
        else:
            with suppress(FileNotFoundError):
                _give_access_of(path.stat(), file.fileno())
        file.write(content)
        put_file_in_place(file, temporary, path, check=check)


def put_file_in_place(file: IO[bytes], temporary: Path, path: Path, *, check: Callable[[], None] | None = None) -> None:
    """Forces ``file`` to the disk, and renames it from ``temporary`` to ``path`` in the same file system."""
    file.flush()
    os.fsync(file.fileno())
    if check:
        check()
    temporary.replace(path)
    with suppress(OSError):  # the file is already in place, so an error here must not reach the caller
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Forces the names in ``folder`` to the disk. File systems that do not support this are left alone. Raises OSError
    if the disk fails."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with naming(folder):
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC:
            raise


def nearest_existing(path: Path) -> Path:
    """The path itself, or the nearest one above it that exists."""
    return next(each for each in (path, *path.parents) if each.exists())


def make_folder(folder: Path) -> None:
    """Makes ``folder`` and the missing folders above it, and forces their names to the disk. Raises OSError."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in missing:
        sync_folder(path.parent)


def _give_access_of(status: os.stat_result, descriptor: int) -> None:
    for owner in (status.st_uid, -1):  # only root may change the owner; a user may set one of the user's own groups
        with suppress(PermissionError):
            os.fchown(descriptor, owner, status.st_gid)
            break
    with suppress(PermissionError):  # a file system without modes
        os.fchmod(descriptor, stat.S_IMODE(status.st_mode))


# A whole folder is put in place by one rename. First its files are forced to the disk, then its name.

# From fcntl.h and linux/fs.h.
_HERE = -100
_RENAME_EXCHANGE = 2


@contextmanager
def fresh_folder(target: Path) -> Iterator[Path]:
    """An empty folder beside ``target``, for the block to fill and put in place. If the block does not put it in
    place, it is removed. A killed process leaves ``.NAME.new``, which the next one replaces. Raises OSError."""
    import shutil

    fresh = target.with_name(f".{target.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    try:
        yield fresh
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def put_folder_in_place(fresh: Path, target: Path) -> None:
    """Renames the folder ``fresh`` to ``target``, which does not exist yet. If they are on two disks, the folder is
    copied; a killed process then leaves a partial copy, which `remove_unfinished` removes. Raises OSError."""
    make_folder(target.parent)
    _sync(fresh)
    try:
        _rename(fresh, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        _copy_from_another_disk(fresh, target)


def remove_unfinished(target: Path) -> None:
    """Removes the partial copy that a killed `put_folder_in_place` left beside ``target``."""
    import shutil

    shutil.rmtree(_unfinished(target), ignore_errors=True)


def _copy_from_another_disk(fresh: Path, target: Path) -> None:
    import shutil

    copy = _unfinished(target)
    remove_unfinished(target)
    try:
        shutil.copytree(fresh, copy, symlinks=True)
        _sync(copy)
        _rename(copy, target)
    finally:
        remove_unfinished(target)
    shutil.rmtree(fresh, ignore_errors=True)


def _unfinished(target: Path) -> Path:
    return target.with_name(f".{target.name}.part")


def replace_folder(fresh: Path, target: Path) -> None:
    """Replaces the folder ``target`` with the folder ``fresh``, for one writer at a time. A killed process leaves the
    old or the new folder. Some file systems, such as network file systems, cannot exchange two folders: there,
    ``target`` is missing for a moment. Raises OSError."""
    import shutil

    aside = aside_of(target)
    shutil.rmtree(aside, ignore_errors=True)
    _sync(fresh)
    if target.exists() and _exchange(fresh, target):
        sync_folder(target.parent)
        shutil.rmtree(fresh, ignore_errors=True)
        return
    with suppress(FileNotFoundError):
        target.rename(aside)
    _rename(fresh, target)
    shutil.rmtree(aside, ignore_errors=True)


def aside_of(target: Path) -> Path:
    """The name of the old folder for a moment, if `replace_folder` cannot exchange the two folders."""
    return target.with_name(f".{target.name}.old")


def _exchange(fresh: Path, target: Path) -> bool:
    """Exchanges the names of two folders in one step (renameat2(2)). False if the system does not support this."""
    import ctypes

    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    return bool(rename(_HERE, os.fsencode(fresh), _HERE, os.fsencode(target), _RENAME_EXCHANGE) == 0)


def _rename(fresh: Path, target: Path) -> None:
    fresh.rename(target)
    sync_folder(target.parent)
    sync_folder(target.parent.parent)  # the parent may be new there


def _sync(folder: Path) -> None:
    """Forces everything in ``folder`` to the disk. Links are left out: they have no content of their own."""
    for parent, _, names in os.walk(folder, topdown=False):
        for name in names:
            path = Path(parent, name)
            if not path.is_symlink():
                with path.open("rb") as file, naming(path):
                    os.fsync(file.fileno())
        sync_folder(Path(parent))


# Files in the state folder make the next run faster, and may vanish at any time. They are written whole, at little
# cost.


def write_state(path: Path, content: bytes) -> None:
    """Replaces the file ``path`` with ``content``. Several processes may write and read the file at once. A loss of
    power may empty it: readers treat a file that they cannot read as missing. If the folder cannot be written to,
    nothing happens, and the next run takes longer."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with beside(path) as (file, temporary):
            file.write(content)
            file.flush()
            temporary.replace(path)


# Writing a file that the user named. A large file has its name only when it is complete.

_HINTS = {
    errno.ENOSPC: "make room there, or name a file on another disk",
    errno.EDQUOT: "make room there, or name a file on another disk",
    errno.EFBIG: "a FAT disk cannot store files larger than 4 GB: name a file on another disk, or format the disk as"
    " exFAT or ext4, which erases it",
}


@contextmanager
def named_by_user(path: Path) -> Iterator[None]:
    """Raises UsageError if the block cannot write the file or folder ``path``, which the user named. For a full disk,
    the OSError stays."""
    try:
        yield
    except OSError as error:
        if error.errno in _HINTS:
            raise
        hint = "name a file in an existing folder that you can write to"
        raise UsageError(f"{path} cannot be written: {error.strerror}", hint=hint) from None


@contextmanager
def written_large_file(path: Path, *, replace: bool) -> Iterator[IO[bytes]]:
    """Yields an empty file, which gets the name ``path`` when the block ends without an error. A killed process leaves
    ``.NAME.new``; the next writer overwrites it.

    Raises UsageError if ``path`` cannot be made, exists (unless ``replace``), or is being written by another process;
    TransferError if the file does not fit on the disk.
    """
    if path.exists() and not path.is_file():
        raise UsageError(f"{path} is not a file", hint="name a file, not a folder or a device")
    if path.exists() and not replace:
        raise UsageError(f"{path} already exists", hint="name another file, or replace it with --force")
    temporary = path.with_name(f".{path.name}.new")
    with named_by_user(path):
        descriptor = opened(temporary, _READ_AND_WRITE)
    with os.fdopen(descriptor, "r+b", buffering=0) as file:
        try:
            fcntl.flock(descriptor, _AT_ONCE)
            is_ours = _is_at(temporary, descriptor)
        except BlockingIOError:
            is_ours = False
        if not is_ours:
            message = f"{path} is being written by another process"
            raise UsageError(message, hint="wait until that process ends, or name another file")
        try:
            file.truncate(0)
            yield file
            put_file_in_place(file, temporary, path)
        except OSError as error:
            hint = _HINTS.get(error.errno or 0, f"check the disk that holds {path.parent}, then run the command again")
            raise TransferError(f"{path} was not written: {error.strerror or error}", hint=hint) from None
        finally:
            # After success, the temporary name is gone already; after an error, the file is useless.
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
