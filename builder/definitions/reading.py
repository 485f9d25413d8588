"""Reading a YAML file of the user's, checked against its schema."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from builder.errors import FileProblemsError, Location, Problem, UsageError
from builder.yaml import schema_check, yaml_file

SCHEMAS = Path(__file__).parent / "schemas"


def read_text(path: Path, file: str) -> str:
    """Reads the text of ``path``, which errors call ``file``. Raises UsageError where it cannot be read,
    FileProblemsError where it is not UTF-8."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        location = Location(file, error.object[: error.start].count(b"\n") + 1)
        raise FileProblemsError((Problem(location, "not UTF-8 text"),), hint="save the file as UTF-8") from None
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}") from None


def read_checked(path: Path, file: str, schema: str) -> dict[str, Any]:
    """Reads the mapping in ``path``. Raises FileProblemsError with every violation of ``schema``."""
    return checked(read_text(path, file), file, schema)


def checked(text: str, file: str, schema: str) -> dict[str, Any]:
    """Parses the mapping in ``text``, which errors call ``file``. Raises FileProblemsError with every violation of
    ``schema``."""
    data = yaml_file.load(text, file)
    problems = schema_check.problems(data, SCHEMAS / f"{schema}.schema.json", text, file)
    if problems:
        raise FileProblemsError(problems)
    mapping: dict[str, Any] = data
    return mapping


def env_text(value: str | float | bool | None) -> str:
    """The text of an environment variable's value: booleans as YAML writes them, an empty text for null."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)
