"""The YAML that users write: the accepted subset, the reader, locations, the editor of single values, the schema check.

A valid file is read fast: locations are computed only after an error. The schemas are the only description of a format:
editors read them, and errors quote them.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from builder.base.errors import FileProblemsError, Location, Problem
from builder.base.words import did_you_mean

# The accepted subset of YAML: mappings with text as keys, lists, and plain values. Tags that create objects, aliases
# that expand to millions of values, and lists as keys are refused. The check reads YAML's nodes, which have locations.

YamlPath = tuple[str | int, ...]

_DEEPEST = 64  # nested blocks: far fewer than would overflow the stack of the C parser
_MOST = 100_000  # values, with each alias expanded
_LONGEST_NUMBER = 40

_YAML = "tag:yaml.org,2002:"
_NUMBERS = {f"{_YAML}int", f"{_YAML}float"}
_PLAIN = {f"{_YAML}null", f"{_YAML}bool", *_NUMBERS}


class Refusal(yaml.MarkedYAMLError):
    """Valid YAML that is not accepted here."""


def refused(node: yaml.Node | None, message: str) -> Refusal:
    """The error that refuses a node with ``message``."""
    return Refusal(None, None, message, node.start_mark if node else None)


class Repetition(NamedTuple):
    """A key that is repeated at ``line`` and ``column`` (from 1), after ``earlier_line``. The later value is used;
    ``same`` is true if the values are equal. ``values`` are the earlier and the later value, if both are plain."""

    path: YamlPath
    line: int
    column: int
    earlier_line: int
    same: bool
    values: tuple[str, str] | None


def _check(loader: Any, root: yaml.Node, repetitions: list[Repetition] | None) -> None:
    """Raises Refusal unless the value is plain data of moderate size. With ``repetitions``, the earlier value of a
    repeated key is dropped and reported there."""
    around: set[int] = set()
    left = _MOST

    def visit(node: yaml.Node, where: yaml.Node, path: YamlPath) -> None:
        nonlocal left
        left -= 1
        if id(node) in around:
            raise refused(where, "this alias refers to a value that contains the alias")
        if len(around) > _DEEPEST:
            raise refused(where, "blocks are nested too deeply")
        if left < 0:
            raise refused(where, "nested aliases expand to too many values")
        around.add(id(node))
        _check_tag(loader, node)
        if isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):
                visit(item, item, (*path, index))
        elif isinstance(node, yaml.MappingNode):
            _check_keys(node, path, repetitions)
            for key, value in node.value:
                visit(value, key, (*path, key.value))
        around.discard(id(node))

    visit(root, root, ())


def _check_tag(loader: Any, node: yaml.Node) -> None:
    shown = f"the tag `{node.tag.replace(_YAML, '!!')}` is not allowed here"
    if isinstance(node, yaml.ScalarNode):
        plain = loader.resolve(yaml.ScalarNode, node.value, (True, False))
        if node.tag != f"{_YAML}str" and (node.tag not in _PLAIN or node.tag != plain):
            raise refused(node, f"{shown}; if this is text, quote it")
        if node.tag in _NUMBERS and len(node.value) > _LONGEST_NUMBER:
            raise refused(node, f"this number has more than {_LONGEST_NUMBER} digits; if it is text, quote it")
        if node.tag in _NUMBERS and not _is_number(loader, node):
            raise refused(node, f"`{node.value}` is not a number that can be used here; if it is text, quote it")
    elif node.tag != f"{_YAML}{'seq' if isinstance(node, yaml.SequenceNode) else 'map'}":
        raise refused(node, shown)


def _is_number(loader: Any, node: yaml.Node) -> bool:
    """True for a finite number. YAML also accepts invalid (`0x_`) and too large (`1.0e+400`) numbers."""
    try:
        return math.isfinite(loader.construct_object(node))
    except (ValueError, OverflowError):
        return False


def _check_keys(node: yaml.Node, path: YamlPath, repetitions: list[Repetition] | None) -> None:
    kept: dict[str, tuple[yaml.Node, yaml.Node]] = {}
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise refused(key, "a key must be plain text")
        is_merge = key.tag == f"{_YAML}merge"
        merged = value.value if isinstance(value, yaml.SequenceNode) else [value]
        if is_merge and not all(isinstance(item, yaml.MappingNode) for item in merged):
            raise refused(key, "`<<` requires a mapping, or a list of mappings")
        if key.value in kept:
            if repetitions is None or is_merge:
                raise refused(key, f"the key `{key.value}` is repeated")
            repetitions.append(_repetition((*path, key.value), kept.pop(key.value), (key, value)))
        kept[key.value] = (key, value)
    if len(kept) < len(node.value):
        node.value = list(kept.values())


def _repetition(path: YamlPath, earlier: tuple[yaml.Node, yaml.Node], later: tuple[yaml.Node, yaml.Node]) -> Repetition:
    mark = later[0].start_mark
    values = None
    same = yaml.serialize(earlier[1]) == yaml.serialize(later[1])
    if isinstance(earlier[1], yaml.ScalarNode) and isinstance(later[1], yaml.ScalarNode):
        values = (str(earlier[1].value), str(later[1].value))
        same = values[0] == values[1]
    return Repetition(path, mark.line + 1, mark.column + 1, earlier[0].start_mark.line + 1, same, values)


# The reader, and the writer of whole files.

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _TextKeyLoader(_Loader):  # type: ignore[misc]
    """A loader that keeps every key as text (``7`` becomes ``"7"``), and dates as text."""

    depth = 0

    def descend_resolver(self, parent: yaml.Node | None, index: object) -> None:
        self.depth += 1
        if self.depth > _DEEPEST:
            raise refused(parent, "blocks are nested too deeply")
        super().descend_resolver(parent, index)

    def ascend_resolver(self) -> None:
        self.depth -= 1
        super().ascend_resolver()

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[str, Any]:
        self.flatten_mapping(node)
        return {key.value: self.construct_object(value, deep=deep) for key, value in node.value}


_TextKeyLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != f"{_YAML}timestamp"]
    for first, resolvers in _Loader.yaml_implicit_resolvers.items()
}


def load(text: str, file: str) -> Any:
    """Parses the value in ``text``: dicts with text as keys, lists, text, numbers, booleans and None.

    Raises FileProblemsError with the location of a syntax error, or of YAML that is not accepted: a duplicate key, a
    tag, an alias to an enclosing value.
    """
    return _load(text, file, None)


def compose(text: str, file: str) -> yaml.Node | None:
    """The nodes of ``text``, which may have repeated keys, tags and aliases; None for a text without a value. Raises
    FileProblemsError for a syntax error and for blocks that are nested too deeply."""
    loader = _TextKeyLoader(text)
    try:
        root: yaml.Node | None = loader.get_single_node()
    except yaml.YAMLError as error:
        raise FileProblemsError((problem(error, text, file),)) from None
    finally:
        loader.dispose()
    return root


def load_shared(text: str, file: str) -> tuple[Any, tuple[Repetition, ...]]:
    """Parses a file for PyYAML, which uses the last value of a repeated key. Raises the errors of `load`."""
    repetitions: list[Repetition] = []
    return _load(text, file, repetitions), tuple(repetitions)


def _load(text: str, file: str, repetitions: list[Repetition] | None) -> Any:
    loader = _TextKeyLoader(text)
    try:
        root = loader.get_single_node()
        if root is None:
            return None
        _check(loader, root, repetitions)
        return loader.construct_document(root)
    except yaml.YAMLError as error:
        raise FileProblemsError((problem(error, text, file),)) from None
    finally:
        loader.dispose()


def problem(error: yaml.YAMLError, text: str, file: str) -> Problem:
    """The problem that YAML reports in ``text``: libyaml's own message, at its location."""
    if isinstance(error, yaml.reader.ReaderError):
        before = text.encode()[: error.position].decode(errors="replace")
        location = Location(file, before.count("\n") + 1, len(before) - before.rfind("\n"))
        return Problem(location, f"the character U+{error.character:04X} is not allowed in a text file; remove it")
    if not isinstance(error, yaml.MarkedYAMLError) or not (mark := error.problem_mark or error.context_mark):
        return Problem(Location(file), str(error))
    location, begun = Location(file, mark.line + 1, mark.column + 1), error.context_mark
    line = "".join(text.splitlines()[mark.line : mark.line + 1])
    if not isinstance(error, Refusal) and line[mark.column :].startswith("\t"):
        return Problem(location, "a tab in the indentation: YAML allows only spaces")
    message = error.problem or error.context or ""
    if error.problem and error.context and begun:
        message += f", {error.context} that begins in line {begun.line + 1}"
    return Problem(location, message)


