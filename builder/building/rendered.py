"""Rendered Dockerfiles, remembered: importing Jinja2 and compiling templates takes a quarter of an unchanged build.

The key covers everything that a text depends on, the code that renders it included. The memory lies in the project's
state folder, which may be deleted at any time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from builder import statefile
from builder.plan import dockerfile

if TYPE_CHECKING:
    from builder.plan.dockerfile import Inputs, Render
    from builder.project import Project

KEPT = 64


def remembering(project: Project, fresh: dict[str, str]) -> Render:
    """``dockerfile.render`` with a memory; what it had to render goes into ``fresh``, by key, for ``keep``."""
    code = Path(dockerfile.__file__).read_bytes()

    def render(inputs: Inputs) -> str:
        key = hashlib.sha256(code + repr(inputs).encode()).hexdigest()
        try:
            return (_folder(project) / key).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            fresh[key] = dockerfile.render(inputs)
            return fresh[key]

    return render


def keep(project: Project, fresh: Mapping[str, str]) -> None:
    """Remembers freshly rendered texts, and of the older ones the latest few."""
    if not fresh:
        return
    folder = _folder(project)
    for key, text in fresh.items():
        statefile.write(folder / key, text.encode())
    oldest_first = sorted(folder.glob("*"), key=lambda path: path.stat().st_mtime)
    for path in oldest_first[:-KEPT]:
        path.unlink(missing_ok=True)


def _folder(project: Project) -> Path:
    return project.state / "rendered"
