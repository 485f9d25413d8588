"""A project with a definition of a hybrid checkpoint and its sources in folders, for tests that make it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from builder.base.events import Report, ignore
from builder.base.project import Project
from builder.commands import checkpoints
from builder.commands.checkpoints import BuiltCheckpoint
from tests import projects, safetensors_files, shipped_files
from tests.safetensors_files import Dimensions
from tests.workspaces import NO_ENGINE, workspace

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from builder.numbers.workspace import Workspace


SIZE = Dimensions(layers=4, width=4096, mtp_experts=8)
FILE = "checkpoints/hybrid/checkpoint.yaml"
TEXT = """\
description: INT4 experts with FP8 shared experts, and the MTP weights
model: Org/Model-int4
sources:
  int4: {{folder: {folder}/int4}}
  fp8: {{folder: {folder}/fp8}}
requires: {{mods: [enable-hybrid-int4fp8]}}
steps:
  - take: int4
  - replace: fp8
    select: ["model.language_model.layers.*.mlp.shared_expert.*_proj.weight"]
    dtype: F8_E4M3
    companions: [weight_scale_inv]
    expect: {expect}
    unmatched: 0
  - add: int4
    file: model_extra_tensors.safetensors
    unless: ["mtp.*"]
{more}output: {output}
"""


SHIPPED = shipped_files.project().root / "checkpoints/qwen3.5-122b-hybrid/checkpoint.yaml"
INT4, FP8 = "Intel/Qwen3.5-122B-A10B-int4-AutoRound", "Qwen/Qwen3.5-122B-A10B-FP8"


def shipped(int4: str, fp8: str) -> str:
    """The definition that comes with the program, with other sources."""
    text = SHIPPED.read_text(encoding="utf-8")
    for written, source in ((f"{{hf: {INT4}@main}}", int4), (f"{{hf: {FP8}@main}}", fp8)):
        assert text.count(written) == 1
        text = text.replace(written, source)
    return text


@dataclass(frozen=True)
class Kitchen:
    """A project, and the folder that its sources and its home are in."""

    project: Project
    folder: Path

    def workspace(self, report: Report = ignore) -> Workspace:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "XDG_"))}
        return workspace(self.project, NO_ENGINE, {**kept, "HOME": str(self.folder / "home")}, report)

    def define(self, more: str = "", output: str = "{shard_size: 1 MB}", expect: int = 12) -> None:
        """Writes the definition, with ``more`` steps."""
        text = TEXT.format(folder=self.folder, more=more, output=output, expect=expect)
        projects.write(self.project.root / FILE, text)

    def build(self, report: Report = ignore) -> BuiltCheckpoint:
        return checkpoints.build_checkpoint(self.workspace(report), "hybrid")

    @property
    def cache(self) -> Path:
        return self.folder / "home/.cache/huggingface/hub/models--checkpoint--hybrid"


def kitchen(folder: Path, size: Dimensions = SIZE, listed: Collection[str] = safetensors_files.INT4_FILES) -> Kitchen:
    """A kitchen with sources of some MB; the index of the INT4 release lists the files ``listed``."""
    int4 = safetensors_files.int4(size)
    safetensors_files.write(folder / "int4", safetensors_files.files(int4, listed=listed))
    safetensors_files.write(folder / "fp8", safetensors_files.files(safetensors_files.fp8(size)))
    made = Kitchen(projects.make(folder / "project"), folder)
    made.define()
    return made


def contents(folder: Path) -> dict[str, bytes]:
    """The files of a result by name."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
