"""The text of images.lock: its readers and its writer.

Scalars come first, then the quick reader, the reader of any YAML, comments and the writer.
This program wrote nearly every file that it reads. Importing and running a YAML parser takes several times as long as
everything else. Both readers return the same data for a text that both can read.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from builder.base.errors import FileProblemsError, Location, LockError, Problem, UsageError
from builder.base.values import dataclass, field
from builder.lock import layout
from builder.lock.checking import END, QUOTE, TAKE_BACK, lock_error

if TYPE_CHECKING:
    from collections.abc import Iterator

    from builder.lock.checking import Data, ValuePath
    from builder.lock.model import Lock

WIDTH = 120
HEADER = """\
# images.lock: which image serves each model, what every numbered image is, and what the next builds are made from.
# models (after the first build): `now` serves the model `since` then. `before` served it earlier, most recent first.
# images (after the first build): newest number first. `latest` is the tag NAME:latest. `each` holds unless overridden.
#   `builder prune` spares numbers that are latest, serving, `pinned`, in a container, or among the 3 newest of a NAME.
# builds: what the next build takes, besides mods: pinned versions. Only `--update` moves them to what `asked` names.
#   In dockerfiles/NAME/: `packages` is packages.PLATFORM.txt, `pulls` is pulls/vllm-PR-FIRST_12_OF_SHA256.patch.
# builder writes this. You may edit status, note, pinned (`builder keep`) and `now`; comments stay. It ends with `...`.
"""


# Scalars on one line, in blocks and in flow collections (`{a: b}`). The patterns are possessive, so that a long line
# takes no longer if it does not match. The pattern of quoted text has only the escapes that the writer uses.

_PLAIN_TEXT = r"[A-Za-z0-9_/](?:[A-Za-z0-9_./+=<>~!@;()*%$^&'-]++|:(?![ ,\]}]|\Z)| (?![ #:,{}\[\]]|\Z))*+"
_NOT_AS_IT_IS = r"\x00-\x1f\"\\\x7f-\xa0\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff"
_QUOTED_TEXT = rf'"(?:[^{_NOT_AS_IT_IS}]++|\\u(?!d[89a-f])[0-9a-f]{{4}}|\\["\\nt])*+"'

_PLAIN = re.compile(_PLAIN_TEXT)
# Text that YAML 1.1 (PyYAML) or 1.2 (yq, Go) reads as a number, a date, a truth value or null. Times stay plain: YAML
# readers read them as times, and this reader as text.
_OTHER_TYPE = re.compile(
    r"[0-9][0-9_]*(?::[0-5]?[0-9])*(?:\.[0-9_]*)?(?:e[-+]?[0-9]+)?|0x[0-9a-f_]+|0o[0-7_]+|0b[01_]+"
    r"|[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}|null|true|false|yes|no|on|off|y|n",
    re.IGNORECASE,
)
_LONGEST_KEY = 1000  # in characters; YAML requires the colon within 1024 after the start of a key
_ESCAPED = re.compile(f"[{_NOT_AS_IT_IS}]")
_SHORT = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t"}
_SURROGATE = re.compile("[\ud800-\udfff]")


def quote(text: str) -> str:
    """``text`` as a YAML scalar on one line. Raises UsageError for text that is not Unicode: bytes in an argument or a
    file name that Python could not decode."""
    if _PLAIN.fullmatch(text) and not _OTHER_TYPE.fullmatch(text):
        return text
    if _SURROGATE.search(text):
        raise UsageError(f"{text!r} is not UTF-8 text, so images.lock cannot hold it", hint="write it in UTF-8")
    escaped = _ESCAPED.sub(lambda match: _SHORT.get(match[0]) or f"\\u{ord(match[0]):04x}", text)
    return f'"{escaped}"'


# The quick reader. Three levels are blocks, indented by two. Everything below is a flow collection; its further lines
# are indented by six. With quotes around its plain scalars, a flow collection is JSON.

_LINE = re.compile(rf"((?:  ){{0,2}})({_PLAIN_TEXT}|{_QUOTED_TEXT}):(?: (.+))?")
_COMMENT_LINE = re.compile("\n *#.*")
_NEXT_LINE = ",\n      "
_SCALAR = re.compile(rf"(?!(?:null|Null|NULL)(?:[,\]}}]|\Z)){_PLAIN_TEXT}|{_QUOTED_TEXT}")


def read_layout(text: str) -> Data:
    """The data of ``text``, with every scalar as text; None if this program does not write such a layout."""
    if not text.replace("\n", "").isprintable():  # other line breaks, and characters that YAML rejects
        return None
    try:
        return _blocks(text.rstrip().removesuffix(END))
    except (ValueError, RecursionError):
        return None


def _blocks(text: str) -> dict[str, Data]:
    """The data of the blocks in ``text``. Raises ValueError for another layout."""
    decode = json.JSONDecoder(object_pairs_hook=_block).decode
    around: list[dict[str, Any]] = [{}]
    for line in _COMMENT_LINE.sub("\n", f"\n{text}").replace(_NEXT_LINE, ", ").split("\n"):
        if not line or line.isspace():
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise ValueError(line)
        indent, key, value = match.groups()
        depth, open_blocks = len(indent) // 2, len(around) - 1
        if depth > open_blocks or (depth < open_blocks and not around[-1]) or not (value or depth < 2):
            raise ValueError(line)
        del around[depth + 1 :]
        name = json.loads(key) if key[0] == '"' else key
        if name in around[depth] or len(key) > _LONGEST_KEY:
            raise ValueError(line)
        around[depth][name] = decode(_SCALAR.sub(_quoted, value)) if value else {}
        if not value:
            around.append(around[depth][name])
    if not around[-1]:
        raise ValueError("the last block is empty")
    return around[0]


def _quoted(match: re.Match[str]) -> str:
    scalar = match[0]
    return scalar if scalar[0] == '"' else f'"{scalar}"'


def _block(pairs: list[tuple[str, Data]]) -> dict[str, Data]:
    block = dict(pairs)
    if len(block) < len(pairs):
        raise ValueError("a key is repeated")
    return block


# The reader of any other YAML layout, for a file that was edited or merged, or that is wrong. The place of a value in
# the lock decides its type, never YAML: ``0.32`` stays text.

_NOTHING = ("", "~", "null", "Null", "NULL")


@dataclass
class Tree:
    """The data of a file, the place of each value (in a block: of its key), and the problems in valid YAML."""

    data: Data = None
    places: dict[ValuePath, Location] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


def read_tree(text: str, file: str) -> Tree:
    """Reads ``text``. Raises LockError with the place of invalid YAML."""
    from builder.base import yaml_file

    try:
        root = yaml_file.compose(text, file)
    except FileProblemsError as error:
        problems = (Problem(each.location, f"not YAML: {each.message}") for each in error.problems)
        raise lock_error(problems, QUOTE) from None
    if root is None:
        raise lock_error([Problem(Location(file), "the file is empty")], TAKE_BACK)
    tree = Tree()
    seen: set[int] = set()

    def data_of(node: Any, where: Any, path: ValuePath) -> Data:
        tree.places[path] = place = _place(file, where)
        if id(node) in seen:  # nested aliases can expand to more than fits into memory
            raise lock_error([Problem(place, "an alias is not allowed in this file")], TAKE_BACK)
        seen.add(id(node))
        if node.id == "sequence":
            return [data_of(item, item, (*path, index)) for index, item in enumerate(node.value)]
        if node.id == "scalar":
            return None if not node.style and node.value in _NOTHING else str(node.value)
        block: dict[str, Data] = {}
        for key, value in node.value:
            if key.id != "scalar":
                tree.problems.append(Problem(_place(file, key), "a key must be plain text"))
            elif key.value in block:
                first = tree.places[*path, key.value]
                tree.problems.append(
                    Problem(_place(file, key), f"the key `{key.value}` is repeated; the first one is at {first}")
                )
            else:
                block[key.value] = data_of(value, key, (*path, key.value))
        return block

    tree.data = data_of(root, root, ())
    return tree


def _place(file: str, node: Any) -> Location:
    return Location(file, node.start_mark.line + 1, node.start_mark.column + 1)


# Comments. Each one stays with the key that it is above or beside, in one of the three block levels, or with the last
# line.

Comments = dict[tuple[str, ...], tuple[list[str], str]]
"""The comments above each key and the one at its end, by the path of the key; the last line counts as a key."""

# A quoted scalar, a comment, or a character: an apostrophe within plain text begins no scalar.
_WORD = re.compile(r"""(?<![^\s,:{\[])(?:"(?:\\.|[^"\\])*+"|'[^']*+')| #.*|.""")