class Block(str):
    """Text that is written as a literal block, line by line, if YAML allows it."""

    __slots__ = ()


class _Dumper(yaml.SafeDumper):
    """A dumper whose output is read back unchanged. PyYAML alone does not escape the other line breaks of Unicode, and
    reads them as spaces."""

    def represent_text(self, text: str) -> yaml.Node:
        escaped = '"' if any(char in text for char in "\x85\u2028\u2029") else None
        return self.represent_scalar(f"{_YAML}str", str(text), style=escaped)

    def represent_block(self, text: Block) -> yaml.Node:
        is_plain = all(char.isprintable() or char in "\n\t" for char in text)
        return self.represent_scalar(f"{_YAML}str", str(text), style="|" if is_plain else '"')


_Dumper.add_representer(str, _Dumper.represent_text)
_Dumper.add_representer(Block, _Dumper.represent_block)


class _EntryDumper(_Dumper):
    """A dumper that writes each list on one line."""


_EntryDumper.add_representer(
    list, lambda dumper, items: dumper.represent_sequence(f"{_YAML}seq", items, flow_style=True)
)


def dump(data: dict[str, Any]) -> str:
    """The text of a mapping, in its order, with a line for each value."""
    return _dumped(data, _Dumper)


def _dumped(data: Any, dumper: type[_Dumper], *, flow: bool = False) -> str:
    text: str = yaml.dump(
        data, None, dumper, sort_keys=False, allow_unicode=True, width=10_000, default_flow_style=flow
    )
    return text.removesuffix("...\n")


