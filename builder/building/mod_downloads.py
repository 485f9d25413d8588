"""Files of mods that come from an address: fetched before a build, and kept under their digest in the state folder.

A build takes them from its build directory, and never from the network.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from typing import TYPE_CHECKING

from builder.definitions.mods import mod_problems, mod_reading
from builder.definitions.mods.mod import FETCHED
from builder.definitions.mods.mod_files import LARGEST_FILE, ModFile
from builder.errors import FileProblemsError, SourceError
from builder.events import Message
from builder.sources import environment, web_file
from builder.sources.git import credentials
from builder.storage import atomic_file, regular_file, unfinished_file

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from builder.definitions.mods.mod import FileCopy, Mod
    from builder.project import Project
    from builder.workspace import Workspace

_SHA256 = re.compile("[0-9a-f]{64}")


def fetch(workspace: Workspace, mods: Sequence[tuple[Mod, ...]]) -> tuple[tuple[Mod, ...], ...]:
    """Returns ``mods``, those of each definition of a chain, with the files from addresses; what was fetched before
    takes no network.

    Raises SourceError where an address has other content than mod.yaml says, or does not answer, and FileProblemsError
    where it is a chat template that cannot be compiled.
    """
    return tuple(tuple(_with_files(workspace, mod) for mod in own) for own in mods)


def stale(project: Project) -> tuple[Path, ...]:
    """The downloads that no mod of the project names, and what killed processes left of others; none where a mod cannot
    be read, since nobody knows what it names. Other files in their folder are not among them."""
    try:
        mods = mod_reading.load_all(project, mod_reading.names(project))
    except FileProblemsError:
        return ()
    named = {copy.sha256 for mod in mods for copy in mod.copies if copy.is_remote}
    files = sorted(path for path in project.downloads.glob("*") if path.is_file() and not path.is_symlink())
    return tuple(
        path
        for path in files
        if unfinished_file.is_abandoned(path) or (_SHA256.fullmatch(path.name) and path.name not in named)
    )


def _with_files(workspace: Workspace, mod: Mod) -> Mod:
    remote = {copy.staged: (index, copy) for index, copy in enumerate(mod.copies) if copy.is_remote}
    files = (
        ModFile(staged, executable=False, content=_content(workspace, mod, index, copy))
        for staged, (index, copy) in remote.items()
    )
    if not remote:
        return mod
    complete = replace(mod, fetched=tuple(files))
    mod_problems.require_templates([complete])
    return complete


def _content(workspace: Workspace, mod: Mod, index: int, copy: FileCopy) -> bytes:
    kept = workspace.project.downloads / copy.sha256
    content = _if_intact(kept, copy.sha256)
    if content is not None:
        return content
    ca_file = environment.read(workspace.environment).ca_file

    def notify(text: str) -> None:
        workspace.report(Message(text))

    address = credentials.split(copy.source).url
    notify(f"fetching {address} for mod {mod.name}")
    try:
        content = web_file.download(copy.source, LARGEST_FILE, ca_file, notify)
    except SourceError:
        content = _from_builds(workspace.project, copy)
        if content is None:
            raise
        notify(f"{address} cannot be fetched: its content is taken from an earlier build")
    digest = hashlib.sha256(content).hexdigest()
    if digest != copy.sha256:
        raise SourceError(
            f"{mod.location('files', index, 'from')}: {address} has another content:\n"
            f"  sha256 {digest} is what is there today,\n  sha256 {copy.sha256} is what mod.yaml says",
            hint=f"look at what has changed there; `builder mods pin {mod.name}` takes what is there today",
        )
    kept.parent.mkdir(parents=True, exist_ok=True)
    atomic_file.write(kept, content)
    return content


def _from_builds(project: Project, copy: FileCopy) -> bytes | None:
    """The content from the build directory of an image that was built with it; None where there is none."""
    for path in sorted(project.builds.glob(f"**/{FETCHED}/{copy.sha256}/*")):
        content = _if_intact(path, copy.sha256)
        if content is not None:
            return content
    return None


def _if_intact(path: Path, sha256: str) -> bytes | None:
    try:
        content = regular_file.read(path, LARGEST_FILE)
    except OSError:
        return None
    return content if hashlib.sha256(content).hexdigest() == sha256 else None
