"""The init command: makes a project of a folder, from the files that come with this program."""

from __future__ import annotations

import errno
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from builder import proc_files, release
from builder import project as projects
from builder.commands.init_parts import machine
from builder.errors import ConflictError, UsageError
from builder.lock import reading, writing
from builder.nodes import spark_facts
from builder.project import Project
from builder.shipped import planning, record, selection
from builder.shipped.record import InitRecord
from builder.sources.git import project_history
from builder.storage import atomic_file, atomic_folder

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from builder.diagnosis import Diagnosis
    from builder.shipped.planning import PlannedFile
    from builder.shipped.selection import Contents, Selection

PROC = Path("/proc")
# The name of files that a project is told by: it is there once everything else is.
_LAST = "dockerfiles"
_STAGED = "new-dockerfiles"


@dataclass(frozen=True)
class InitRequest:
    """A request to make a project in ``folder``. ``contents`` is None for what suits this machine."""

    folder: Path
    contents: Contents | None = None
    git: bool = False


@dataclass(frozen=True)
class InitResult:
    """A project that was made. ``reason`` says why it has these contents, where the user did not say; ``first`` is the
    recipe to begin with, None where there is none; ``kept`` are files of the folder that were there and are as they
    were; ``git`` is true where a repository was begun."""

    project: Project
    selection: Selection
    first: str | None
    reason: str
    written: tuple[str, ...]
    kept: tuple[str, ...]
    git: bool


def run(request: InitRequest, environ: Mapping[str, str], proc: Path = PROC) -> InitResult:
    """Makes the project. Whoever is killed meanwhile leaves no project, or all of it; run again, this completes it.

    Raises ConflictError, with nothing written, where the folder is a project already, lies in one, or has other files
    of these names; UsageError for a folder that cannot be one, LockError where images.lock was lost.
    """
    root = _folder(request.folder, environ)
    contents, reason = (request.contents, "") if request.contents else suited(proc)
    selected = selection.select(contents)
    project = Project(root)
    planned = planning.plan(project, selected.files, None)
    _require_no_conflict(root, planned)
    has_lock = project.lock.exists()
    reading.of(project)  # a damaged one, and a lost one, are told before anything is written
    atomic_file.make_folder(root)
    planning.write(project, [each for each in planned if each.state != "same" and not _is_last(each)])
    if not has_lock:
        with writing.writing(project.lock) as writer:
            writer.commit(selected.pins)
    digests = {each.path: record.digest(each.after) for each in planned if each.path not in selection.LINES}
    record.write(project, InitRecord(str(release.of_this_program()), contents, digests))
    _put_last(project, [each for each in planned if _is_last(each)])
    return InitResult(
        project=project,
        selection=selected,
        first=_first(selected, proc),
        reason=reason,
        written=(*(each.path for each in planned if each.state != "same"), *(() if has_lock else (project.lock.name,))),
        kept=(project.lock.name,) if has_lock else (),
        git=request.git and project_history.begin(root),
    )


def findings(project: Project, environ: Mapping[str, str], proc: Path = PROC) -> Iterator[Diagnosis]:
    """Tells what this machine has that a project can use: one after the other, as it is looked up."""
    return machine.findings(project, environ, proc)


def suited(proc: Path) -> tuple[Contents, str]:
    """The contents that suit this machine, and why."""
    if spark_facts.is_spark(proc):
        return "spark", "this is a DGX Spark"
    if any(proc.glob(proc_files.GPUS)):
        return "all", "this machine has an NVIDIA GPU"
    return "cpu", "this machine has no NVIDIA GPU"


def _first(selected: Selection, proc: Path) -> str | None:
    """The recipe whose image takes least to make, of those that this machine can serve where there are such."""
    if suited(proc)[0] == "cpu" and selected.contents == "all":
        without_gpu = selection.select("cpu").recipes
        return next((file for file in selected.recipes if file in without_gpu), None)
    return next(iter(selected.recipes), None)


def _folder(folder: Path, environ: Mapping[str, str]) -> Path:
    """The folder to make a project of. Raises UsageError for one that holds everything else, or is none."""
    root = folder.expanduser().resolve()
    if root.exists() and not root.is_dir():
        raise UsageError(f"{folder} is a file", hint="name a folder: it is made where it is missing")
    if root in {Path(root.anchor), Path(environ.get("HOME") or "/").resolve()}:
        raise UsageError(
            f"{root} holds other things than a project", hint="name a folder of its own: `builder init FOLDER`"
        )
    around: Project | None = None
    with suppress(UsageError):
        around = projects.find(root)
    if around and around.root == root:
        raise ConflictError(
            f"{root} is a project already: nothing was written",
            hint="`builder init --update` brings what is newer in this release",
        )
    if around:
        raise ConflictError(
            f"{root} lies in the project {around.root}: nothing was written", hint="name a folder outside of it"
        )
    return root


def _require_no_conflict(root: Path, planned: Sequence[PlannedFile]) -> None:
    if conflicts := [each.path for each in planned if each.state == "edited"]:
        raise ConflictError(
            f"{root} has other files of these names: nothing was written\n" + "\n".join(conflicts),
            hint="move them away, or name another folder",
        )


def _is_last(planned: PlannedFile) -> bool:
    return planned.path.startswith(f"{_LAST}/")


def _put_last(project: Project, planned: Sequence[PlannedFile]) -> None:
    """Writes the files that a project is told by aside, and gives them their place in one step."""
    staged = project.state / _STAGED
    shutil.rmtree(staged, ignore_errors=True)
    for each in planned:
        path = staged / Path(each.path).relative_to(_LAST)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(each.after)
        path.chmod(0o755 if each.file.executable else 0o644)
    try:
        atomic_folder.put_in_place(staged, project.dockerfiles)
    except OSError as error:
        if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
            raise
        raise ConflictError(
            f"another process has made {project.root} a project meanwhile", hint="`builder list` shows what is there"
        ) from None
