"""images.lock as text: stable order, one value a line, blocks separated by blank lines.

The layout is made for ``git merge`` and for reading: a diff shows only what changed, and the additions of two branches
are different hunks. Git sees a conflict unless a line that both branches have lies between two changes. So

- the place of a number is marked by a comment before the number is given, and all that a build adds goes there;
- the current number, and the image that serves a model, are not lines that every build rewrites: each number and each
  pairing has its ``sequence``, and the highest counts;
- within a number, lines that may change later lie between lines that never do.

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
# Read it, review it, commit it. The highest `sequence` is current, or serves the model. Lines such as `# 8` keep the
# places of numbers, so that branches merge. The last line, `{END}`, shows that nothing is cut off.
"""
_AHEAD = 6  # places after the highest number, at least
_ROUND = 10


class _Apart(dict[Any, Any]):
    """A mapping whose blocks are separated by blank lines."""


class _Numbers(dict[int, Any]):
    """The blocks of numbers, each below the comment that marks its place."""


def dump(lock: Lock) -> str:
    """``lock`` as the text of images.lock. Raises UsageError for a string that is not Unicode text."""
    data: dict[str, Any] = file_data.data_of(lock)
    definitions = {name: _Apart(platforms) for name, platforms in data.get("definitions", {}).items()}
    images = {name: {**block, "numbers": _Numbers(block["numbers"])} for name, block in data.get("images", {}).items()}
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
        if isinstance(value, _Numbers):
            out.append(named if value else f"{named} {{}}")
            _emit_numbers(value, indent + "  ", out)
        elif isinstance(value, dict) and value:
            out.append(named)
            _emit(value, indent + "  ", out)
        elif isinstance(value, list) and value:
            out.append(named)
            _emit_items(value, indent + "  ", out)
        else:
            out.append(f"{named} {_leaf(value)}")


def _emit_numbers(numbers: dict[int, Any], indent: str, out: list[str]) -> None:
    for place in _places(numbers):
        out.append(f"{indent}# {place}")
        if place in numbers:
            _emit({place: numbers[place]}, indent, out)
            out.append("")
        if place % _ROUND == 0:
            out.append(f"{indent}# after {place}")


def _places(numbers: dict[int, Any]) -> list[int]:
    """The numbers given, and after each enough places for those that several branches will give. They end at round
    numbers: where two branches both need more, they add the same lines, which is no conflict. A line after each round
    number separates what is added there from its block."""
    places = set(numbers)
    for number in (0, *numbers):
        end = -(-(number + _AHEAD) // _ROUND) * _ROUND
        places.update(range(number + 1, end + 1))
    return sorted(places)


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