def comments_of(text: str) -> Comments:
    """The user's comments in ``text``; empty for a damaged file."""
    own = set(HEADER.splitlines())
    lines = text.splitlines()
    numbered = [(n, line) for n, line in enumerate(lines, start=1) if "#" in line and line.rstrip() not in own]
    if not numbered:
        return {}
    paths: dict[int, tuple[str, ...]] = {}
    try:
        places = read_tree(text, "").places
    except LockError:
        return {}
    for path, place in places.items():
        if path:
            paths.setdefault(place.line or 0, tuple(map(str, path[:3])))
    comments: Comments = {}
    for number, line in numbered:
        is_whole = line.lstrip().startswith("#")
        pieces = [line] if is_whole else [piece for piece in _WORD.findall(line) if piece.startswith(" #")]
        # A whole line belongs to the key below it, but in a flow collection to the key of the collection.
        is_below = is_whole and not line.startswith(" " * 6)
        at = [n for n in paths if (n > number if is_below else n <= number)]
        if not pieces or not (at or is_below):
            continue
        path = paths[min(at) if is_below else max(at)] if at else (END,)
        above, end = comments.get(path, ([], ""))
        comment = pieces[0].strip()
        comments[path] = ([*above, comment], end) if is_whole or end else (above, comment)
    return comments


