"""Reads the files that a user writes: text, schema, conflict marks, names of packages."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from builder.base import files, yaml_file
from builder.base.errors import FileProblemsError, Location, Problem, UsageError, require_no_problems

SCHEMAS = Path(__file__).parent / "schemas"
LARGEST_TEXT = 16 << 20  # bytes; a link may lead to an endless device


def read_text(path: Path, file: str, root: Path | None = None) -> str:
    """Reads the text of ``path``, which is called ``file`` in errors. With ``root``, links are followed only below that
    folder: the files of a project may be untrusted.

    Raises UsageError if the file cannot be read; FileProblemsError if it is not UTF-8, is outside ``root``, or contains
    git's conflict marks.
    """
    real = Path(os.path.realpath(path))
    if root and not real.is_relative_to(os.path.realpath(root)):
        name = str(path.relative_to(root)) if path.is_relative_to(root) else file
        message = f"a link leads out of {root}, to {real}: replace the link with the file"
        raise FileProblemsError((Problem(Location(name), message),))
    try:
        return decoded(files.read_plain_file(real, LARGEST_TEXT), file)
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror}") from None


def decoded(content: bytes, file: str) -> str:
    """The text in ``content``. Raises FileProblemsError if it is not UTF-8, or contains git's conflict marks."""
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        location = Location(file, content.count(b"\n", 0, error.start) + 1)
        raise FileProblemsError((Problem(location, "not UTF-8 text; save the file as UTF-8"),)) from None
    if conflict := conflict_mark(content, file):
        raise FileProblemsError((conflict,))
    return text.replace("\r\n", "\n").replace("\r", "\n")


def conflict_mark(content: bytes, file: str) -> Problem | None:
    """The problem if git left a conflict in a file, or None. All three marks must begin a line, in order: `=======`
    alone may be a heading, and in a patch each line begins with a sign."""
    if b"<<<<<<< " not in content:
        return None
    begun, is_second_side = 0, False
    for number, line in enumerate(content.splitlines(), start=1):
        if line.startswith(b"<<<<<<< "):
            begun, is_second_side = number, False
        elif begun and line == b"=======":
            is_second_side = True
        elif is_second_side and line.startswith(b">>>>>>> "):
            message = "git left a conflict here: keep one of the two sides, and remove the conflict markers"
            return Problem(Location(file, begun), message)
    return None


def checked(text: str, file: str, schema: str) -> dict[str, Any]:
    """Parses the mapping in ``text``, which is called ``file`` in errors. Raises FileProblemsError with every violation
    of ``schema``."""
    data: dict[str, Any] = yaml_file.load(text, file)
    require_no_problems(yaml_file.problems(data, SCHEMAS / f"{schema}.schema.json", text, file))
    return data


def env_text(value: str | float | bool | None) -> str:
    """The text of an environment variable: booleans as in YAML, an empty text for null."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


def canonical(package: str) -> str:
    """The normalized name of a package (PEP 503). `packaging.utils` takes long to import."""
    return re.sub(r"[-_.]+", "-", package).lower()
