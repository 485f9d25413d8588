"""The Hugging Face cache of this machine, read from its files: where it is, which revision of a model it holds, and how
much of it. huggingface_hub could tell, but takes a third of a second to import.

The layout (https://huggingface.co/docs/huggingface_hub/guides/manage-cache): ``models--ORG--NAME/`` with ``refs/NAME``
(the commit that a branch or tag led to), ``snapshots/COMMIT/`` (links) and ``blobs/`` (what they lead to).
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

MAIN = "main"
INCOMPLETE = ".incomplete"
_COMMIT = re.compile(r"[0-9a-f]{40}")
# What the hub allows; a model may have no organisation.
_ID = re.compile(r"(?=.{1,96}\Z)(?!.*(?:--|\.\.))\w[\w.-]*(?:/\w[\w.-]*)?", re.ASCII)


@dataclass(frozen=True)
class CachedModel:
    """A model in the cache: the bytes that it takes on disk, the commit that its ``main`` led to, and whether
    a download was broken off."""

    size: int
    revision: str | None
    incomplete: bool


def is_id(text: str) -> bool:
    """Whether ``text`` can be a model's name on the hub; a folder's path is none."""
    return _ID.fullmatch(text) is not None


def is_commit(text: str) -> bool:
    """Whether ``text`` is a whole commit, in place of a branch or a tag."""
    return _COMMIT.fullmatch(text) is not None


def is_name(text: str) -> bool:
    """Whether ``text`` can name a branch, a tag or a commit, and stays below the folder of such names."""
    return bool(text) and not text.startswith("/") and ".." not in text and text.isprintable()


def home(environ: Mapping[str, str]) -> Path:
    """The folder of everything that Hugging Face's programs keep
    (https://huggingface.co/docs/huggingface_hub/package_reference/environment_variables)."""
    user = environ.get("HOME") or "/root"
    text = environ.get("HF_HOME") or f"{environ.get('XDG_CACHE_HOME') or f'{user}/.cache'}/huggingface"
    return Path(f"{user}{text[1:]}" if text.startswith("~/") else text).absolute()


def hub(environ: Mapping[str, str]) -> Path:
    """The folder with the models."""
    named = environ.get("HF_HUB_CACHE") or environ.get("HUGGINGFACE_HUB_CACHE")
    return home({**environ, "HF_HOME": named}) if named else home(environ) / "hub"


def folder(environ: Mapping[str, str], model: str) -> Path:
    """The folder of one model."""
    return hub(environ) / f"models--{model.replace('/', '--')}"


def revision(environ: Mapping[str, str], model: str, name: str = MAIN) -> str | None:
    """The commit that the cache holds of a model under the name of a branch, a tag or the commit itself; None where it
    holds none."""
    if not is_id(model) or not is_name(name):
        return None
    place = folder(environ, model)
    commit = name
    if not is_commit(name):
        try:
            commit = (place / "refs" / name).read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            return None
    return commit if is_commit(commit) and (place / "snapshots" / commit).is_dir() else None


def find_model(environ: Mapping[str, str], model: str) -> CachedModel | None:
    """Looks up a model in the cache; returns None if nothing of it is there."""
    if not is_id(model):
        return None
    whole: set[str] = set()
    parts: set[str] = set()
    size = 0
    with suppress(OSError), os.scandir(folder(environ, model) / "blobs") as blobs:
        for blob in blobs:
            name = blob.name.partition(".")[0]
            (parts if blob.name.endswith(INCOMPLETE) else whole).add(name)
            # A blob may be a link into a store that all models share; it may lead nowhere.
            with suppress(OSError):
                size += blob.stat().st_size
    # A part whose whole is there too was left behind by a download that was begun again.
    return CachedModel(size, revision(environ, model), bool(parts - whole)) if whole | parts else None
