"""The files of a project: the folder with dockerfiles/, mods/, recipes/, builds/ and images.lock."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from builder.base import words
from builder.base.errors import UnsafePathError, UsageError
from builder.base.values import dataclass

# Everything that this program keeps in the state folder: folders with predictable names in them, other folders, files,
# and the prefixes of temporary names.
_WRITTEN_FOLDERS = ("bisecting", "evidence", "journal", "logs", "serve-logs", "unchanged", "upgrading")
_STATE_FOLDERS = (*_WRITTEN_FOLDERS, "downloads", "mirrors", "wheels", "work")
_STATE_FILES = (
    "advisories.json",
    "answered.json",
    "answered.lock",
    "checkpoints.json",
    "checkpoints.lock",
    "copies.lock",
    "engine.json",
    "id",
    "id.lock",
    "steptimes.json",
    "vllm-words.json",
)
_STATE_PREFIXES = (".", "engine", "new-", "node-", "merge-")


class _Below:
    """A path below the project's folder."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __get__(self, project: Project, _owner: type[Project]) -> Path:
        return project.root / self.path


@dataclass(frozen=True)
class Project:
    """A project folder. ``state`` contains logs, caches, and files of killed processes. It may be deleted while no
    command runs, except a mirror with a commit that upstream no longer has."""

    root: Path

    lock = _Below("images.lock")
    dockerfiles = _Below("dockerfiles")
    mods = _Below("mods")
    recipes = _Below("recipes")
    builds = _Below("builds")
    # The record of all checkpoints.
    checkpoints_lock = _Below("checkpoints.lock")
    # The recorded runs of numbered images, by repository and number: committed with images.lock.
    evidence = _Below("evidence")

    state = _Below(".builder")
    # The full output of benchmarks, and the files that mods fetch. Their names are SHA-256 digests.
    raw_evidence = _Below(".builder/evidence/raw")
    downloads = _Below(".builder/downloads")
    mirrors = _Below(".builder/mirrors")
    work = _Below(".builder/work")
    # Notes about numbers and pointers that a command is changing now.
    journal = _Below(".builder/journal")
    # Facts about the engine, and which images have served which models on this machine.
    engine_cache = _Below(".builder/engine.json")
    answered = _Below(".builder/answered.json")
    # The journals of running or interrupted upgrades and bisections.
    upgrading = _Below(".builder/upgrading")
    bisecting = _Below(".builder/bisecting")

    def build_directory(self, repository: str, number: int) -> Path:
        """The build directory of a number, which may not exist. Raises UnsafePathError if it would be elsewhere: a
        clone may contain links."""
        return below_project(below_project(self.root, self.builds), self.builds / repository / str(number))

    @property
    def unfinished(self) -> bool:
        """True if a process is building or recording an image, or was killed doing so."""
        return any(self.journal.glob("*")) or any(self.work.glob("*"))

    def relative(self, path: Path) -> str:
        """``path`` for messages: relative to the project's folder if it is below it. A link without a file has its own
        name."""
        resolved = path.resolve() if os.access(path, os.F_OK) else path.parent.resolve() / path.name
        return str(resolved.relative_to(self.root) if resolved.is_relative_to(self.root) else resolved)


def below_project(root: Path, path: Path) -> Path:
    """Returns ``path``. Raises UnsafePathError if it is not below ``root`` after all links are followed. Call this for
    a path that contains untrusted names, and before deleting."""
    if not (folder := path.resolve()).is_relative_to(root.resolve()) or folder == root.resolve():
        raise UnsafePathError(
            f"{path} leads out of {root}, to {folder}; nothing was changed",
            hint="a name with `..` or a link leads outside the project: find out where the name or link came from, then"
            " remove it",
        )
    return path


def find_project(start: Path) -> Project:
    """Finds the project that contains ``start``. Raises UsageError if neither it nor a folder above it contains
    ``dockerfiles/``, or if the project's path is not text; UnsafePathError if its state folder is elsewhere, or if
    other users may write to it."""
    try:
        start = start.resolve()
    except FileNotFoundError:
        raise UsageError("the current folder no longer exists", hint="change to another folder") from None
    for folder in (start, *start.parents):
        if (folder / "dockerfiles").is_dir():
            project = Project(folder)
            require_text(folder)
            _require_nobody_elses(project)
            _require_own_state(project)
            return project
    message = f"no project found: neither {start} nor a folder above it contains dockerfiles/"
    hint = "change to the project's folder, or name it: `builder --project FOLDER …`; `builder init` makes a project"
    raise UsageError(message, hint=hint)


def require_text(folder: Path) -> None:
    """Raises UsageError if the path of a project's folder is not UTF-8: files for BuildKit and labels contain it."""
    try:
        os.fsencode(folder).decode()
    except UnicodeDecodeError:
        message = f"the path {folder} is not UTF-8 text, so BuildKit and the engine cannot use it"
        raise UsageError(message, hint="rename the folder with the unreadable name") from None


def _require_nobody_elses(project: Project) -> None:
    """Raises UnsafePathError if the project folder or the state folder belongs to another user, or if everyone can
    write to it: commands trust its contents, and run some of them.

    A group with write access is trusted, and so is root. Like git, root trusts the user who called sudo.
    """
    me = os.geteuid()
    caller = os.environ.get("SUDO_UID", "")
    trusted = {me, 0, *([int(caller)] if me == 0 and caller.isdecimal() and len(caller) < 11 else [])}
    inner = [project.state / name for name in sorted(_STATE_FOLDERS)]
    for folder in (project.root, project.state, *inner):
        try:
            status = folder.stat()
        except OSError:
            continue
        shown = folder if folder == project.root else os.path.relpath(folder, project.root)
        if folder != project.root and status.st_uid not in trusted:
            message = f"{shown} belongs to another user (uid {status.st_uid}), so its contents are not trusted"
            own = f"`sudo chown -R {me} {words.shell_word(project.state)}`"
            hint = f"remove it if it came with other files, or take ownership: {own}"
            raise UnsafePathError(message, hint=hint)
        # In a sticky folder such as /tmp, users cannot rename or remove other users' files.
        is_sticky = folder == project.root and bool(status.st_mode & stat.S_ISVTX)
        if status.st_mode & stat.S_IWOTH and not is_sticky:
            message = f"every user of this machine can write to {shown}, so its contents are not trusted"
            hint = f"check its contents, then run: `chmod o-w {words.shell_word(folder)}`"
            raise UnsafePathError(message, hint=hint)


def _require_own_state(project: Project) -> None:
    """Raises UnsafePathError if the state folder is a link to a folder with other files, which a clone may contain:
    commands delete files in it by name. A link to an own folder on another disk is allowed."""
    try:
        entries = list(os.scandir(project.state))
    except OSError:
        return
    folder, is_linked = project.state.name, project.state.is_symlink()
    for name in _WRITTEN_FOLDERS:
        with suppress(OSError), os.scandir(project.state / name) as files:
            entries += [entry for entry in files if entry.is_symlink()]
    for entry in entries:
        is_ours = entry.name in (*_STATE_FOLDERS, *_STATE_FILES) or entry.name.startswith(_STATE_PREFIXES)
        if entry.is_symlink():
            place = os.path.relpath(entry.path, project.state)
            message = f"{folder}/{place} is a link that builder did not make"
            hint = "find out where the link came from, then remove it"
        elif is_linked and not is_ours:
            message = f"{folder} leads to {project.state.resolve()}, which contains other files, such as {entry.name}"
            hint = "if you made the link, point it to an empty folder; otherwise remove the link"
        else:
            continue
        raise UnsafePathError(message, hint=hint)
