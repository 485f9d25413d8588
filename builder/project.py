"""The files of a project: the folder with dockerfiles/, mods/, recipes/, builds/ and images.lock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Project:
    """A project folder. What is in ``state`` may be deleted while no command runs: logs, caches, and what killed
    processes left; but for the mirror of a commit that upstream no longer has."""

    root: Path

    @property
    def lock(self) -> Path:
        return self.root / "images.lock"

    @property
    def dockerfiles(self) -> Path:
        return self.root / "dockerfiles"

    @property
    def mods(self) -> Path:
        return self.root / "mods"

    @property
    def recipes(self) -> Path:
        return self.root / "recipes"

    @property
    def builds(self) -> Path:
        return self.root / "builds"

    def build_directory(self, repository: str, number: int) -> Path:
        """The build directory of a number, which may not exist."""
        return self.builds / repository / str(number)

    @property
    def mirrors(self) -> Path:
        return self.state / "mirrors"

    @property
    def downloads(self) -> Path:
        """The files that mods take from addresses, each named after its SHA-256."""
        return self.state / "downloads"

    @property
    def work(self) -> Path:
        return self.state / "work"

    @property
    def journal(self) -> Path:
        """The journal: notes of the numbers being recorded and the pointers being moved right now."""
        return self.state / "journal"

    @property
    def state(self) -> Path:
        return self.root / ".builder"

    @property
    def engine_cache(self) -> Path:
        """The file in which facts about the engine are kept between runs."""
        return self.state / "engine.json"

    @property
    def unfinished(self) -> bool:
        """True if a process is building or recording an image, or was killed doing so."""
        return any(self.journal.glob("*")) or any(self.work.glob("*"))

    def relative(self, path: Path) -> str:
        """``path`` for messages: relative to the project's folder if it lies in it."""
        resolved = path.resolve()
        return str(resolved.relative_to(self.root) if resolved.is_relative_to(self.root) else resolved)


def find(start: Path) -> Project:
    """Finds the project that contains ``start``. Raises UsageError where neither it nor a folder above it contains
    ``dockerfiles/``."""
    for folder in (start.resolve(), *start.resolve().parents):
        if (folder / "dockerfiles").is_dir():
            return Project(folder)
    raise UsageError(
        f"no project here: neither {start.resolve()} nor a folder above it holds dockerfiles/",
        hint="go to the project's folder, or name it: builder --project FOLDER …",
    )
