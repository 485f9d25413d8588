"""The errors that a user can meet, each with its exit code.

A message has three parts: what happened and where (``FILE:LINE:COLUMN`` if a file is at fault), why, if that helps, and
what to do next (``hint``). Only the command line turns an error into text and an exit code.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from builder.base.values import dataclass

BUG = 3
"""The exit code of any other exception."""
INTERRUPTED = 130
"""The exit code after ^C or SIGTERM."""
CLOSED_PIPE = 141
"""The exit code if the reader of the output ended first, as ``head -1`` does; a shell gives the same to SIGPIPE."""


class BuilderError(Exception):
    """An error that the user can understand and act on; any other exception that escapes is a bug (exit 3). ``log``
    names the file with the complete output of what failed, if there is one."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str = "", log: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.log = log


@dataclass(frozen=True, order=True)
class Location:
    """A position in a file; ``line`` and ``column`` count from 1, as in editors. Line 0 means the file as a whole, or a
    folder."""

    file: str
    line: int = 1
    column: int = 1

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file


@dataclass(frozen=True, order=True)
class Problem:
    """A problem in a file that the user wrote."""

    location: Location
    message: str

    def __str__(self) -> str:
        """One line that is safe to print: text quoted from the file may contain line breaks and control characters."""
        line = f"{self.location}: {self.message}"
        return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)


class NothingToDoError(BuilderError):
    """Nothing to do: no image to roll back to, a number that is current already, no image to recover."""


class ConflictError(BuilderError):
    """A conflict with the present state: an image in use or marked bad, a taken port or name, an edited file."""


class UnsafePathError(BuilderError):
    """A path that leads out of its folder, by `..` or by a link: nothing is read, written or deleted there."""


class UsageError(BuilderError):
    """An invalid command: an unknown target, an impossible combination of options."""

    exit_code = 2


class FileProblemsError(BuilderError):
    """One or several files that the user wrote are invalid; it holds all problems found."""

    exit_code = 2

    def __init__(self, problems: tuple[Problem, ...], *, hint: str = "") -> None:
        super().__init__("\n".join(str(problem) for problem in sorted(problems)), hint=hint)
        self.problems = problems


def require_no_problems(problems: Iterable[Problem]) -> None:
    """Raises FileProblemsError with ``problems``, if there are any."""
    if wrong := tuple(problems):
        raise FileProblemsError(wrong)


class SourceError(BuilderError):
    """A source could not be resolved: no such version, or an index or registry that does not answer."""

    exit_code = 6


class ModelUnavailableError(SourceError):
    """A model that is not available: the hub has no such model or revision, or not for this user; or the cache lacks a
    model that may come only from there."""


class LockError(BuilderError):
    """images.lock is damaged, lost, newer than this program, or lacks a pin that is needed."""

    exit_code = 4


class NewerLockError(LockError):
    """images.lock was written by another version of this program."""


class LockBusyError(LockError):
    """Another process holds images.lock for longer than this one waits."""


class EngineError(BuilderError):
    """No Docker engine answers, or it lacks something (buildx, a recent version)."""

    exit_code = 5


class BuildFailedError(BuilderError):
    """BuildKit, or a check or proof of the finished image, failed."""

    exit_code = 6


class BaseGoneError(BuildFailedError):
    """BuildKit could not get a pinned base image from its registry; ``reference`` is its name with the digest."""

    def __init__(self, message: str, *, reference: str, log: str = "", hint: str = "") -> None:
        super().__init__(message, log=log, hint=hint)
        self.reference = reference


class TreeGoneError(BuildFailedError):
    """BuildKit could not fetch a source tree from its repository; ``address`` is the build context, ``URL#COMMIT``."""

    def __init__(self, message: str, *, address: str, log: str = "") -> None:
        super().__init__(message, log=log)
        self.address = address


class DiskFullError(BuildFailedError):
    """A build that ended because a disk was full: it says nothing about the image."""


class ImageStateError(BuilderError):
    """An image that images.lock records is missing from the engine, or its tag points at other content."""

    exit_code = 7


class ServeFailedError(BuilderError):
    """A server could not be started, or ended before it answered."""


class NoImageHelpsError(ServeFailedError):
    """A server that ended for a reason other than its image: a missing model, a context that is too long for the model,
    a port that is taken."""


class ImageContentsError(BuilderError):
    """An image lacks something that is required: a Python, a vLLM, or programs that this engine can run."""

    exit_code = 7


class TransferError(BuilderError):
    """An image could not, or must not, be transferred to or from a registry or another machine."""


class SystemFailureError(BuilderError):
    """The system refuses: a full or failing disk, a file of another user, no memory or open files left."""

    exit_code = 8


class NodeError(BuilderError):
    """A node's machine cannot be reached, or lacks a program that describes it."""


class MeasuringError(BuilderError):
    """A measurement that could not take place: no tool, no tokenizer, a server that does not answer like vLLM. A server
    that fails while it is measured is a result, not an error."""
