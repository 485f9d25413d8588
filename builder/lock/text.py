"""The text of images.lock has a stable order, one value a line.

The reader for any YAML layout comes first, then the choice between it and the quick reader, then the writer.
Two branches that change different blocks merge without a conflict.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from builder.base.errors import NewerLockError, Problem
from builder.lock import kinds
from builder.lock.kinds import (
    CORRECT,
    END,
    LONGEST_KEY,
    RENUMBER,
    WrongError,
    lock_error,
    quote,
    read_layout,
    refuse_cut_off,
)
from builder.lock.model import VERSION, Lock

if TYPE_CHECKING:
    from builder.lock.yaml_tree import Tree


# Parsing the text of images.lock, without conflict markers in it: by the quick reader, or as any YAML.


def parse_lock(content: str, file: str) -> Lock:
    """Returns the lock that a text holds; errors call it ``file``. Raises LockError, with every problem, as
    `lock_file.parse_and_explain` does."""
    refuse_cut_off(content, file)
    data = read_layout(content)
    if data is not None:
        try:
            return kinds.lock_of(data)
        except WrongError:
            pass  # parsed again below, with the place of each problem
    return _parse_yaml(content, file)


def _parse_yaml(content: str, file: str) -> Lock:
    from builder.lock.yaml_tree import read_tree

    tree = read_tree(content, file)
    _refuse_other_version(tree)
    try:
        lock = kinds.lock_of(tree.data)
    except WrongError as error:
        wrong = [Problem(tree.place(path), message) for path, message in error.problems]
        raise lock_error([*tree.problems, *wrong], CORRECT) from None
    if tree.problems:
        only_numbers = len(tree.duplicates) == len(tree.problems) and all(key.is_number for key in tree.duplicates)
        raise lock_error(tree.problems, RENUMBER if only_numbers else CORRECT)
    return lock


def _refuse_other_version(tree: Tree) -> None:
    version = tree.data.get("version") if isinstance(tree.data, dict) else None
    if isinstance(version, str) and version.isdecimal() and version != str(VERSION):
        message = f"{tree.file} is version {version[:20]}; this builder reads {VERSION}"
        problem = Problem(tree.place(("version",)), message)
        raise NewerLockError(str(problem), hint="update builder, or take back with git a lock that this one wrote")


# images.lock as text: stable order, one value a line, blocks separated by blank lines. A diff shows only what
# changed. Changes of two branches to different blocks merge without a conflict, since - the current number, and the
# image that serves a model, are not lines that every build rewrites: each number and each pairing has its
# ``sequence``, and the highest counts; - within a number, lines that may change later lie between lines that never
# do. Two branches that each add a number to one repository conflict in git: ``builder lock --renumber`` keeps both
# numbers. The last line ends the YAML document: a file without it was cut off.

HEADER = f"""\
# images.lock: what every numbered image was built from, and which image serves which model.
# The program writes it: `builder build`, `lock`, `rollback`, `promote`, `pair`, `mark`, `pin` and `prune` change it.
# Read it, review it, commit it. The highest `sequence` is current, or serves the model. After a merge with conflicts,
# `builder lock --renumber` keeps the numbers of both sides. The last line, `{END}`, shows that nothing is cut off.
"""


class _Apart(dict[Any, Any]):
    """A mapping whose blocks are separated by blank lines."""


def dump_lock(lock: Lock) -> str:
    """``lock`` as the text of images.lock. Raises UsageError for a string that is not Unicode text."""
    data: dict[str, Any] = kinds.data_of(lock)
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
