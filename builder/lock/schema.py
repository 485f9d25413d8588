"""lock.schema.json, made from the records: ``make reference`` writes it (``python -m builder.lock.schema``)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builder.lock.records import FILE

if TYPE_CHECKING:
    from builder.lock.value_kinds import Schema

PATH = Path(__file__).parent / "lock.schema.json"
_WIDTH = 120


def text() -> str:
    """The JSON Schema of images.lock."""
    definitions: dict[str, Schema] = {}
    whole = FILE.describe(definitions)
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "images.lock: what every numbered image was built from, and which image serves which model",
    }
    return _pretty({**head, **whole, "$defs": definitions}, "", 0) + "\n"


def _pretty(value: Any, indent: str, before: int) -> str:
    """``value`` on one line where it fits below ``before`` characters, else with each of its parts on its own."""
    line = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, dict) or not value or before + len(line) <= _WIDTH:
        return line
    deeper = indent + "  "
    parts = []
    for key, part in value.items():
        start = f"{deeper}{json.dumps(key)}: "
        parts.append(start + _pretty(part, deeper, len(start) + 1))
    return "{\n" + ",\n".join(parts) + f"\n{indent}}}"


if __name__ == "__main__":
    PATH.write_text(text(), encoding="utf-8")
