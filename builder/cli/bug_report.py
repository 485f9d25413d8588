"""The report of a bug in the program itself: a file that can be pasted into an issue."""

from __future__ import annotations

import platform
import re
import sys
import tempfile
import traceback
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from builder.cli.output import print_note
from builder.cli.terminal_text import styled

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType


def report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Writes the report to a temporary file and prints its path; the traceback goes only into the file."""
    lines = [
        f"builder {version('builder')}, Python {platform.python_version()}, {platform.platform()}",
        f"arguments: {_without_values(sys.argv[1:])}",
        "",
        *traceback.format_exception(kind, error, trace),
    ]
    folder = Path(tempfile.mkdtemp(prefix="builder-report-"))
    path = folder / "report.txt"
    path.write_text("\n".join(lines), encoding="utf-8")
    print_note(styled("this is a bug in builder:", fg="red", bold=True) + f" {kind.__name__}: {error}")
    print_note(f"what to do: report it with the file {path}")


def _without_values(arguments: Sequence[str]) -> list[str]:
    """``arguments`` without the values of environment variables and of API keys."""
    return [_without_value(before, word) for before, word in zip(("", *arguments), arguments, strict=False)]


def _without_value(before: str, word: str) -> str:
    option = re.match(r"--env=|-e(?=\w)", word)
    if before == "--api-key":
        return "…"
    if not option and before not in {"--env", "-e"}:
        return word
    prefix = option[0] if option else ""
    name, sign, _ = word.removeprefix(prefix).partition("=")
    return f"{prefix}{name}{sign}…" if sign else word
