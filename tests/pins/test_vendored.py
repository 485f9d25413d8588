"""The files of patches: the definition's own are the user's, and the others are written where they are missing."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING

from builder.definitions.source_patches import SourcePatch
from builder.lock.model import GitPin, Pins
from builder.pins import vendored
from tests import projects

if TYPE_CHECKING:
    from pathlib import Path

DATE = "2026-01-01T00:00:00Z"


def test_a_patch_file_that_was_edited_or_removed_during_a_build_is_left_alone(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    built = {sha256(content).hexdigest(): content for content in (b"edited", b"removed", b"pull")}
    edited, removed, pull = built
    patches = (
        SourcePatch("fixes/a.patch", sha256=edited),
        SourcePatch("fixes/b.patch", sha256=removed),
        SourcePatch("7", "a" * 40, pull),
    )
    pins = Pins(sources={"vllm": GitPin("https://x/vllm", "main", "b" * 40, "0.1", DATE, patches)})
    folder = project.dockerfiles / "small"
    projects.write(folder / "fixes/a.patch", "edited since")
    vendored.keep_vendored(project, "small", pins, built)
    assert (folder / "fixes/a.patch").read_text(encoding="utf-8") == "edited since"
    assert not (folder / "fixes/b.patch").exists()
    assert vendored.patch_file(project, "small", "vllm", patches[2]).read_bytes() == b"pull"
