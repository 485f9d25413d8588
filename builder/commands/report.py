"""The report command: the state of a project as one page, and for a static host as a folder."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from builder.errors import ConflictError
from builder.reporting import collecting, html
from builder.storage import atomic_file

if TYPE_CHECKING:
    from builder.reporting.page import ReportPage
    from builder.workspace import Workspace

_INDEX, _DATA = "index.html", "report.json"


def run(workspace: Workspace, output: Path, *, publish: bool = False, full: bool = False) -> tuple[Path, ...]:
    """Writes the page into the file ``output``; to ``publish`` it, into that folder as index.html with report.json
    beside it. Only a ``full`` page has paths, names of machines and notes. Returns the files, the page first.

    Raises LockError where images.lock is lost or cannot be read, ConflictError for an output of the other kind.
    """
    if output.is_dir() and not publish:
        raise ConflictError(f"{output} is a folder", hint="name a file, such as report.html, or add `--publish`")
    if publish and output.exists() and not output.is_dir():
        raise ConflictError(f"{output} is a file", hint="`--publish` takes a folder")
    page = collecting.collect(workspace.project, workspace.environment, workspace.report, full=full)
    text = html.render(page)
    if not publish:
        return (_write(output, text),)
    return _write(output / _INDEX, text), _write(output / _DATA, data(page))


def data(page: ReportPage) -> str:
    """The page as JSON."""
    from builder.reporting.page import FORMAT

    content = {"schema_version": FORMAT, **asdict(page)}
    return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _write(path: Path, text: str) -> Path:
    atomic_file.make_folder(path.parent)
    atomic_file.write(path, text.encode(errors="replace"), mode=0o644)
    return path
