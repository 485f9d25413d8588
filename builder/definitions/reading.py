"""Reading one file that people write: YAML, checked against its schema."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from builder.errors import FileProblemsError, Location, Problem, UsageError
from builder.yaml import schema_check, yaml_file

SCHEMAS = Path(__file__).parent / "schemas"


def read_text(path: Path, file: str) -> str:
    """The text of ``path``, called ``file`` in errors. Raises UsageError or FileProblemsError where there is none."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        location = Location(file, error.object[: error.start].count(b"\n") + 1)
        raise FileProblemsError((Problem(location, "not UTF-8 text"),), hint="save the file as UTF-8") from None
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}") from None


def read_checked(path: Path, file: str, schema: str) -> dict[str, Any]:
    """The mapping in ``path``. Raises FileProblemsError with every problem that ``schema`` finds."""
    return checked(read_text(path, file), file, schema)


def checked(text: str, file: str, schema: str) -> dict[str, Any]:
    """The mapping in ``text``, called ``file`` in errors. Raises FileProblemsError with all that ``schema`` refuses."""
    data = yaml_file.load(text, file)
    found = schema_check.problems(data, SCHEMAS / f"{schema}.schema.json", text, file)
    if found:
        raise FileProblemsError(found)
    mapping: dict[str, Any] = data
    return mapping
