"""Reading images.lock as YAML of any layout, with the place of every value: for a file that was edited or merged, or
that is wrong.

The type of a value is decided by its place in the lock, never by YAML: ``0.32`` stays text.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import yaml

from builder.base import yaml_file
from builder.base.errors import Location, Problem
from builder.lock.checking import TAKE_BACK, lock_error

if TYPE_CHECKING:
    from builder.lock.checking import Data, ValuePath


_DEEPEST = 32  # far below what overflows the stack of the C parser, far above what a lock needs
_NOTHING = ("", "~", "null", "Null", "NULL")

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _NodeLoader(_Loader):  # type: ignore[misc]
    depth = 0

    def resolve(self, *_: object) -> None:
        """Does nothing: there are no types, so none of the patterns that would find one."""

    def descend_resolver(self, parent: yaml.Node | None, _index: object) -> None:
        self.depth += 1
        if self.depth > _DEEPEST:
            raise yaml_file.refused(parent, "blocks are nested too deeply")

    def ascend_resolver(self) -> None:
        self.depth -= 1


@dataclass
class Tree:
    """The data of a file, the place of each value (in a block: of its key), and the problems that are valid YAML."""

    data: Data = None
    places: dict[ValuePath, Location] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


def read_tree(text: str, file: str) -> Tree:
    """Reads ``text``. Raises LockError with the place where it is not YAML."""
    loader = _NodeLoader(text)
    try:
        root: yaml.Node | None = loader.get_single_node()
    except yaml.YAMLError as error:
        problem = yaml_file.problem(error, text, file)
        raise lock_error([Problem(problem.location, f"not YAML: {problem.message}")], TAKE_BACK) from None
    finally:
        loader.dispose()
    if root is None:
        raise lock_error([Problem(Location(file), "the file is empty")], TAKE_BACK)
    tree = Tree()
    seen: set[int] = set()

    def data_of(node: yaml.Node, where: yaml.Node, path: ValuePath) -> Data:
        tree.places[path] = place = _place(file, where)
        if id(node) in seen:  # aliases of aliases can stand for more than any memory holds
            raise lock_error([Problem(place, "an alias is not allowed in this file")], TAKE_BACK)
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            return [data_of(item, item, (*path, index)) for index, item in enumerate(node.value)]
        if not isinstance(node, yaml.MappingNode):
            return None if not getattr(node, "style", None) and node.value in _NOTHING else str(node.value)
        block: dict[str, Data] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                tree.problems.append(Problem(_place(file, key), "a key must be plain text"))
            elif key.value in block:
                first = tree.places[*path, key.value]
                tree.problems.append(
                    Problem(_place(file, key), f"the key `{key.value}` is repeated; it is first in {first}")
                )
            else:
                block[key.value] = data_of(value, key, (*path, key.value))
        return block

    tree.data = data_of(root, root, ())
    return tree


def _place(file: str, node: yaml.Node) -> Location:
    mark = node.start_mark
    return Location(file, mark.line + 1, mark.column + 1)
