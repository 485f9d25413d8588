"""The identity of a project: by it, projects that share an engine tell what is theirs from what is another's.

Each clone has its own, in ``.builder/id``. It is bound to the folder by the folder's inode, so that a copy of a project
(``cp -a``) is another project, and one that was moved or is mounted elsewhere stays the same.
"""

from __future__ import annotations

import json
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.project import Project

PROJECT = "builder.project"  # the label with the id; the others are this one's
_PATH, _HOST, _MACHINE = f"{PROJECT}.path", f"{PROJECT}.host", f"{PROJECT}.machine"
_ID = re.compile("[0-9a-f]{32}")
_LONGEST = 4096  # bytes of a file that anybody may have written


@dataclass(frozen=True)
class ProjectIdentity:
    """The identity of a project: its random ``id``, and where it lies. ``host`` is for messages, ``machine`` tells
    machines apart; both are empty where they are not known."""

    id: str
    path: str
    host: str = ""
    machine: str = ""

    @property
    def labels(self) -> dict[str, str]:
        """The labels by which others know it."""
        return {PROJECT: self.id, _PATH: self.path, _HOST: self.host, _MACHINE: self.machine}

    def __str__(self) -> str:
        return f"the project in {self.path}" + (f" on {self.host}" if self.host else "")


def of(project: Project) -> ProjectIdentity:
    """The identity of a project, which gets one where it has none yet. Raises OSError where it cannot be written."""
    return _here(project, existing(project) or _created(project))


def existing(project: Project) -> str:
    """The id of a project; empty where it has none yet."""
    return _read(project.root)


def of_labels(labels: Mapping[str, str]) -> ProjectIdentity:
    """The identity that labels tell; that of nobody where they tell none."""
    path, host = labels.get(_PATH, "?"), labels.get(_HOST, "")
    return ProjectIdentity(labels.get(PROJECT, ""), path, host, labels.get(_MACHINE, ""))


def is_gone(identity: ProjectIdentity) -> bool:
    """True for a project of this machine whose folder is no longer there, or is another project now. On another
    machine, and where the folder may not be looked into, nobody can tell: it counts as there."""
    if not identity.machine or identity.machine != _machine():
        return False
    try:
        return _read(Path(identity.path)) != identity.id
    except (OSError, ValueError):
        return False


def _here(project: Project, own_id: str) -> ProjectIdentity:
    return ProjectIdentity(own_id, str(project.root), os.uname().nodename, _machine())


def _machine() -> str:
    """A name for this machine that no other has; machine-id(5) asks not to show its own. Containers mostly have none,
    and may share the host's name: their file systems tell them apart."""
    from hashlib import sha256

    try:
        machine_id = Path("/etc/machine-id").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        machine_id = ""
    own = machine_id or f"file system {Path('/').stat().st_dev}"
    return sha256(f"builder {own} {os.uname().nodename}".encode()).hexdigest()[:16]


def _file(root: Path) -> Path:
    return root / ".builder" / "id"


def _read(root: Path) -> str:
    """The id in the project folder ``root``; empty where there is none, or it is that of another folder. Raises OSError
    where that cannot be told."""
    try:
        # The folder may be one that a stranger's label names: neither a pipe nor a device is waited for.
        descriptor = os.open(_file(root), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
        with os.fdopen(descriptor, "rb") as file:
            content = file.read(_LONGEST) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""
        inode = root.stat().st_ino
    except (FileNotFoundError, NotADirectoryError):
        return ""
    try:
        recorded = json.loads(content)
        own_id, of_inode = recorded["id"], recorded["inode"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return ""
    return own_id if of_inode == inode and isinstance(own_id, str) and _ID.fullmatch(own_id) else ""


def _created(project: Project) -> str:
    from builder.storage import atomic_file, file_lock

    project.state.mkdir(parents=True, exist_ok=True)
    with file_lock.locked(project.state / "id.lock"):
        # Another process may have been first.
        if not (own_id := existing(project)):
            own_id = os.urandom(16).hex()
            content = json.dumps({"id": own_id, "inode": project.root.stat().st_ino})
            atomic_file.write_alone(_file(project.root), f"{content}\n".encode())
    return own_id
