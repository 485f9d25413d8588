"""YAML that people write or merge, with the position of every value.

``load`` is fast and reports what YAML itself cannot read; ``places`` is asked only when something is wrong. Duplicate
keys are refused: PyYAML would silently keep the last one.
"""

from __future__ import annotations

from typing import Any

import yaml

from builder.errors import FileProblemsError, Location, Problem
from builder.yaml import subset

Path = tuple[str | int, ...]

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _TextKeyLoader(_Loader):  # type: ignore[misc]
    """Keeps every key as the text it was written as (``7`` stays ``"7"``); its nodes are looked at by ``yamlcheck``
    before they are made values."""

    depth = 0

    def descend_resolver(self, parent: yaml.Node | None, index: object) -> None:
        self.depth += 1
        if self.depth > subset.DEEPEST:
            raise subset.refused(parent, "blocks within blocks, too deep")
        super().descend_resolver(parent, index)

    def ascend_resolver(self) -> None:
        self.depth -= 1
        super().ascend_resolver()

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[str, Any]:
        self.flatten_mapping(node)
        return {key.value: self.construct_object(value, deep=deep) for key, value in node.value}


_TextKeyLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in _Loader.yaml_implicit_resolvers.items()
}


def load(text: str, file: str) -> Any:
    """The value in ``text``: dicts with text as keys, lists, text, numbers, truth values and None.

    Raises FileProblemsError with the place that YAML could not read, or that has no place in a file that people write:
    a key that stands twice, a tag, an alias to what is around it.
    """
    loader = _TextKeyLoader(text)
    try:
        root = loader.get_single_node()
        if root is None:
            return None
        subset.check(root, loader.resolve)
        return loader.construct_document(root)
    except yaml.YAMLError as error:
        raise FileProblemsError((problem(error, text, file),)) from None
    finally:
        loader.dispose()


def problem(error: yaml.YAMLError, text: str, file: str) -> Problem:
    """What YAML has to say against ``text``, and where."""
    if isinstance(error, yaml.reader.ReaderError):
        before = text.encode()[: error.position].decode(errors="replace")
        location = Location(file, before.count("\n") + 1, len(before) - before.rfind("\n"))
        return Problem(location, error.reason)
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    location = Location(file, mark.line + 1, mark.column + 1) if mark else Location(file)
    said = "; ".join(filter(None, (getattr(error, "context", None), getattr(error, "problem", None))))
    return Problem(location, said or "not YAML")


def locations(text: str, file: str) -> dict[Path, Location]:
    """Where each value of ``text`` stands; a value in a mapping stands where its key does."""
    found: dict[Path, Location] = {}
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    root = yaml.compose(text, Loader=loader)

    def visit(node: yaml.Node | None, path: Path, mark: Any) -> None:
        if node is None:
            return
        found[path] = Location(file, mark.line + 1, mark.column + 1)
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                visit(value, (*path, key.value), key.start_mark)
        elif isinstance(node, yaml.SequenceNode):
            for index, value in enumerate(node.value):
                visit(value, (*path, index), value.start_mark)

    visit(root, (), root.start_mark if root else None)
    return found


def location_of(path: Path, known: dict[Path, Location], file: str) -> Location:
    """The place of ``path``, or of the nearest thing around it."""
    while path and path not in known:
        path = path[:-1]
    return known.get(path, Location(file))


def location_within(text: str, file: str, path: Path, written: str, earlier: int) -> Location:
    """The place of ``written`` in the value at ``path``, where that value holds it ``earlier`` times before; the place
    of the value where ``text`` spells it differently."""
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    node = yaml.compose(text, Loader=loader)
    for part in path:
        node = _child(node, part)
    if node is None:
        return Location(file)
    at = node.start_mark.index - 1
    for _ in range(earlier + 1):
        at = text.find(written, at + 1, node.end_mark.index)
        if at < 0:
            return Location(file, node.start_mark.line + 1, node.start_mark.column + 1)
    return Location(file, text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at))


def _child(node: yaml.Node | None, part: str | int) -> yaml.Node | None:
    if isinstance(node, yaml.MappingNode):
        return next((value for key, value in node.value if key.value == part), None)
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int):
        return node.value[part] if part < len(node.value) else None
    return None
