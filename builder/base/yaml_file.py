"""This page reads the YAML that users write, and locates every error in it.

Repeated keys come first, then the accepted subset of YAML, syntax errors, the reader and the schema check.
A valid file is read fast. Locations are computed only after an error is known.
The schemas are the only description of a format: editors read them, and errors quote them.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml

from builder.base.errors import FileProblemsError, Location, Problem
from builder.base.words import did_you_mean

if TYPE_CHECKING:
    from pathlib import Path


# Keys that stand twice in one mapping of a file that was written for PyYAML, which takes the last of them.

YamlPath = tuple[str | int, ...]

_MERGE = "tag:yaml.org,2002:merge"


@dataclass(frozen=True)
class Repetition:
    """A key that stands again at ``line`` and ``column`` (from 1), after ``earlier_line``. Its later value counts, and
    is ``same`` if it equals the earlier one; ``values`` are both where they are plain, the earlier one first."""

    path: YamlPath
    line: int
    column: int
    earlier_line: int
    same: bool
    values: tuple[str, str] | None


def drop_earlier(root: yaml.Node) -> tuple[Repetition, ...]:
    """Removes every value from the mappings under ``root`` whose key stands again later, and reports each."""
    repetitions: list[Repetition] = []
    visited: set[int] = set()

    def visit(node: yaml.Node, path: YamlPath) -> None:
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


def _drop(node: yaml.MappingNode, path: YamlPath) -> list[Repetition]:
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


def _repetition(path: YamlPath, earlier: tuple[yaml.Node, yaml.Node], later: tuple[yaml.Node, yaml.Node]) -> Repetition:
    mark = later[0].start_mark
    if isinstance(earlier[1], yaml.ScalarNode) and isinstance(later[1], yaml.ScalarNode):
        values = (str(earlier[1].value), str(later[1].value))
        same = values[0] == values[1]
    else:
        values = None
        same = yaml.serialize(earlier[1]) == yaml.serialize(later[1])
    return Repetition(path, mark.line + 1, mark.column + 1, earlier[0].start_mark.line + 1, same, values)


# The subset of YAML that files of the user may use: mappings with text as keys, lists, and plain values. YAML has
# more: tags that create objects, aliases that contain themselves or expand to millions of values, lists as keys.
# Whatever PyYAML or a schema would fail on is refused here, on the nodes, which know their locations.

Resolve = Callable[[type[yaml.Node], Any, Any], str]

DEEPEST = 64  # blocks within blocks: far below what overflows the stack of the C parser
_MOST = 100_000  # values, each alias counted as what it stands for
_LONGEST_NUMBER = 40

_YAML = "tag:yaml.org,2002:"
_PLAIN = {f"{_YAML}{name}" for name in ("null", "bool", "int", "float")}


def check(root: yaml.Node, resolve: Resolve) -> None:
    """Raises MarkedYAMLError, with its location, for anything but plain data of a moderate size.

    ``resolve`` returns the default tag of a node: (kind, text, (True, False)).
    """
    around: set[int] = set()
    left = _MOST

    def visit(node: yaml.Node, where: yaml.Node) -> None:
        nonlocal left
        left -= 1
        if id(node) in around:
            raise refused(where, "an alias to what it stands in")
        if len(around) > DEEPEST:
            raise refused(where, "blocks within blocks, too deep")
        if left < 0:
            raise refused(where, "aliases of aliases, which stand for too much")
        around.add(id(node))
        if isinstance(node, yaml.ScalarNode):
            _check_scalar(node, resolve)
        elif isinstance(node, yaml.SequenceNode):
            _check_tag(node, "seq")
            for item in node.value:
                visit(item, item)
        elif isinstance(node, yaml.MappingNode):
            _check_tag(node, "map")
            _check_keys(node)
            for key, value in node.value:
                visit(value, key)
        around.discard(id(node))

    visit(root, root)


def _check_keys(node: yaml.MappingNode) -> None:
    written: set[str] = set()
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise refused(key, "a key must be plain text")
        if key.value in written:
            raise refused(key, f"the key `{key.value}` stands twice")
        written.add(key.value)
        if key.tag == f"{_YAML}merge" and not _merges(value):
            raise refused(key, "`<<` takes in a mapping, or a list of them")


def _merges(node: yaml.Node) -> bool:
    items = node.value if isinstance(node, yaml.SequenceNode) else [node]
    return all(isinstance(item, yaml.MappingNode) for item in items)


def _check_scalar(node: yaml.ScalarNode, resolve: Resolve) -> None:
    plain = resolve(yaml.ScalarNode, node.value, (True, False))
    if node.tag != f"{_YAML}str" and (node.tag not in _PLAIN or node.tag != plain):
        raise refused(node, f"{_named(node.tag)} has no place here; quote what is meant as text")
    if node.tag == f"{_YAML}int" and len(node.value) > _LONGEST_NUMBER:
        raise refused(node, "a number of so many digits; quote what is meant as text")


def _check_tag(node: yaml.Node, kind: str) -> None:
    if node.tag != f"{_YAML}{kind}":
        raise refused(node, f"{_named(node.tag)} has no place here")


def _named(tag: str) -> str:
    return f"the tag `{tag.replace(_YAML, '!!')}`"


class Refusal(yaml.MarkedYAMLError):
    """YAML that is valid, and not taken here."""


def refused(node: yaml.Node | None, message: str) -> Refusal:
    """The error that refuses a node with ``message``."""
    return Refusal(None, None, message, node.start_mark if node else None)


# Faults of syntax in our own words, at the line that has them. libyaml reports where it could not go on, which is
# often a line or many after the mistake, and in terms of its grammar.

_CONFLICT = re.compile(r"(<{7}|\|{7}|={7}|>{7})( |$)")
_KEY = r"[A-Za-z_][\w.-]*"
_ENTRY = re.compile(rf"(?P<indentation> *)(?:- +)?(?P<key>{_KEY}|'[^']*'|\"[^\"]*\") *:(?: +(?P<value>.*))?$")
_NO_SPACE = re.compile(rf"(?P<indentation> *)(?P<key>{_KEY}):(?P<value>[^\s:/].*)$")
_NO_COLON = re.compile(rf"(?P<indentation> *)(?P<key>{_KEY}) +(?P<value>[^\s:#][^:]*)$")
_WORD = re.compile(rf"(?P<indentation> *)(?P<key>{_KEY}) *$")
_LONGEST = 60
# The key of a recipe whose value is a text over several lines.
_TEXT = "command"

# What libyaml reports, and what it means where no line tells more.
_MEANINGS = (
    ("did not find expected comment or line break", "a text begins on the line after its `|` or `>`"),
    ("block sequence entries are not allowed", "a list begins on the line after its key"),
    ("did not find expected '-' indicator", "an item of a list begins with `- `, all at the same column"),
    ("but found another document", "a second document begins here; a file holds one"),
    ("did not find expected <document start>", "the document ended above; a file holds one"),
    ("found undefined alias", "a value cannot begin with `*`; quote it"),
    ("did not find expected alphabetic or numeric character", "a value cannot begin with `*` or `&`; quote it"),
    ("found unknown escape character", "double quotes know no such escape; use single quotes"),
    ("control characters are not allowed", "a control character; remove it"),
    ("mapping keys are not allowed", "a `?` has no place here"),
    ("found duplicate anchor", "an anchor of this name was there before"),
    ("found incompatible YAML document", "another version of YAML than 1.1 or 1.2"),
)


@dataclass(frozen=True)
class SyntaxFault:
    """A fault in line ``line``, column ``column``, both from 1."""

    line: int
    column: int
    message: str


@dataclass(frozen=True)
class _Stop:
    """The message of libyaml, and its places: the line and column, from 0, at which it could not go on (``at``), and
    those at which it began what it was reading (``begun``)."""

    message: str
    at: tuple[int, int]
    begun: tuple[int, int]


def explain(error: yaml.MarkedYAMLError, text: str) -> SyntaxFault:
    """The fault in ``text`` that ``error`` reports."""
    lines = text.splitlines() or [""]
    mark = error.problem_mark or error.context_mark
    begun = error.context_mark or mark
    stop = _Stop(
        error.problem or error.context or "",
        (mark.line, mark.column) if mark else (0, 0),
        (begun.line, begun.column) if begun else (0, 0),
    )
    for explained in (conflict(text), _tab(lines, stop), _by_message(lines, stop)):
        if explained:
            return explained
    meaning = next((meaning for raw, meaning in _MEANINGS if raw in stop.message), "")
    return _fault(stop.at, meaning or f"YAML cannot read on from here: {stop.message}")


def _fault(at: tuple[int, int], message: str) -> SyntaxFault:
    return SyntaxFault(at[0] + 1, at[1] + 1, message)


def conflict(text: str) -> SyntaxFault | None:
    """The marks that git leaves where a merge was not finished, if there are any."""
    if "<<<<<<<" not in text and ">>>>>>>" not in text:
        return None
    lines = text.splitlines()
    marked = [number for number, line in enumerate(lines, 1) if _CONFLICT.match(line)]
    if not any(lines[number - 1][0] in "<>" for number in marked):
        return None
    where = f" (lines {', '.join(map(str, marked))})" if len(marked) > 1 else ""
    return SyntaxFault(marked[0], 1, f"marks of a merge conflict{where}: keep one version, and remove the marks")


def _tab(lines: list[str], stop: _Stop) -> SyntaxFault | None:
    line = _line(lines, stop.at[0])
    blank = line[: len(line) - len(line.lstrip())]
    if "\t" in blank and ("tab" in stop.message or "cannot start any token" in stop.message):
        return SyntaxFault(stop.at[0] + 1, blank.index("\t") + 1, "a tab in the indentation: YAML takes spaces only")
    return None


def _by_message(lines: list[str], stop: _Stop) -> SyntaxFault | None:
    message = stop.message
    if "mapping values are not allowed" in message:
        return _second_colon(lines, stop)
    if "could not find expected ':'" in message:
        return _no_key(lines, stop.begun[0])
    if "found unexpected end of stream" in message:
        return _fault(stop.begun, "the quote that opens here is never closed")
    if "cannot start any token" in message:
        char = _line(lines, stop.at[0])[stop.at[1] : stop.at[1] + 1]
        return _fault(stop.at, f"a value cannot begin with {'a backtick' if char == '`' else f'`{char}`'}; quote it")
    if "did not find expected ','" in message:
        bracket = _line(lines, stop.begun[0])[stop.begun[1] : stop.begun[1] + 1]
        return _fault(stop.begun, f"the `{bracket}` that opens here is not closed, or a comma is missing in it")
    if "alias" in message or "alphabetic or numeric" in message:
        return _fault(stop.begun, next(meaning for raw, meaning in _MEANINGS if raw in message))
    if "did not find expected key" in message:
        return _no_entry(lines, stop)
    if "did not find expected <document start>" in message:
        return _first_line_indented(lines)
    return None


def _second_colon(lines: list[str], stop: _Stop) -> SyntaxFault:
    """A colon where no key can be: in a plain value, or after a line that lacks its own."""
    number, column = stop.at
    line = _line(lines, number)
    above = _above(lines, number)
    head = _head(lines, number)
    if head and head[1] == _TEXT:
        return SyntaxFault(head[0] + 1, 1, f"a text over several lines begins with `|`: `{_TEXT}: |`")
    if above is not None and len(_indentation(lines[above])) <= len(_indentation(line)):
        lacking = _lacking(lines, above)
        if lacking:
            return lacking
    entry = _ENTRY.match(line)
    if entry and entry["value"] and column >= entry.start("value"):
        key = entry["key"]
        advice = f"put it below `{key}: |`" if key == _TEXT else f"quote it: {key}: {_quoted(entry['value'])}"
        return _fault(stop.at, f"the value of `{key}` holds a colon and a space; {advice}")
    if entry and above is not None and (_ENTRY.match(lines[above]) or lines[above].lstrip().startswith("- ")):
        at = (number, len(_indentation(line)))
        return _fault(at, "this line is indented more than the one above, whose value is complete")
    return _fault(stop.at, "a colon and a space inside a value; quote the value")


def _no_key(lines: list[str], number: int) -> SyntaxFault:
    """A line without colon where a key must be."""
    lacking = _lacking(lines, number)
    if lacking:
        return lacking
    line = _line(lines, number)
    return SyntaxFault(number + 1, len(_indentation(line)) + 1, f"no `key: value`: `{_short(line.strip())}`")


def _lacking(lines: list[str], number: int) -> SyntaxFault | None:
    """The fault of a line that lacks its colon, or the space after it."""
    line = lines[number].partition(" #")[0].rstrip()
    match = _NO_SPACE.match(line)
    if match:
        written = f"`{match['key']}: {_short(match['value'])}`"
        return SyntaxFault(number + 1, match.end("key") + 1, f"a space is missing after the colon: {written}")
    match = _NO_COLON.match(line)
    if match:
        written = f"`{match['key']}: {_short(match['value'])}`"
        return SyntaxFault(number + 1, match.end("key") + 1, f"a colon is missing: {written}")
    match = _WORD.match(line)
    if match:
        return SyntaxFault(number + 1, match.end("key") + 1, f"a colon is missing: `{match['key']}:`")
    return None


def _no_entry(lines: list[str], stop: _Stop) -> SyntaxFault:
    """Something in a mapping that is no entry of it."""
    number, column = stop.at
    line = _line(lines, number)
    entry = _ENTRY.match(line)
    if entry and entry["value"] and column > entry.start("value"):
        quote = line[:column].rstrip()[-1:]
        if quote not in {'"', "'"}:
            advice = f"ends where that is closed; quote the value of `{entry['key']}`"
            return _fault(stop.at, f"a value that begins with `{entry['value'][0]}` {advice}")
        unclosed = _unclosed(lines, number, quote)
        if unclosed:
            return unclosed
        return _fault(stop.at, f"text follows the closing quote; quote the whole value of `{entry['key']}`")
    rest = line[column:]
    if rest.startswith("- ") and not any(above.startswith(f"{' ' * column}- ") for above in lines[:number]):
        item = next((above for above in reversed(lines[:number]) if above.lstrip().startswith("- ")), None)
        if item is None or len(_indentation(item)) < column:
            return _fault(stop.at, "an item of a list among keys")
    if rest.startswith(":"):
        return _fault(stop.at, "a key is missing before the colon")
    return _fault(stop.at, "the indentation of this line fits none above it")


def _first_line_indented(lines: list[str]) -> SyntaxFault | None:
    first = next((n for n, line in enumerate(lines) if line.strip() and not line.lstrip().startswith("#")), 0)
    if not lines[first].startswith(" "):
        return None
    return SyntaxFault(first + 1, 1, "this line is indented, and those below that belong beside it are not")


def _unclosed(lines: list[str], number: int, quote: str) -> SyntaxFault | None:
    """The fault of a line above whose value begins with ``quote`` and does not end with it."""
    for n in range(number - 1, -1, -1):
        entry = _ENTRY.match(lines[n].rstrip())
        if entry and (entry["value"] or "").startswith(quote) and entry["value"].count(quote) == 1:
            return _fault((n, entry.start("value")), "the quote that opens here is not closed on its line")
    return None


def _above(lines: list[str], number: int) -> int | None:
    """The number of the nearest line above that is neither blank nor a comment."""
    return next(
        (
            n
            for n in range(min(number, len(lines)) - 1, -1, -1)
            if lines[n].strip() and not lines[n].lstrip().startswith("#")
        ),
        None,
    )


def _head(lines: list[str], number: int) -> tuple[int, str] | None:
    """The key without a value that line ``number``, and others that are no entries, stand below: its line, and it."""
    indentation = len(_indentation(_line(lines, number)))
    for n in range(number - 1, -1, -1):
        entry = _ENTRY.match(lines[n].rstrip())
        if entry and len(_indentation(lines[n])) < indentation:
            return (n, entry["key"]) if not entry["value"] else None
        if entry:
            return None
    return None


def _line(lines: list[str], number: int) -> str:
    return lines[number] if number < len(lines) else ""


def _indentation(line: str) -> str:
    return line[: len(line) - len(line.lstrip(" "))]


def _quoted(value: str) -> str:
    escaped = _short(value.strip()).replace("'", "''")
    return f"'{escaped}'"


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


# YAML that users write or merge, with the location of every value. ``load`` is fast and reports what YAML itself
# cannot parse; ``locations`` is called only once something is wrong. Duplicate keys are refused: PyYAML would
# silently keep the last one. ``load_shared`` reads files that were written for it: there the last one counts, and the
# repetition is told.

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _TextKeyLoader(_Loader):  # type: ignore[misc]
    """A loader that keeps every key as the text written (``7`` stays ``"7"``); ``subset`` checks its nodes before they
    become values."""

    depth = 0

    def descend_resolver(self, parent: yaml.Node | None, index: object) -> None:
        self.depth += 1
        if self.depth > DEEPEST:
            raise refused(parent, "blocks within blocks, too deep")
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
    return _load(text, file, drop_earlier)


def _load(
    text: str, file: str, prepare: Callable[[yaml.Node], tuple[Repetition, ...]]
) -> tuple[Any, tuple[Repetition, ...]]:
    loader = _TextKeyLoader(text)
    try:
        root = loader.get_single_node()
        if root is None:
            return None, ()
        repetitions = prepare(root)
        check(root, loader.resolve)
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
    if isinstance(error, Refusal):
        mark = error.problem_mark
        return Problem(Location(file, mark.line + 1, mark.column + 1) if mark else Location(file), str(error.problem))
    if isinstance(error, yaml.MarkedYAMLError):
        fault = explain(error, text)
        return Problem(Location(file, fault.line, fault.column), fault.message)
    return Problem(Location(file), "not YAML")


def locations(text: str, file: str) -> dict[YamlPath, Location]:
    """The location of each value of ``text``; that of a value in a mapping is the location of its key."""
    collected: dict[YamlPath, Location] = {}
    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    root = yaml.compose(text, Loader=loader)

    def visit(node: yaml.Node | None, path: YamlPath, mark: Any) -> None:
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


def location_of(path: YamlPath, value_locations: dict[YamlPath, Location], file: str) -> Location:
    """The location of ``path``, or of the innermost value around it."""
    while path and path not in value_locations:
        path = path[:-1]
    return value_locations.get(path, Location(file))


def location_within(text: str, file: str, path: YamlPath, written: str, earlier: int) -> Location:
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


# Checking a file of the user's against its JSON Schema: all problems at once, each with its location. The schemas are
# the single description of the formats: editors read them, and errors quote their ``description`` texts.


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
    errors = list(validator(schema_file).iter_errors(data))
    if not errors:
        return ()
    value_locations = locations(text, file)
    collected: list[Problem] = []
    for error in errors:
        collected.extend(_explain(error, schema(schema_file), value_locations, file))
    return tuple(sorted(set(collected)))


def _explain(error: Any, root: dict[str, Any], value_locations: dict[YamlPath, Location], file: str) -> list[Problem]:
    path: YamlPath = tuple(error.instance_path)
    location = location_of(path, value_locations, file)
    parent = _node(root, list(error.schema_path)[:-1])
    kind = type(error.kind).__name__
    if kind == "AdditionalProperties":
        keys = list(parent.get("properties", {}))
        return [
            Problem(location_of((*path, key), value_locations, file), f"unknown key `{key}`{_nearest(key, keys)}")
            for key in error.kind.unexpected
        ]
    if kind == "Required":
        return [Problem(location, f"the key `{error.kind.property}` is missing{_within(path)}")]
    if kind == "PropertyNames":
        name = error.kind.value.instance
        message = f"`{name}` has characters that are not allowed in a name here"
        return [Problem(location_of((*path, name), value_locations, file), message)]
    description = parent.get("description", "")
    complaint = _shape(error, kind, parent)
    return [Problem(location, f"{_at_path(path)}{complaint}" + (f"; meant is: {description}" if description else ""))]


def _shape(error: Any, kind: str, parent: dict[str, Any]) -> str:
    if kind == "Type" and error.instance is None:
        return "is empty"
    if kind == "Enum":
        return f"{_as_json(error.instance)} is none of {', '.join(map(str, error.kind.options))}"
    if kind == "Pattern":
        return f"{_as_json(error.instance)} has characters that are not allowed here"
    if kind in {"Type", "MaxItems", "MaxProperties"}:
        return f"{_as_json(error.instance)} is not {_wanted(parent)}{_advice(error.instance, parent)}"
    if kind in {"OneOfNotValid", "AnyOf", "OneOfMultipleValid"}:
        return f"{_as_json(error.instance)} fits none of the forms known here"
    return str(error.message)


def _wanted(node: dict[str, Any]) -> str:
    """The types of a value, without those that are only there so that it may be empty."""
    types = node["type"] if isinstance(node.get("type"), list) else [node.get("type", "anything else")]
    empty = {name for name, most in (("array", "maxItems"), ("object", "maxProperties")) if node.get(most) == 0}
    return " or ".join(_WORDS.get(name, name) for name in types if name not in empty | {"null"})


def _advice(value: Any, node: dict[str, Any]) -> str:
    """Advice for text that was meant as entries or items, and the other way round."""
    if isinstance(value, dict | list) and "string" in node.get("type", ()):
        return "; for text that begins with a bracket or brace, put single quotes around it"
    if isinstance(value, str) and re.match(r"[A-Za-z_][\w-]*:[^\s:/]", value):
        return "; is a space missing after a colon?"
    if isinstance(value, str) and re.match(r"-[^\s-]", value):
        return "; is a space missing after a `-`?"
    return ""


_WORDS = {
    "object": "a mapping (`key: value` lines)",
    "array": "a list (`- value` lines)",
    "string": "text (quote it where YAML reads it as a number or as true and false)",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "null": "empty",
}


def _node(root: dict[str, Any], path: list[str | int]) -> dict[str, Any]:
    node: Any = root
    for part in path:
        if isinstance(node, dict) and "$ref" in node:
            node = _node(root, node["$ref"].removeprefix("#/").split("/"))
        if part == "$ref":
            continue
        node = node[part]
    return node if isinstance(node, dict) else {}


def _nearest(key: str, keys: list[str]) -> str:
    suggestion = did_you_mean(key, keys, code=True)
    return f"; {suggestion}" if suggestion else f"; known here: {', '.join(keys)}" if keys else ""


def _at_path(path: YamlPath) -> str:
    return f"`{'.'.join(map(str, path))}`: " if path else ""


def _within(path: YamlPath) -> str:
    return f" in `{'.'.join(map(str, path))}`" if path else ""


def _as_json(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:57] + "…"
