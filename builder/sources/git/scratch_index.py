"""A temporary index on top of a mirror: trees and patches are tried in it, and the mirror stays as it is."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from builder.sources.git.git_command import GitRepository, GitResult, run_checked, run_local

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_APPLY = ["apply", "--cached", "--whitespace=nowarn"]


@dataclass(frozen=True)
class ScratchIndex:
    """The index in ``folder``; new objects go there, too."""

    repository: GitRepository
    folder: Path

    @property
    def environ(self) -> Mapping[str, str]:
        """The variables that make git use it."""
        return {
            "GIT_INDEX_FILE": str(self.folder / "index"),
            "GIT_OBJECT_DIRECTORY": str(self.folder / "objects"),
            # In quotes: a path may hold a colon.
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": f'"{self.repository.path / "objects"}"',
        }

    def git(self, arguments: Sequence[str], stdin: bytes = b"") -> GitResult:
        """Runs git with this index; a failure is for the caller to judge."""
        return run_local(self.repository, arguments, stdin, environ=self.environ)

    def checked(self, arguments: Sequence[str], stdin: bytes = b"") -> GitResult:
        """Runs git with this index, where a failure can only mean that the mirror is damaged. Raises as ``run_checked``
        does."""
        return run_checked(self.repository, arguments, stdin, environ=self.environ)

    def read(self, tree: str) -> None:
        """Makes the index that of a commit or tree."""
        self.checked(["read-tree", tree])

    def apply_error(self, diff: bytes, *options: str) -> str:
        """Applies ``diff`` to the index; returns git's error, empty if it applies."""
        result = self.git([*_APPLY, *options], diff)
        return (result.stderr or "git said nothing") if result.status else ""

    def tree(self) -> str:
        """Writes the index as a tree; returns its object name."""
        return self.checked(["write-tree", "--missing-ok"]).text  # most contents were never fetched


@contextlib.contextmanager
def opened(repository: GitRepository) -> Iterator[ScratchIndex]:
    """An empty index, which is gone when the block ends."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="builder-") as name:
        folder = Path(name)
        (folder / "objects").mkdir()
        yield ScratchIndex(repository, folder)
