"""A Hugging Face cache for tests, with the documented layout."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

COMMIT = "1" * 40
OTHER = "2" * 40


def add(home: Path, model: str, commit: str = COMMIT, *, ref: str = "main", content: bytes = b"weights") -> Path:
    """Puts one file of a model at ``commit`` below ``home`` (HF_HOME), and lets ``ref`` name the commit. Returns the
    model's folder."""
    folder = home / "hub" / f"models--{model.replace('/', '--')}"
    for name in ("blobs", "refs", f"snapshots/{commit}"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "blobs" / f"b{commit[0]}").write_bytes(content)
    (folder / "snapshots" / commit / "model.safetensors").symlink_to(f"../../blobs/b{commit[0]}")
    (folder / "refs" / ref).parent.mkdir(parents=True, exist_ok=True)
    (folder / "refs" / ref).write_text(commit)
    return folder
