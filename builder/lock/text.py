"""images.lock as text: stable order, one value a line, blocks separated by blank lines.

A diff shows only what changed. Changes of two branches to different blocks merge without a conflict, since

- the current number, and the image that serves a model, are not lines that every build rewrites: each number and each
  pairing has its ``sequence``, and the highest counts;
- within a number, lines that may change later lie between lines that never do.

Two branches that each add a number to one repository conflict in git: ``builder lock --renumber`` keeps both numbers.

The last line ends the YAML document: a file without it was cut off.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from builder.lock import file_data
from builder.lock.file_problems import END
from builder.lock.lines import LONGEST_KEY, quote

if TYPE_CHECKING:
    from builder.lock.model import Lock

HEADER = f"""\
# images.lock: what every numbered image was built from, and which image serves which model.
# The program writes it: `builder build`, `lock`, `rollback`, `promote`, `pair`, `mark`, `pin` and `prune` change it.
# Read it, review it, commit it. The highest `sequence` is current, or serves the model. After a merge with conflicts,
# `builder lock --renumber` keeps the numbers of both sides. The last line, `{END}`, shows that nothing is cut off.
"""


class _Apart(dict[Any, Any]):
    """A mapping whose blocks are separated by blank lines."""


def dump(lock: Lock) -> str:
    """``lock`` as the text of images.lock. Raises UsageError for a string that is not Unicode text."""
    data: dict[str, Any] = file_data.data_of(lock)
    definitions = {name: _Apart(platforms) for name, platforms in data.get("definitions", {}).items()}
    images = {name: {**block, "numbers": _Apart(block["numbers"])} for name, block in data.get("images", {}).items()}
    out = [f"{HEADER}version: {data['version']}"]
    for name, section in {"definitions": _Apart(definitions), "images": _Apart(images)}.items():
        if section:
            out.append("")
            _emit({name: section}, "", out)
    out += ["", END, ""]
    return "\n".join(out)


def _emit(block: dict[Any, Any], indent: str, out: list[str]) -> None:
    apart = isinstance(block, _Apart)
    for position, (name, value) in enumerate(block.items()):
        if apart and position:
            out.append("")
        named = _key(name, indent)
        if isinstance(value, dict) and value:
            out.append(named)
            _emit(value, indent + "  ", out)
        elif isinstance(value, list) and value:
            out.append(named)
            _emit_items(value, indent + "  ", out)
        else:
            out.append(f"{named} {_leaf(value)}")


def _key(name: str | int, indent: str) -> str:
    quoted = quote(name) if isinstance(name, str) else str(name)
    if len(quoted) > LONGEST_KEY:
        return f"{indent}? {quoted}\n{indent}:"
    return f"{indent}{quoted}:"


def _emit_items(items: list[Any], indent: str, out: list[str]) -> None:
    for item in items:
        if isinstance(item, dict):
            first = len(out)
            _emit(item, indent + "  ", out)
            out[first] = f"{indent}- {out[first].lstrip(' ')}"
        else:
            out.append(f"{indent}- {_leaf(item)}")


def _leaf(value: object) -> str:
    if isinstance(value, str):
        return quote(value)
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)  # a whole number, or the `[]` or `{}` of an empty block
