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
from builder.redaction import redacted

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType


def report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Writes the report to a temporary file and prints its path; the traceback goes only into the file. Where no file
    can be written, the report itself is printed."""
    lines = [
        f"builder {version('builder')}, Python {platform.python_version()}, {platform.platform()}",
        f"arguments: {_without_values(sys.argv[1:])}",
        "",
        *traceback.format_exception(kind, error, trace),
    ]
    text = redacted("\n".join(lines))
    print_note(styled("this is a bug in builder:", fg="red", bold=True) + f" {kind.__name__}: {error}")
    try:
        print_note(f"what to do: report it with the file {_write(text)}")
    except OSError as failure:
        print_note(text)
        print_note(f"what to do: report it with the lines above, of which no file can be made: {failure}")


def _write(text: str) -> Path:
    path = Path(tempfile.mkdtemp(prefix="builder-report-")) / "report.txt"
    path.write_text(text, encoding="utf-8")
    return path


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
