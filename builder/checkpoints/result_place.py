"""The folders of results: in the Hugging Face cache, whose layout other programs read, or in a folder of the user's."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from builder.checkpoints import named_folder
from builder.storage import huggingface_cache

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.project import Project

UNFINISHED = ".unfinished-"
"""Begins the names of what is being made, or was when its process was killed."""


@dataclass(frozen=True)
class ResultPlace:
    """The place of a checkpoint's results. ``root`` is the model's folder in the cache, with snapshots and blobs, or a
    plain folder that has each revision as a folder."""

    name: str
    root: Path
    is_cache: bool

    def folder(self, revision: str) -> Path:
        """The folder of a revision, which holds its files or links to them."""
        return self.root / "snapshots" / revision if self.is_cache else self.root / revision

    def has(self, revision: str) -> bool:
        """True if the revision is here."""
        return self.folder(revision).is_dir()

    def revisions(self) -> tuple[str, ...]:
        """The revisions that are here, sorted."""
        parent = self.folder("0").parent
        if not parent.is_dir():
            return ()
        return tuple(sorted(path.name for path in parent.iterdir() if huggingface_cache.is_commit(path.name)))


def model_id(name: str) -> str:
    """The name of a checkpoint as that of a model in the cache; the Hub has none of this organisation."""
    return f"checkpoint/{name}"


def of(project: Project, environ: Mapping[str, str], name: str, folder: str | None) -> ResultPlace:
    """The place of the results of a checkpoint; ``folder`` is the one that its definition or record names."""
    if folder is None:
        return ResultPlace(name, huggingface_cache.folder(environ, model_id(name)), is_cache=True)
    return ResultPlace(name, named_folder.expanded(project, environ, folder) / name, is_cache=False)
