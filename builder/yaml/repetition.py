"""Keys that stand twice in one mapping of a file that was written for PyYAML, which takes the last of them."""

from __future__ import annotations

from dataclasses import dataclass

import yaml

Path = tuple[str | int, ...]

_MERGE = "tag:yaml.org,2002:merge"


@dataclass(frozen=True)
class Repetition:
    """A key that stands again at ``line`` and ``column`` (from 1), after ``earlier_line``. Its later value counts, and
    is ``same`` if it equals the earlier one; ``values`` are both where they are plain, the earlier one first."""

    path: Path
    line: int
    column: int
    earlier_line: int
    same: bool
    values: tuple[str, str] | None


def drop_earlier(root: yaml.Node) -> tuple[Repetition, ...]:
    """Removes every value from the mappings under ``root`` whose key stands again later, and reports each."""
    repetitions: list[Repetition] = []
    visited: set[int] = set()

    def visit(node: yaml.Node, path: Path) -> None:
        if id(node) in visited:
            return
        visited.add(id(node))
        if isinstance(node, yaml.MappingNode):
            repetitions.extend(_drop(node, path))
            for key, value in node.value:
                visit(value, (*path, str(key.value)))
        elif isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):
                visit(item, (*path, index))

    visit(root, ())
    return tuple(repetitions)


def _drop(node: yaml.MappingNode, path: Path) -> list[Repetition]:
    last: dict[str, tuple[yaml.Node, yaml.Node]] = {}
    repetitions = []
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE:
            continue
        if key.value in last:
            repetitions.append(_repetition((*path, key.value), last[key.value], (key, value)))
        last[key.value] = (key, value)
    kept = {id(key) for key, _ in last.values()}
    if repetitions:
        node.value = [
            (key, value)
            for key, value in node.value
            if not isinstance(key, yaml.ScalarNode) or key.tag == _MERGE or id(key) in kept
        ]
    return repetitions


def _repetition(path: Path, earlier: tuple[yaml.Node, yaml.Node], later: tuple[yaml.Node, yaml.Node]) -> Repetition:
    mark = later[0].start_mark
    if isinstance(earlier[1], yaml.ScalarNode) and isinstance(later[1], yaml.ScalarNode):
        values = (str(earlier[1].value), str(later[1].value))
        same = values[0] == values[1]
    else:
        values = None
        same = yaml.serialize(earlier[1]) == yaml.serialize(later[1])
    return Repetition(path, mark.line + 1, mark.column + 1, earlier[0].start_mark.line + 1, same, values)
