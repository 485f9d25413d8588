"""A model's tokenizer, config and template, without its weights: from a cache of this machine, or from the hub once."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from builder.definitions.recipes import volumes
from builder.errors import SourceError
from builder.events import Message
from builder.proving import stand_in
from builder.storage import huggingface_cache

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.definitions.recipes.recipe import Recipe
    from builder.sources.huggingface.hub_models import ModelFile
    from builder.workspace import Workspace

_SUFFIXES = frozenset({".json", ".jinja", ".txt", ".model", ".tiktoken", ".py"})
_TOKENIZERS = frozenset({"tokenizer.json", "tokenizer.model", "vocab.json", "tekken.json", "tiktoken.model"})
_LARGEST = 64 * 1024 * 1024


@dataclass(frozen=True)
class ModelFiles:
    """The files of a model's folder by name, at ``commit`` where that is known; ``stand_in`` says why they are not the
    model's own, and is empty where they are."""

    files: Mapping[str, bytes]
    commit: str | None = None
    stand_in: str = ""

    @property
    def digest(self) -> str:
        """Tells this tokenizer from another one, in hex digits."""
        digest = hashlib.sha256()
        for name in sorted(_TOKENIZERS & self.files.keys()):
            digest.update(name.encode() + b"\0" + self.files[name])
        return digest.hexdigest()[:16]


def of(workspace: Workspace, recipe: Recipe, model: str, revision: str | None) -> ModelFiles:
    """The files of ``model``, as the recipe loads it; where they cannot be had, what stands in for them."""
    if not huggingface_cache.is_id(model):
        return _of_folder(_mounted_folder(workspace, recipe, model)) or _standing_in(f"{model} is no model of the hub")
    wanted = revision or huggingface_cache.MAIN
    if cached := _cached(workspace.environment, model, wanted):
        return cached
    # Beside the hub's own cache: a model without weights in there would look downloaded.
    own = _own_cache(workspace)
    if huggingface_cache.is_commit(wanted) and (kept := _cached(own, model, wanted)):
        return kept
    try:
        return _fetch(workspace, model, wanted)
    except SourceError as error:
        return _cached(own, model, wanted) or _standing_in(error.message)


def _cached(environ: Mapping[str, str], model: str, revision: str) -> ModelFiles | None:
    commit = huggingface_cache.revision(environ, model, revision)
    files = _of_folder(huggingface_cache.folder(environ, model) / "snapshots" / commit) if commit else None
    return replace(files, commit=commit) if files else None


def _standing_in(reason: str) -> ModelFiles:
    return ModelFiles(stand_in.files(), stand_in=reason)


def _own_cache(workspace: Workspace) -> dict[str, str]:
    return {**workspace.environment, "HF_HUB_CACHE": str(workspace.project.state / "tokenizers")}


def _mounted_folder(workspace: Workspace, recipe: Recipe, path: str) -> Path | None:
    """The folder of this machine that the recipe mounts where the server finds its model."""
    return mounted(workspace, recipe, path)


def mounted(workspace: Workspace, recipe: Recipe, path: str) -> Path | None:
    """The file or folder of this machine at a path in the server's container; None where the recipe mounts none."""
    for text in reversed(recipe.volumes):
        try:
            mount = volumes.parse(text, workspace.environment, workspace.project.root)
            return Path(mount.source, PurePosixPath(path).relative_to(mount.target))
        except ValueError:
            continue
    return None


def _of_folder(folder: Path | None) -> ModelFiles | None:
    """The files in a folder that has a tokenizer and a config."""
    try:
        paths = [path for path in folder.iterdir() if _is_wanted(path.name)] if folder else []
        files = {path.name: path.read_bytes() for path in paths if path.is_file() and path.stat().st_size <= _LARGEST}
    except OSError:
        return None
    return ModelFiles(files) if _is_whole(files) else None


def _is_wanted(name: str) -> bool:
    return Path(name).suffix in _SUFFIXES and not name.endswith(".index.json")


def _is_whole(files: Mapping[str, bytes]) -> bool:
    return "config.json" in files and bool(_TOKENIZERS & files.keys())


def _fetch(workspace: Workspace, model: str, revision: str) -> ModelFiles:
    from builder.sources.huggingface import hub_models

    environ = _own_cache(workspace)
    snapshot = hub_models.find_snapshot(environ, model, revision)
    wanted = tuple(filter(_is_small, snapshot.files))
    if not wanted:
        raise SourceError(f"{model} has no files of a tokenizer")
    workspace.report(Message(f"fetching the tokenizer of {model} at {snapshot.commit[:12]}, without the weights"))
    folder = hub_models.fetch(environ, replace(snapshot, files=wanted), lambda _: None)
    fetched = _of_folder(folder)
    if fetched is None:
        raise SourceError(f"{model} has no tokenizer or no config")
    return replace(fetched, commit=snapshot.commit)


def _is_small(file: ModelFile) -> bool:
    return "/" not in file.path and _is_wanted(file.path) and file.size <= _LARGEST
