"""Recorded builds of plans, as a build leaves them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.building import work_folder
from builder.lab.bisect.search import RecordedBuild
from builder.numbers import build_directory

if TYPE_CHECKING:
    from pathlib import Path

    from builder.plan.plan_model import Plan


def record(folder: Path, plan: Plan) -> RecordedBuild:
    work_folder.write_work_folder(folder, plan.files)
    directory = build_directory.parse_build_directory(folder, folder.name, lambda file: (folder / file).read_bytes())
    return RecordedBuild(directory, build_directory.read_build_files(directory))
