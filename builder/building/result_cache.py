"""What a build with nothing to do said, remembered: the same question about the same files needs no thought.

As git does with its index, files are known by their time of change, size and inode: whoever writes to a file, or puts
another in its place, changes the first, and cannot set it. What the engine has is asked each time. The memory lies in
the project's state folder, which may be deleted at any time.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from builder.numbered import contents
from builder.storage import state_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from builder.building.prepare import Prepared
    from builder.project import Project
    from builder.workspace import Workspace

_KEPT = 64
# More files than this take longer to look at than to think.
_MOST_FILES = 20_000
# A file written to twice within a tick of its file system's clock has one time of change. Linux's tick is 10 ms at
# most; a time in whole seconds comes from a file system that knows no others.
_TICK = 100_000_000
_COARSE_TICK = 2_000_000_000
_PROGRAM = Path(__file__).parent.parent


@dataclass(frozen=True)
class Question:
    """A build that was asked for, of files as they are: ``path`` is where its answer is kept, ``files`` a digest of
    their states. It is ``settled`` where no later change of theirs can look like this."""

    path: Path
    files: str
    settled: bool


def ask(workspace: Workspace, words: Sequence[object]) -> Question | None:
    """The question that ``words`` (what was typed, of types that print what they hold) ask of the project as it is now.

    None where it has too many files, or one that cannot be looked at, and where somebody builds or was killed building.
    """
    if workspace.project.unfinished:
        return None
    states = hashlib.sha256()
    newest = 0
    try:
        asked = hashlib.sha256(repr((workspace.engine.host, Path.cwd(), *words)).encode()).hexdigest()
        for number, path in enumerate(_files(workspace.project)):
            if number > _MOST_FILES:
                return None
            found = _state(path)
            newest = max(newest, found.st_ctime_ns)
            states.update(os.fsencode(path))
            states.update(f"\0{found.st_ctime_ns} {found.st_size} {found.st_ino} {found.st_dev}\0".encode())
    except OSError:
        return None
    tick = _TICK if newest % 1_000_000_000 else _COARSE_TICK
    return Question(workspace.project.state / "unchanged" / asked, states.hexdigest(), newest < time.time_ns() - tick)


def recall(workspace: Workspace, question: Question) -> tuple[str, ...] | None:
    """What was said the last time; None where it was never asked, or where the files or the images in the engine are no
    longer those of then."""
    try:
        kept = json.loads(question.path.read_bytes())
    except (OSError, ValueError):
        return None
    if not isinstance(kept, dict) or kept.get("files") != question.files:
        return None
    found = contents.look(workspace, kept["repositories"], kept["images"])
    return tuple(kept["said"]) if found.fingerprints == kept["images"] else None


def keep(question: Question, wanted: Sequence[Prepared], said: Iterable[str]) -> None:
    """Remembers what was ``said`` of plans that are all built already, where it will hold as long as nothing changes.

    That is not so where a later number of the same inputs may come back into the engine, and for a recipe that lies
    outside of the project's own folder of them.
    """
    images: dict[str, str] = {}
    for prepared in wanted:
        name = prepared.compared.already
        if name is None or (prepared.recipe and not prepared.recipe.file.startswith("recipes/")):
            return
        numbers = prepared.lock.images[name.repository].numbers
        if name.number != max(n for n, one in numbers.items() if one.input_hash == prepared.plan.input_hash):
            return
        images[str(name)] = numbers[name.number].fingerprint
    if not question.settled or not wanted:
        return
    answer: Mapping[str, object] = {
        "files": question.files,
        "repositories": list(wanted[0].lock.images),
        "images": images,
        "said": list(said),
    }
    state_file.write(question.path, json.dumps(answer).encode())
    # Another process may be doing the same.
    with suppress(OSError):
        oldest_first = sorted(question.path.parent.glob("*"), key=lambda path: path.stat().st_mtime)
        for path in oldest_first[:-_KEPT]:
            path.unlink()


def _files(project: Project) -> Iterator[Path]:
    """Everything that a plan is made from, the program included. The project's folder itself tells of recipes that come
    to lie in it."""
    yield from (project.root, project.lock)
    for folder in (project.dockerfiles, project.mods, project.recipes):
        yield from _below(folder)
    yield from (path for path in _below(_PROGRAM) if path.suffix != ".pyc")


def _below(folder: Path) -> Iterator[Path]:
    for path, folders, names in os.walk(folder, followlinks=True):
        folders.sort()
        yield Path(path)
        yield from (Path(path, name) for name in sorted(names))


def _state(path: Path) -> os.stat_result:
    try:
        return path.stat()
    except FileNotFoundError:
        return path.lstat()  # a link that leads nowhere
