"""YAML that users write or merge, with the location of every value.

``load`` is fast and reports what YAML itself cannot parse; ``locations`` is called only once something is wrong.
Duplicate keys are refused: PyYAML would silently keep the last one. ``load_shared`` reads files that were written for
it: there the last one counts, and the repetition is told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml

from builder.errors import FileProblemsError, Location, Problem
from builder.yaml import repetition, subset, syntax_faults

if TYPE_CHECKING:
    from collections.abc import Callable

    from builder.yaml.repetition import Repetition

Path = tuple[str | int, ...]

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _TextKeyLoader(_Loader):  # type: ignore[misc]
    """A loader that keeps every key as the text written (``7`` stays ``"7"``); ``subset`` checks its nodes before they
    become values."""

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


class Block(str):
    """Text that is written as a literal block, line for line, where YAML can hold it so."""

    __slots__ = ()


class _Dumper(yaml.SafeDumper):
    """A dumper whose text is read back as it was: PyYAML writes the other line breaks of Unicode as they are, and reads
    them as blanks."""

    def represent_text(self, text: str) -> yaml.Node:
        escaped = '"' if any(char in text for char in "\x85\u2028\u2029") else None
        return self.represent_scalar("tag:yaml.org,2002:str", str(text), style=escaped)

    def represent_block(self, text: Block) -> yaml.Node:
        is_plain = all(char.isprintable() or char in "\n\t" for char in text)
        return self.represent_scalar("tag:yaml.org,2002:str", str(text), style="|" if is_plain else '"')


_Dumper.add_representer(str, _Dumper.represent_text)
_Dumper.add_representer(Block, _Dumper.represent_block)


def dump(data: dict[str, Any]) -> str:
    """The text of a mapping, in its order, one line for each value."""
    text: str = yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10_000)
    return text


def load(text: str, file: str) -> Any:
    """Parses the value in ``text``: dicts with text as keys, lists, text, numbers, booleans and None.

    Raises FileProblemsError with the location of a syntax error, or of something that is not allowed: a duplicate key,
    a tag, an alias to an enclosing value.
    """
    return _load(text, file, lambda _: ())[0]


def load_shared(text: str, file: str) -> tuple[Any, tuple[Repetition, ...]]:
    """Parses the value in ``text`` as ``load`` does, but that of the values of a key that stands twice the last one
    counts; the second result tells such keys."""
    return _load(text, file, repetition.drop_earlier)


def _load(
    text: str, file: str, prepare: Callable[[yaml.Node], tuple[Repetition, ...]]
) -> tuple[Any, tuple[Repetition, ...]]:
    loader = _TextKeyLoader(text)
    try:
        root = loader.get_single_node()
        if root is None:
            return None, ()
        repetitions = prepare(root)
        subset.check(root, loader.resolve)
        return loader.construct_document(root), repetitions
    except yaml.YAMLError as error:
        raise FileProblemsError((problem(error, text, file),)) from None
    finally:
        loader.dispose()


def problem(error: yaml.YAMLError, text: str, file: str) -> Problem:
    """The problem that YAML reports in ``text``, with its location."""
    if isinstance(error, yaml.reader.ReaderError):
        before = text.encode()[: error.position].decode(errors="replace")
        location = Location(file, before.count("\n") + 1, len(before) - before.rfind("\n"))
        return Problem(location, f"the character U+{error.character:04X} has no place in a text file; remove it")
    if isinstance(error, subset.Refusal):
        mark = error.problem_mark
        return Problem(Location(file, mark.line + 1, mark.column + 1) if mark else Location(file), str(error.problem))
    if isinstance(error, yaml.MarkedYAMLError):
        fault = syntax_faults.explain(error, text)
        return Problem(Location(file, fault.line, fault.column), fault.message)
    return Problem(Location(file), "not YAML")


def locations(text: str, file: str) -> dict[Path, Location]:
    """The location of each value of ``text``; that of a value in a mapping is the location of its key."""
    collected: dict[Path, Location] = {}
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    root = yaml.compose(text, Loader=loader)

    def visit(node: yaml.Node | None, path: Path, mark: Any) -> None:
        if node is None:
            return
        collected[path] = Location(file, mark.line + 1, mark.column + 1)
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                visit(value, (*path, key.value), key.start_mark)
        elif isinstance(node, yaml.SequenceNode):
            for index, value in enumerate(node.value):
                visit(value, (*path, index), value.start_mark)

    visit(root, (), root.start_mark if root else None)
    return collected


def location_of(path: Path, value_locations: dict[Path, Location], file: str) -> Location:
    """The location of ``path``, or of the innermost value around it."""
    while path and path not in value_locations:
        path = path[:-1]
    return value_locations.get(path, Location(file))


def location_within(text: str, file: str, path: Path, written: str, earlier: int) -> Location:
    """The location of ``written`` in the value at ``path``, after ``earlier`` other occurrences in that value; the
    location of the value itself where ``text`` spells it differently."""
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
        return next((value for key, value in reversed(node.value) if key.value == part), None)
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int):
        return node.value[part] if part < len(node.value) else None
    return None
