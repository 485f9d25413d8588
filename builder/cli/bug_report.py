"""The report of a bug in the program itself: a file that can be pasted into an issue."""

from __future__ import annotations

import platform
import sys
import tempfile
import traceback
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import click

from builder.cli.output import print_note

if TYPE_CHECKING:
    from types import TracebackType


def report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Writes the report to a temporary file and prints its path; the traceback goes only into the file."""
    lines = [
        f"builder {version('builder')}, Python {platform.python_version()}, {platform.platform()}",
        f"arguments: {sys.argv[1:]}",
        "",
        *traceback.format_exception(kind, error, trace),
    ]
    folder = Path(tempfile.mkdtemp(prefix="builder-report-"))
    path = folder / "report.txt"
    path.write_text("\n".join(lines), encoding="utf-8")
    print_note(click.style("this is a bug in builder:", fg="red", bold=True) + f" {kind.__name__}: {error}")
    print_note(f"what to do: report it with the file {path}")
