"""An error of the system as one that the user can act on: with the path, what that is for, and what to do.

Whatever the system refuses is no bug of this program. Errors that a command has a better word for never come here.
"""

from __future__ import annotations

import errno
import os
import pwd
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from builder.cli import output
from builder.errors import SystemFailureError

if TYPE_CHECKING:
    from types import TracebackType

_DISK = frozenset({errno.EIO, errno.ENODEV, errno.ENXIO, errno.ESTALE, errno.EUCLEAN, errno.EREMOTEIO})
_NETWORK = frozenset(
    {errno.ECONNREFUSED, errno.ECONNRESET, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ETIMEDOUT, errno.EADDRNOTAVAIL}
)
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_REFUSED = frozenset({errno.EACCES, errno.EPERM})
_LIMITS = {
    errno.EMFILE: "raise the limit of open files: `ulimit -n 4096`",
    errno.ENFILE: "the machine has too many open files: end what holds them",
    errno.EAGAIN: "the machine has too many processes: end some, or raise the limit: `ulimit -u`",
    errno.ENOMEM: "the machine has no memory left: end what uses it",
}
# What lies where in a project; the first that a path has counts.
_PURPOSES = {
    "/.builder/journal": "the journal, which announces a change before it happens",
    "/.builder/work": "the folder of a build in progress",
    "/.builder/logs": "the log of a build",
    "/.builder/serve-logs": "the log of a server",
    "/.builder/mirrors": "the mirror of a git repository",
    "/.builder/downloads": "a file that a mod takes from an address",
    "/.builder": "the state folder",
    "/builds": "the build directory of an image",
    "/images.lock": "the record of all images",
    "/.images.lock": "the record of all images",
    "/dockerfiles": "an image definition",
    "/mods": "a mod",
    "/recipes": "a recipe",
}


def translate(error: BaseException) -> SystemFailureError | None:
    """Returns the error to print; None for one that does not come from the system, and so is a bug."""
    if isinstance(error, MemoryError):
        return SystemFailureError("no memory is left", hint=_hint(errno.ENOMEM, None))
    if isinstance(error, RuntimeError) and "start new thread" in str(error):
        return SystemFailureError(f"the system refuses: {error}", hint=_hint(errno.EAGAIN, None))
    if isinstance(error, shutil.Error):
        _, path, reason = error.args[0][0]
        return SystemFailureError(_message(Path(path), str(reason)), hint=_hint(None, Path(path)))
    if isinstance(error, TimeoutError) and error.errno is None:
        return SystemFailureError(f"the system refuses: {error}", hint=_hint(errno.ETIMEDOUT, None))
    if not isinstance(error, OSError) or error.errno is None:
        return None
    if error.filename == output.STREAM:
        return SystemFailureError(f"{output.STREAM}: {error.strerror}", hint="send the output elsewhere")
    path = _path(error)
    return SystemFailureError(_message(path, error.strerror or os.strerror(error.errno)), hint=_hint(error.errno, path))


def _message(path: Path | None, reason: str) -> str:
    if path is None:
        return f"the system refuses: {reason}"
    text = str(path.absolute())
    purpose = next((words for place, words in _PURPOSES.items() if f"{place}/" in f"{text}/"), "")
    return f"{path}{purpose and f' ({purpose})'}: {reason}"


def _path(error: OSError) -> Path | None:
    """The file that an error is about. A file that is open has no name for the system, but for pathlib's methods."""
    name = error.filename2 or error.filename
    if isinstance(name, str | bytes | os.PathLike):
        return Path(os.fsdecode(name))
    return _path_in_pathlib(error.__traceback__)


def _path_in_pathlib(trace: TracebackType | None) -> Path | None:
    while trace and trace.tb_next:
        trace = trace.tb_next
    owner = trace.tb_frame.f_locals.get("self") if trace else None
    return owner if isinstance(owner, Path) else None


def _hint(number: int | None, path: Path | None) -> str:
    folder = _existing(path)
    if number in _LIMITS:
        return f"{_LIMITS[number]}; then run this again"
    if number in _FULL:
        return f"make room (`df -h {folder}`; `builder prune` shows which images could go), and run this again"
    if number == errno.EROFS:
        return f"{folder} is mounted read-only: mount it for writing, or keep the project elsewhere"
    if number in _NETWORK:
        return "look at the network, and run this again"
    if number in _DISK:
        return f"look after the disk that holds {folder} (`sudo dmesg` tells more), and run this again"
    if number in _REFUSED:
        return _access_hint(folder)
    return f"look at {folder}, and run this again"


def _existing(path: Path | None) -> Path:
    """The path, or the nearest folder above it that is there."""
    here = (path or Path()).absolute()
    return next((each for each in (here, *here.parents) if os.path.lexists(each)), Path("/"))


def _access_hint(path: Path) -> str:
    """The advice where access is denied: another user's file is most likely that of a run with sudo, and others of that
    run lie in the same folder of the user's."""
    user = os.geteuid()
    theirs = next((each for each in (path, path.parent) if each.lstat().st_uid != user), None)
    mine = next((each for each in path.parents if each.lstat().st_uid == user), None)
    if theirs is None or mine is None or user == 0:
        return f"make {path} writable for you, and run this again"
    owner = _user_name(theirs.lstat().st_uid)
    back = f"`sudo chown -R {_user_name(user)} {mine}`"
    return f"{theirs} belongs to {owner}, as after a run with sudo: {back} makes it yours; then run this again"


def _user_name(user: int) -> str:
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)
