"""Recorded builds of plans, as a build leaves them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.building import work_folder
from builder.numbers import build_directory

if TYPE_CHECKING:
    from pathlib import Path

    from builder.numbers.build_directory import BuildDirectory
    from builder.plan.plan_model import Plan


def record(folder: Path, plan: Plan) -> BuildDirectory:
    work_folder.write_work_folder(folder, plan.files)
    return build_directory.parse_build_directory(folder, folder.name, lambda file: (folder / file).read_bytes())
