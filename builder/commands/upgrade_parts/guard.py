"""The guard of an upgrade: a process of its own, which puts the server back where the upgrade was killed.

It reads from a pipe whose other end the upgrade alone holds, and so learns of its end however that comes. The journal
then says what is left to do: nothing, once it is gone. It is in a session of its own, so that what ends the terminal's
processes leaves it, and it has loaded what it needs before it waits. Where everything is ended at once (a loss of
power), the engine starts the server again with the machine (`beside.step_aside`).
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import builder
from builder.commands.upgrade_parts import server
from builder.errors import BuilderError
from builder.events import Message
from builder.project import Project
from builder.redaction import redacted
from builder.storage import regular_file
from builder.storage.file_lock import LockHeldError
from builder.upgrading import journal
from builder.workspace import open_workspace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.upgrading.steps import Upgrade
    from builder.workspace import Workspace

# The upgrade lets go of its end of the pipe a moment before its lock.
_LOCK_SECONDS = 5.0
# What it asked of the engine last may still be under way: a container that is about to be there.
_ENGINE_SECONDS = 1.0


@contextmanager
def watching(workspace: Workspace, upgrade: Upgrade) -> Iterator[None]:
    """Has a guard watch this process for as long as it takes the steps of ``upgrade``, which has a server to put
    back."""
    if not upgrade.served:
        yield
        return
    project = workspace.project
    program = [sys.executable, "-P", "-m", __name__, str(project.root), upgrade.subject, upgrade.target]
    folder = str(Path(builder.__file__).parent.parent)
    environ = {**workspace.environment, "PYTHONPATH": folder}
    reading, writing = os.pipe()
    try:
        path, flags = journal.log_path(project, upgrade.subject), os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        with os.fdopen(regular_file.opened(path, flags), "wb") as log:
            subprocess.Popen(program, stdin=reading, stdout=log, stderr=log, env=environ, start_new_session=True)
        os.close(reading)
        yield
    finally:
        os.close(writing)


def put_back(workspace: Workspace, subject: str, target: str) -> None:
    """Leaves the server on what counts where the upgrade of ``subject`` ended without having done so. ``target`` is
    what was typed."""
    with journal.taken_over(workspace.project, subject, _LOCK_SECONDS):
        upgrade = journal.read(workspace.project, subject)
        if upgrade is None:
            return
        upgrade = replace(upgrade, target=target)
        if upgrade.stage == "settle":
            server.settle(workspace, upgrade)
        else:
            server.serve_as_before(workspace, upgrade)


def _main(root: str, subject: str, target: str) -> None:
    workspace = open_workspace(Project(Path(root)), os.environ, _write)
    sys.stdin.buffer.read()
    time.sleep(_ENGINE_SECONDS)
    try:
        put_back(workspace, subject, target)
    except LockHeldError:  # another upgrade of it began at this very moment, and puts the server back itself
        return
    except BuilderError as error:
        _write(Message(f"error: {error.message}"))


def _write(event: object) -> None:
    """Writes a message to the log."""
    if isinstance(event, Message):
        sys.stderr.write(f"{redacted(event.text)}\n")
        sys.stderr.flush()


if __name__ == "__main__":
    _main(*sys.argv[1:])
