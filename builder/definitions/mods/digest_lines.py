"""Writing the digest of a file from an address into the text of mod.yaml, which stays as it is otherwise."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from typing import TYPE_CHECKING

import yaml

from builder.errors import FileProblemsError, Location, Problem
from builder.yaml import yaml_file

if TYPE_CHECKING:
    from typing import Any

# Written plain, YAML would read a number: 12…, or 1e5….
_NUMBER = re.compile(r"[0-9]+(?:e[0-9]+)?")


def with_digest(text: str, file: str, index: int, sha256: str) -> str:
    """Returns the text of the mod.yaml ``file`` with the digest of its file number ``index`` (from 0).

    Raises FileProblemsError where the text is written in a way that cannot be added to.
    """
    wanted = yaml_file.load(text, file)
    wanted["files"][index]["sha256"] = sha256
    # YAMLError: the pure Python loader takes less than the one in C, such as fewer byte order marks.
    with suppress(FileProblemsError, yaml.YAMLError):
        changed = _edited(text, index, sha256)
        if yaml_file.load(changed, file) == wanted:
            return changed
    location = yaml_file.location_of(("files", index), yaml_file.locations(text, file), file)
    message = f"the digest cannot be added to what is written here; add it by hand: sha256: {sha256}"
    raise FileProblemsError((Problem(Location(file, location.line, location.column), message),))


def _edited(text: str, index: int, sha256: str) -> str:
    sha256 = json.dumps(sha256) if _NUMBER.fullmatch(sha256) else sha256
    # The pure Python loader: its marks count characters, as text does.
    entry = _value(_value(yaml.compose(text, Loader=yaml.SafeLoader), "files"), index)
    keys = {key.value: (key, value) for key, value in entry.value}
    if "sha256" in keys:
        _, before = keys["sha256"]
        return text[: before.start_mark.index] + sha256 + text[before.end_mark.index :]
    if "from" not in keys:  # taken in with `<<`
        return text
    key, source = keys["from"]
    end = source.end_mark.index
    if entry.flow_style:
        return f"{text[:end]}, sha256: {sha256}{text[end:]}"
    line_end = text.find("\n", end)
    if line_end < 0:
        return f"{text}\n{' ' * key.start_mark.column}sha256: {sha256}\n"
    newline = "\r\n" if text[line_end - 1] == "\r" else "\n"
    return f"{text[: line_end + 1]}{' ' * key.start_mark.column}sha256: {sha256}{newline}{text[line_end + 1 :]}"


def _value(node: Any, key: str | int) -> Any:
    if isinstance(key, int):
        return node.value[key]
    return next(value for name, value in node.value if name.value == key)