# Locations in a text.


@functools.lru_cache(maxsize=4)
def locations(text: str, file: str) -> dict[YamlPath, Location]:
    """The location of each value of ``text``; a value in a mapping has the location of its key."""
    collected: dict[YamlPath, Location] = {}

    def visit(node: yaml.Node, path: YamlPath, mark: Any) -> None:
        collected[path] = Location(file, mark.line + 1, mark.column + 1)
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                visit(value, (*path, key.value), key.start_mark)
        elif isinstance(node, yaml.SequenceNode):
            for index, value in enumerate(node.value):
                visit(value, (*path, index), value.start_mark)

    if (root := yaml.compose(text, Loader=_Loader)) is not None:
        visit(root, (), root.start_mark)
    return collected


def location_of(path: YamlPath, text: str, file: str) -> Location:
    """The location of ``path`` in ``text``, or of the innermost value around it."""
    places = locations(text, file)
    while path and path not in places:
        path = path[:-1]
    return places.get(path, Location(file))


def location_within(text: str, file: str, path: YamlPath, written: str, earlier: int) -> Location:
    """The location of ``written`` in the value at ``path``, after ``earlier`` other occurrences in that value; the
    location of the value itself if ``text`` spells it differently."""
    node = _nodes(text)
    for part in path:
        node = _child(node, part)[1]
    if node is None:
        return Location(file)
    at = node.start_mark.index - 1
    if isinstance(node, yaml.ScalarNode) and node.style in {"|", ">"}:  # its value begins on the next line
        at = text.find("\n", at + 1)
    for _ in range(earlier + 1):
        at = text.find(written, at + 1, node.end_mark.index)
        if at < 0:
            return Location(file, node.start_mark.line + 1, node.start_mark.column + 1)
    return Location(file, text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at))


@functools.lru_cache(maxsize=4)
def _nodes(text: str) -> yaml.Node | None:
    root: yaml.Node | None = yaml.compose(text, Loader=_Loader)
    return root


