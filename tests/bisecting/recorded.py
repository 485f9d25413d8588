"""Recorded builds of plans, as a build leaves them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.bisecting.segmenting import RecordedBuild
from builder.building import work_folder
from builder.numbered import build_directory, build_files

if TYPE_CHECKING:
    from pathlib import Path

    from builder.plan.model import Plan


def record(folder: Path, plan: Plan) -> RecordedBuild:
    work_folder.write(folder, plan.files)
    directory = build_directory.parse(folder, folder.name, lambda file: (folder / file).read_bytes())
    return RecordedBuild(directory, build_files.read(directory))
