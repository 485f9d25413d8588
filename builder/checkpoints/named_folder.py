"""A folder that a definition names, of a source or of the results."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from builder.project import Project


def expanded(project: Project, environ: Mapping[str, str], text: str) -> Path:
    """The folder that a definition names: ``~`` is the user's home, ``./`` the project's folder."""
    if text == "~" or text.startswith("~/"):
        text = (environ.get("HOME") or "/root") + text[1:]
    return Path(os.path.normpath(project.root / text))