def _child(node: yaml.Node | None, part: str | int) -> tuple[yaml.Node | None, yaml.Node | None]:
    """The key and the value at ``part`` of ``node``; the last one if the key is repeated."""
    if isinstance(node, yaml.MappingNode):
        return next(((key, value) for key, value in reversed(node.value) if key.value == part), (None, None))
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        return None, node.value[part]
    return None, None


# The editor sets single values of a text, and keeps the rest unchanged.


def with_values(text: str, values: Mapping[YamlPath, Any], expected: Any) -> str | None:
    """``text`` with each of ``values`` at its path; None if the result would not mean ``expected``,
    because the layout is unusual."""
    edited = text.replace("\r\n", "\n")
    try:
        for path, value in values.items():
            edited = _with_value(edited, path, value)
        if "\r\n" in text:
            edited = edited.replace("\n", "\r\n")
        return edited if load(edited, "") == expected else None
    except (FileProblemsError, yaml.YAMLError):  # PyYAML's own scanner takes less than libyaml
        return None


def _with_value(text: str, path: YamlPath, value: Any) -> str:
    node = yaml.compose(text, Loader=yaml.SafeLoader)  # its marks count characters
    if node is None:
        ended = text if not text or text.endswith("\n") else f"{text}\n"
        return ended + _dumped(_nested(path, value), _EntryDumper)
    start, rest, column = 0, path, -1
    while rest:
        is_block = isinstance(node, yaml.CollectionNode) and not node.flow_style
        key, child = _child(node, rest[0])
        if child is None and isinstance(node, yaml.MappingNode):
            return _with_entry(text, node, _nested(rest, value))
        if child is None:
            break
        start = text.index(":", key.end_mark.index) + 1 if key else child.start_mark.index
        column = key.start_mark.column if key and is_block else -1
        node, rest = child, rest[1:]
    value, end = _nested(rest, value), _leaf_end(node)
    if not isinstance(value, dict) or not value or column < 0:
        return f"{text[:start]} {_dumped(value, _Dumper, flow=True).strip()}{text[end:]}"
    # A block replaces the rest of the line, except a comment at the end of the line.
    line_end = text.find("\n", end) if "\n" in text[end:] else len(text)
    lines = "".join(f"\n{' ' * (column + 2)}{line}" for line in _dumped(value, _EntryDumper).splitlines())
    return f"{text[:start]}{text[end:line_end].rstrip()}{lines}{text[line_end:]}"


def _with_entry(text: str, mapping: yaml.MappingNode, entry: Any) -> str:
    """``text`` with another entry at the end of ``mapping``."""
    if mapping.flow_style:
        comma, end = (", ", _leaf_end(mapping.value[-1][1])) if mapping.value else ("", mapping.end_mark.index - 1)
        return f"{text[:end]}{comma}{_dumped(entry, _Dumper, flow=True).strip()[1:-1]}{text[end:]}"
    end = _leaf_end(mapping)
    end = end - 1 if text[end - 1] == "\n" else text.find("\n", end)  # a block of text ends with its last line break
    end = len(text) if end < 0 else end
    indent = " " * mapping.start_mark.column
    lines = "".join(f"\n{indent}{line}" for line in _dumped(entry, _EntryDumper).splitlines())
    return f"{text[:end]}{lines}{text[end:] or chr(10)}"


def _nested(path: YamlPath, value: Any) -> Any:
    return {path[0]: _nested(path[1:], value)} if path else value


def _leaf_end(node: yaml.Node) -> int:
    """The end of the last scalar in a value: the end of a block counts the comments after it, too."""
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        return _leaf_end(last[1] if isinstance(last, tuple) else last)
    end: int = node.end_mark.index
    return end


# Checking a user's file with its JSON Schema: all problems at once, each with its location.


@functools.cache
def schema(path: Path) -> dict[str, Any]:
    """The JSON Schema in ``path``."""
    loaded: dict[str, Any] = json.loads(path.read_bytes())
    return loaded


