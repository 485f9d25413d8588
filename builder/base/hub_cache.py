"""The Hugging Face cache of this machine, read from its files: its folder, and the revision and size of a cached model.
huggingface_hub can do the same, but takes a third of a second to import.

The layout (https://huggingface.co/docs/huggingface_hub/guides/manage-cache): ``models--ORG--NAME/`` with ``refs/NAME``
(the commit that a branch or tag pointed to), ``snapshots/COMMIT/`` (links) and ``blobs/`` (their targets).
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from builder.base.values import dataclass

MAIN = "main"
INCOMPLETE = ".incomplete"
_COMMIT = re.compile(r"[0-9a-f]{40}")
# Names that the hub allows; a model may have no organisation.
_ID = re.compile(r"(?=.{1,96}\Z)(?!.*(?:--|\.\.))\w[\w.-]*(?:/\w[\w.-]*)?", re.ASCII)
# https://docs.vllm.ai/en/stable/features/quantization/gguf/: the name of a repository, and which of its files.
_QUANTIZATION = re.compile(r"(?<=[^:/]):([A-Za-z][A-Za-z0-9_+-]*)\Z")


@dataclass(frozen=True)
class CachedModel:
    """A model in the cache: its size on disk in bytes, the commit of its ``main``; ``incomplete`` if a
    download was interrupted."""

    size: int
    revision: str | None
    incomplete: bool


def is_id(text: str) -> bool:
    """True if ``text`` can be the name of a model on the hub, rather than the path of a folder."""
    return _ID.fullmatch(repository(text)) is not None


def repository(model: str) -> str:
    """The name of a model on the hub, without a quantization at its end: ``org/name-GGUF:Q4_K_M``."""
    return _QUANTIZATION.sub("", model)


def quantization(model: str) -> str:
    """The quantization at the end of a model's name; empty if there is none."""
    named = _QUANTIZATION.search(model)
    return named[1] if named else ""


def is_commit(text: str) -> bool:
    """True if ``text`` is a full commit, rather than a branch or a tag."""
    return _COMMIT.fullmatch(text) is not None


def is_name(text: str) -> bool:
    """True if ``text`` can name a branch, a tag or a commit, and does not lead out of the folder of such names."""
    return bool(text) and not text.startswith("/") and ".." not in text and text.isprintable()


def home(environ: Mapping[str, str]) -> Path:
    """The folder of Hugging Face's programs
    (https://huggingface.co/docs/huggingface_hub/package_reference/environment_variables)."""
    user = environ.get("HOME") or "/root"
    text = environ.get("HF_HOME") or f"{environ.get('XDG_CACHE_HOME') or f'{user}/.cache'}/huggingface"
    return Path(f"{user}{text[1:]}" if text.startswith("~/") else text).absolute()


def hub(environ: Mapping[str, str]) -> Path:
    """The folder with the models."""
    named = environ.get("HF_HUB_CACHE") or environ.get("HUGGINGFACE_HUB_CACHE")
    return home({**environ, "HF_HOME": named}) if named else home(environ) / "hub"


def folder(environ: Mapping[str, str], model: str) -> Path:
    """The folder of one model, with all its quantizations."""
    return hub(environ) / folder_name(model)


def folder_name(model: str) -> str:
    """The name of the folder of one model."""
    return f"models--{repository(model).replace('/', '--')}"


def revision(environ: Mapping[str, str], model: str, name: str = MAIN) -> str | None:
    """The cached commit of a model for the name of a branch, a tag or the commit itself, or None."""
    if not is_id(model) or not is_name(name):
        return None
    model_folder = folder(environ, model)
    commit = name
    if not is_commit(name):
        try:
            commit = (model_folder / "refs" / name).read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            return None
    return commit if is_commit(commit) and (model_folder / "snapshots" / commit).is_dir() else None


def find_model(environ: Mapping[str, str], model: str) -> CachedModel | None:
    """Looks up a model in the cache; returns None if it is not there."""
    if not is_id(model):
        return None
    complete: set[str] = set()
    partial: set[str] = set()
    size = 0
    with suppress(OSError), os.scandir(folder(environ, model) / "blobs") as blobs:
        for blob in blobs:
            name = blob.name.partition(".")[0]
            (partial if blob.name.endswith(INCOMPLETE) else complete).add(name)
            # A blob may be a link into a store that all models share, and may be broken.
            with suppress(OSError):
                size += blob.stat().st_size
    # A restarted download leaves a partial blob, although the complete blob exists.
    return CachedModel(size, revision(environ, model), bool(partial - complete)) if complete | partial else None
