"""Putting a whole folder in its place by one rename: whoever looks, at whatever moment, sees all of it or none of it.

Its files are forced to the disk first, and its name after: what is recorded of it afterwards holds whatever happens.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from pathlib import Path

from builder.storage.atomic_file import make_folder, sync_folder
from builder.storage.named_errors import naming

# From fcntl.h and linux/fs.h.
_HERE = -100
_RENAME_EXCHANGE = 2


def put_in_place(fresh: Path, target: Path) -> None:
    """Makes ``fresh`` the folder ``target``, which is not there yet. Where they lie on two disks, whoever is killed
    leaves a part of it beside, which `remove_unfinished` removes. Raises OSError."""
    make_folder(target.parent)
    _sync(fresh)
    try:
        _rename(fresh, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        _copy_from_another_disk(fresh, target)


def remove_unfinished(target: Path) -> None:
    """Removes what a killed `put_in_place` left beside ``target``."""
    shutil.rmtree(_unfinished(target), ignore_errors=True)


def _copy_from_another_disk(fresh: Path, target: Path) -> None:
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


def replace(fresh: Path, target: Path) -> None:
    """Makes ``fresh`` the folder ``target`` in place of the one that may be there, for one writer at a time: whoever is
    killed leaves the old one or the new one. Where the file system cannot exchange two folders (network file systems),
    there is no ``target`` for a moment. Raises OSError."""
    aside = aside_of(target)
    shutil.rmtree(aside, ignore_errors=True)
    _sync(fresh)
    if target.exists() and _exchange(fresh, target):
        sync_folder(target.parent)
        shutil.rmtree(fresh, ignore_errors=True)
        return
    with contextlib.suppress(FileNotFoundError):
        target.rename(aside)
    _rename(fresh, target)
    shutil.rmtree(aside, ignore_errors=True)


def aside_of(target: Path) -> Path:
    """The name of the former ``target`` while `replace` cannot exchange the two."""
    return target.with_name(f".{target.name}.old")


def _exchange(fresh: Path, target: Path) -> bool:
    """Gives two folders each other's name at once (renameat2(2)); False where the system cannot."""
    import ctypes

    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    return bool(rename(_HERE, os.fsencode(fresh), _HERE, os.fsencode(target), _RENAME_EXCHANGE) == 0)


def _rename(fresh: Path, target: Path) -> None:
    fresh.rename(target)
    sync_folder(target.parent)
    sync_folder(target.parent.parent)  # which may have the parent since now


def _sync(folder: Path) -> None:
    """Forces all that is in ``folder`` to the disk; a link has no content of its own."""
    for parent, _, names in os.walk(folder, topdown=False):
        for name in names:
            path = Path(parent, name)
            if not path.is_symlink():
                with path.open("rb") as file, naming(path):
                    os.fsync(file.fileno())
        sync_folder(Path(parent))
