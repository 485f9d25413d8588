"""Ways in which a file that people write or merge goes wrong: in its bytes, its lines and its structure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import yaml
from hypothesis import strategies as st

from builder.base import yaml_file
from builder.base.errors import FileProblemsError

Mutation = Callable[[bytes], bytes]

DEEP = 400
BOMB = "a: &a [x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [*{old}, *{old}, *{old}, *{old}, *{old}, *{old}, *{old}, *{old}]\n"
    for old, new in zip("abcdefghi", "bcdefghij", strict=True)
)
# What may stand where a value is expected.
VALUES = [
    *(
        "",
        "null",
        "~",
        "[]",
        "{}",
        "[",
        "{",
        "}",
        "|",
        ">",
        "'",
        '"',
        "*nothing",
        "&x",
        "&x [*x]",
        "&x {a: *x}",
        "!",
        "!!",
    ),
    *("!!python/object/apply:os.system [x]", "!!python/name:os.system", "!!binary x", "!!binary aGVsbG8=", "!!set {a}"),
    *("!!omap [a: 1]", "!!pairs [a: 1]", "!!timestamp 2026-11-20", "!!timestamp x", "!!int x", "!!int ''", "!!bool x"),
    *(
        "!!float x",
        "!!null x",
        "!!str 1",
        "!!map []",
        "!!seq {}",
        "!!merge x",
        "!local x",
        "%x",
        "@x",
        "`x`",
        "=",
        "<<",
    ),
    *("1e999", ".inf", "-.inf", ".nan", "0o17", "0x1f", "1_000", "1:1:1", "-1", "1.5", "true", "yes", "2026-11-20"),
    *(
        "9" * 30,
        "9" * 5000,
        "0x" + "f" * 300,
        "1" + ":59" * 3000,
        "x" * 100_000,
        "{a: 1}",
        "[a, b]",
        "{<<: {a: 1}, a: 2}",
    ),
    *("{? [a] : b}", "{<<: {? [a] : b}}", "{<<: [1]}", "{<<: x}", "{[a]: b}", "{{a}: b}", "? a", "- a", "a: b: c"),
    *("[" * DEEP + "]" * DEEP, "{a: " * DEEP + "}" * DEEP, "[" * 100_000, "- " * 5000, "? " * 5000),
    *("ä", "模型 🦙", "\u202eabc", "\u2028", "\x85", "\ufeff", "\u0000", "\x1b[2J", "\t", "a\tb", "a #b", "a: b", "#"),
    *(
        "'\\u0000'",
        '"\\0"',
        '"\\ud800"',
        '"\\x1b[2J"',
        '"a\\nb"',
        '"\\U0001F999"',
        "../../etc/passwd",
        "$(reboot)",
        "a;b",
    ),
]
# What may stand between two lines.
LINES = [
    *(
        "<<<<<<< HEAD",
        "=======",
        ">>>>>>> theirs",
        "||||||| base",
        "---",
        "...",
        "--- a",
        "%YAML 9.9",
        "%TAG ! x",
        "<<: {a: 1}",
    ),
    *(
        "<<: *nothing",
        "x: &x {x: 1}",
        "<<: &y {<<: *y}",
        "\tx: 1",
        "  x: 1",
        "- x",
        "x",
        "? x",
        ": x",
        "x: [",
        '"',
        "'",
        BOMB,
    ),
    *(
        "\x00",
        "\ufeff",
        "\x85",
        "\u2028x: 1",
        "\x0c",
        "\x7f",
        "\r",
        "#" + "x" * 5000,
        " " * 5000 + "x: 1",
        "null: 1",
        "1: 1",
    ),
    *(
        "? [x]\n: 1",
        "? {x: 1}\n: 1",
        "? |\n  x\n: 1",
        "x: 1\nx: 2",
        '"x": 1\nx: 2',
        "true: 1\ntrue: 2",
        "~: ~",
        "=: 1",
        "<<: 1",
    ),
]
# What a value may become once it is data.
RETYPED: list[Any] = [
    None,
    True,
    0,
    -1,
    10**40,
    1.5,
    "",
    "x",
    "\n",
    "a\nb",
    "null",
    [],
    {},
    [None],
    [[]],
    {"": None},
    {"x": {}},
    [1, "a"],
]


def mutations(seeds: Sequence[bytes]) -> st.SearchStrategy[bytes]:
    """One of ``seeds`` with one to four things wrong with it."""
    once = st.one_of(_of_bytes(), _of_lines(), _of_values(), _of_structure())
    return st.builds(_apply, st.sampled_from(seeds), st.lists(once, min_size=1, max_size=4))


def _apply(seed: bytes, found: list[Mutation]) -> bytes:
    for mutation in found:
        seed = mutation(seed)
    return seed


_PLACES = st.floats(0, 1, exclude_max=True)  # where in the file: as a part of its length, since that changes


def _of_bytes() -> st.SearchStrategy[Mutation]:
    def change(at: float, length: int, new: bytes) -> Mutation:
        def apply(content: bytes) -> bytes:
            start = int(at * len(content))
            return content[:start] + new + content[start + length :]

        return apply

    def repeat(at: float, length: int, times: int) -> Mutation:
        def apply(content: bytes) -> bytes:
            start = int(at * len(content))
            return content[:start] + content[start : start + length] * times + content[start + length :]

        return apply

    return st.one_of(
        st.builds(change, _PLACES, st.integers(0, 3), st.binary(max_size=4)),
        st.builds(change, _PLACES, st.integers(0, 2000), st.just(b"")),
        st.builds(
            change,
            _PLACES,
            st.integers(0, 1),
            st.sampled_from(list("[]{}:-#&*!|>'\"%@`,? \n\t\r\0<=.")).map(str.encode),
        ),
        st.builds(change, _PLACES, st.just(10**9), st.just(b"")),
        st.builds(repeat, _PLACES, st.integers(1, 300), st.sampled_from([2, 3, 100])),
        st.sampled_from([_crlf, _cr, _tabs, _bom, _utf16, _latin]),
    )


def _of_lines() -> st.SearchStrategy[Mutation]:
    def on_lines(at: float, change: Callable[[list[bytes], int], None]) -> Mutation:
        def apply(content: bytes) -> bytes:
            lines = content.split(b"\n")
            change(lines, int(at * len(lines)))
            return b"\n".join(lines)

        return apply

    def insert(line: str) -> Callable[[list[bytes], int], None]:
        return lambda lines, at: lines.insert(at, _indent(lines[at]) + line.encode())

    def dedent(lines: list[bytes], at: int) -> None:
        lines[at] = lines[at].lstrip(b" ")

    def indent(lines: list[bytes], at: int) -> None:
        lines[at] = b" " + lines[at]

    def swap(lines: list[bytes], at: int) -> None:
        lines[at], lines[-at] = lines[-at], lines[at]

    changes: list[Callable[[list[bytes], int], None]] = [
        lambda lines, at: lines.insert(at, lines[at]),
        lambda lines, at: lines.__delitem__(at),
        lambda lines, at: lines.__setitem__(slice(at, at + 2), [b" ".join(lines[at : at + 2])]),
        lambda lines, at: lines.extend(lines[at:]),
        dedent,
        indent,
        swap,
    ]
    return st.builds(on_lines, _PLACES, st.sampled_from(changes) | st.sampled_from(LINES).map(insert))


def _indent(line: bytes) -> bytes:
    return line[: len(line) - len(line.lstrip(b" "))]


def _of_values() -> st.SearchStrategy[Mutation]:
    """Another value behind a key, or in a list."""

    def replaced(at: float, value: str) -> Mutation:
        def apply(content: bytes) -> bytes:
            lines = content.split(b"\n")
            with_values = [n for n, line in enumerate(lines) if b": " in line or line.lstrip().startswith(b"- ")]
            if with_values:
                number = with_values[int(at * len(with_values))]
                sign = b": " if b": " in lines[number] else b"- "
                lines[number] = lines[number].partition(sign)[0] + sign + value.encode()
            return b"\n".join(lines)

        return apply

    return st.builds(replaced, _PLACES, st.sampled_from(VALUES) | st.text(max_size=30))


def _of_structure() -> st.SearchStrategy[Mutation]:
    """The same data with another shape, where what came before left it readable."""

    def reshaped(places: list[float], change: Callable[[Any, Any], None], end: bool) -> Mutation:
        def apply(content: bytes) -> bytes:
            try:
                data = yaml_file.load(content.decode(), "seed")
                around, key = _walk(data, places)
                if around is not None:
                    change(around, key)
                return yaml.dump(
                    data, Dumper=yaml.CSafeDumper, sort_keys=False, allow_unicode=True, explicit_end=end
                ).encode()
            except (FileProblemsError, yaml.YAMLError, ValueError, TypeError, LookupError, RecursionError):
                return content

        return apply

    def retype(value: Any) -> Callable[[Any, Any], None]:
        return lambda around, key: around.__setitem__(key, value)

    def nest(depth: int) -> Callable[[Any, Any], None]:
        def change(around: Any, key: Any) -> None:
            for _ in range(depth):
                around[key] = [around[key]] if depth % 2 else {"x": around[key]}

        return change

    def rename(around: Any, key: Any) -> None:
        around["no such key" if isinstance(around, dict) else key] = around.pop(key)

    changes: list[Callable[[Any, Any], None]] = [
        lambda around, key: around.__delitem__(key),
        lambda around, key: around.__setitem__(key, around),
        lambda around, key: around.__setitem__(key, [around[key]] * 3),
        lambda around, key: around.__setitem__(key, {f"k{n}": around[key] for n in range(50)}),
        rename,
    ]
    return st.builds(
        reshaped,
        st.lists(_PLACES, min_size=1, max_size=8),
        st.sampled_from(changes) | st.sampled_from(RETYPED).map(retype) | st.sampled_from([1, 2, 40, 41, 90]).map(nest),
        st.booleans(),
    )


def _walk(data: Any, places: list[float]) -> tuple[Any, Any]:
    """What is around a value, and its key or index there, ``places`` deep in the data."""
    around, key = None, None
    for place in places:
        if not isinstance(data, dict | list) or not data:
            break
        keys = list(data) if isinstance(data, dict) else list(range(len(data)))
        around, key = data, keys[int(place * len(keys))]
        data = data[key]
    return around, key


def _crlf(content: bytes) -> bytes:
    return content.replace(b"\n", b"\r\n")


def _cr(content: bytes) -> bytes:
    return content.replace(b"\n", b"\r")


def _tabs(content: bytes) -> bytes:
    return content.replace(b"  ", b"\t")


def _bom(content: bytes) -> bytes:
    return b"\xef\xbb\xbf" + content


def _utf16(content: bytes) -> bytes:
    return content.decode(errors="replace").encode("utf-16")


def _latin(content: bytes) -> bytes:
    return content.decode(errors="replace").encode("latin-1", errors="replace") + b"\n# \xe4"