# The writer. Each line is one key of a model, an image or a build, so that a diff shows what changed.


def dump_lock(lock: Lock, comments: Comments | None = None) -> str:
    """``lock`` as the text of images.lock, with these ``comments`` at the keys that still exist. Raises UsageError for
    a string that is not Unicode text."""
    data = layout.data_of(lock)
    beside = comments or {}
    out = [HEADER.rstrip("\n")]

    def write(path: tuple[str, ...], lines: list[str]) -> None:
        above, end = beside.get(path, ([], ""))
        indent = "  " * (len(path) - 1)
        out.extend(f"{indent}{comment}" for comment in above)
        out.extend([*lines[:-1], f"{lines[-1]} {end}" if end else lines[-1]])

    write(("version",), [f"version: {data.pop('version')}"])
    for section, blocks in data.items():
        out.append("")
        write((section,), [f"{section}:"])
        for name, block in blocks.items():
            start = _key(name, "  ")
            write((section, name), [start if block else f"{start} {{}}"])
            for key, value in block.items():
                start = f"    {key}:" if section == "images" else _key(key, "    ")
                write((section, name, key), list(_folded(start, _flow(value))))
    out.append("")
    write((END,), [END])
    return "\n".join([*out, ""])


def _key(name: str, indent: str) -> str:
    quoted = quote(name)
    return f"{indent}{quoted}:" if len(quoted) <= _LONGEST_KEY else f"{indent}? {quoted}\n{indent}:"


# The keys that begin a line, so that an update of a source from git changes one line, and a mark of a number the first.
# A key that identifies the kind of a record maps to the keys that begin a line in it. In a number, the first key that
# is not a mark also begins a line.
_LINE_STARTS = {"git": ("version", "pulls"), "content": ("size",)}
_MARKS_OF_NUMBER = frozenset(("status", "built", "adopted", "recipe", "pinned", "pruned", "vllm", "base", "note"))
_BREAK = "\n"
_MEMBER = re.compile(r'(?:"(?:\\.|[^"\\])*+"|[^",])++,?')


def _flow(value: Any) -> str:
    """A value on one line, without spaces after its commas. A line break in it marks the end of a line."""
    if isinstance(value, dict):
        breaks = [name for key, names in _LINE_STARTS.items() if key in value for name in names]
        if "content" in value:
            breaks.append(next(name for name in value if name not in _MARKS_OF_NUMBER))
        members = (f"{_BREAK * (name in breaks)}{quote(name)}: {_flow(item)}" for name, item in value.items())
        return "{" + ",".join(members) + "}"
    if isinstance(value, list):
        between = f",{_BREAK}" if isinstance(value[0] if value else None, dict) else ","
        return f"[{between.join(map(_flow, value))}]"
    # Everything except numbers and truth values is written as text: YAML reads the image 1:1 as 61.
    return str(value).lower() if isinstance(value, int | float) else quote(str(value))


def _folded(start: str, flow: str) -> Iterator[str]:
    line = start
    for member in _MEMBER.findall(flow):
        if line != start and (member[0] == _BREAK or len(line) + 1 + len(member) > WIDTH):
            yield line
            line = f"      {member.removeprefix(_BREAK)}"
        else:
            line += f" {member}"
    yield line