@functools.cache
def validator(path: Path) -> Any:
    """The validator of jsonschema-rs for the JSON Schema in ``path``."""
    import jsonschema_rs

    return jsonschema_rs.Draft202012Validator(schema(path))


def problems(data: Any, schema_file: Path, text: str, file: str) -> tuple[Problem, ...]:
    """Every violation of its schema in ``data`` (read from ``text``); empty if there is none."""
    complaints = {
        Problem(location_of(path, text, file), message)
        for error in validator(schema_file).iter_errors(data)
        for path, message in _explained(error, schema(schema_file))
    }
    return tuple(sorted(complaints))


def _explained(error: Any, root: dict[str, Any]) -> list[tuple[YamlPath, str]]:
    """The complaints of one error, each with its path."""
    path: YamlPath = tuple(error.instance_path)
    named = f"`{'.'.join(map(str, path))}`" if path else ""
    node = _schema_node(root, list(error.schema_path)[:-1])
    kind = type(error.kind).__name__
    if kind == "AdditionalProperties":
        keys = list(node.get("properties", {}))
        return [((*path, key), f"unknown key `{key}`{_nearest(key, keys)}") for key in error.kind.unexpected]
    if kind == "Required":
        return [(path, f"the key `{error.kind.property}` is missing{f' in {named}' if path else ''}")]
    if kind == "PropertyNames":
        name, pattern = error.kind.value.instance, node["pattern"]
        return [((*path, name), f"`{name}` is not a valid name here: names must match `{pattern}`")]
    description = f"; expected: {node['description']}" if node.get("description") else ""
    return [(path, f"{f'{named}: ' if path else ''}{_complaint(error, kind, node)}{description}")]


def _complaint(error: Any, kind: str, node: dict[str, Any]) -> str:
    shown = json.dumps(error.instance, ensure_ascii=False, default=str)
    shown = shown if len(shown) <= 60 else f"{shown[:57]}…"
    if kind == "Type" and error.instance is None:
        return "is empty"
    if kind == "Enum":
        return f"{shown} is not one of {', '.join(map(str, error.kind.options))}"
    if kind == "Pattern":
        return f"{shown} does not have the expected form"
    if kind in {"Type", "MaxItems", "MaxProperties"}:
        types = node["type"] if isinstance(node.get("type"), list) else [node.get("type", "anything else")]
        # A list or mapping that may only be empty is not a type to suggest.
        empty = {name for name, most in (("array", "maxItems"), ("object", "maxProperties")) if node.get(most) == 0}
        wanted = " or ".join(_WORDS.get(name, name) for name in types if name not in empty | {"null"})
        return f"{shown} is not {wanted}{_advice(error.instance, types)}"
    if kind in {"OneOfNotValid", "AnyOf", "OneOfMultipleValid"}:
        return f"{shown} is not valid here"
    return str(error.message)


def _advice(value: Any, types: list[str]) -> str:
    """Advice for text in place of entries or items, and for entries or items in place of text."""
    if isinstance(value, dict | list) and "string" in types:
        return "; put single quotes around text that begins with a bracket or brace"
    if isinstance(value, str) and (match := re.match(r"[A-Za-z_][\w-]*(:)[^\s:/]|(-)[^\s-]", value)):
        return f"; is a space missing after a {'colon' if match[1] else '`-`'}?"
    return ""


_WORDS = {
    "object": "a mapping (`key: value` lines)",
    "array": "a list (`- value` lines)",
    "string": "text (in quotes, if it looks like a number, true or false)",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "null": "empty",
}


def _schema_node(root: dict[str, Any], path: list[str | int]) -> dict[str, Any]:
    node: Any = root
    for part in path:
        if isinstance(node, dict) and "$ref" in node:
            node = _schema_node(root, node["$ref"].removeprefix("#/").split("/"))
        if part != "$ref":
            node = node[part]
    return node if isinstance(node, dict) else {}


def _nearest(key: str, keys: list[str]) -> str:
    suggestion = did_you_mean(key, keys, code=True)
    return f"; {suggestion}" if suggestion else f"; known here: {', '.join(keys)}" if keys else ""
