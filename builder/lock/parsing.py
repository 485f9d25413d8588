"""Parsing the text of images.lock, without conflict markers in it: by the quick reader, or as any YAML."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.errors import NewerLockError, Problem
from builder.lock import file_data
from builder.lock.file_problems import CORRECT, RENUMBER, lock_error, refuse_cut_off
from builder.lock.lines import read_layout
from builder.lock.model import VERSION, Lock
from builder.lock.value_kinds import WrongError

if TYPE_CHECKING:
    from builder.lock.yaml_tree import Tree


def parse(content: str, file: str) -> Lock:
    """Returns the lock that a text holds; errors call it ``file``. Raises LockError, with every problem, as
    `reading.parse` does."""
    refuse_cut_off(content, file)
    data = read_layout(content)
    if data is not None:
        try:
            return file_data.lock_of(data)
        except WrongError:
            pass  # parsed again below, with the place of each problem
    return _parse_yaml(content, file)


def _parse_yaml(content: str, file: str) -> Lock:
    from builder.lock.yaml_tree import read_tree

    tree = read_tree(content, file)
    _refuse_other_version(tree)
    try:
        lock = file_data.lock_of(tree.data)
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
