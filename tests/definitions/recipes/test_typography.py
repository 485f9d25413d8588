# ruff: noqa: RUF001
from __future__ import annotations

import pytest

from builder.definitions.recipes import typography

KEYS = ("name", "description", "container", "mods", "defaults", "env", "command")


def find(text: str) -> list[tuple[int, int, str, str]]:
    return [(f.number, f.column + 1, f.replacement, f.message) for f in typography.find(text, KEYS)]


@pytest.mark.parametrize(
    ("text", "column", "meant", "message"),
    [
        ("env: “x”", 6, '"', '`“` (U+201C, left double quotation mark): the straight " is meant'),
        ("env: ‘x", 6, "'", "`‘` (U+2018, left single quotation mark): the straight ' is meant"),
        ("env: «x", 6, '"', '`«` (U+00AB, left-pointing double angle quotation mark): the straight " is meant'),
        ("mods:\n  • a", 3, "-", "`•` (U+2022, bullet): an item of a list begins with `- `"),
        ("mods:\n  – a", 3, "-", "`–` (U+2013, en dash): an item of a list begins with `- `"),
        ("mods:\n  * a", 3, "-", "`*` (U+002A, asterisk): an item of a list begins with `- `"),
        ("mods:\n  •\u00a0a", 3, "-", "`•` (U+2022, bullet): an item of a list begins with `- `"),
        ("command: |\n  –host x", 3, "--", "`–` (U+2013, en dash): `--host` is meant"),
        ("command: |\n  —host x", 3, "--", "`—` (U+2014, em dash): `--host` is meant"),
        ("command: |\n  ––host x", 3, "--", "`–` (U+2013, en dash): `--host` is meant"),
        ("command: |\n  –-host x", 3, "--", "`–` (U+2013, en dash): `--host` is meant"),
        ("command: |\n  ‑‑host x", 3, "--", "`‑` (U+2011, non-breaking hyphen): `--host` is meant"),
        ("command: |\n  –tp 2", 3, "-", "`–` (U+2013, en dash): `-tp` is meant"),
        ("command: |\n  –cc.mode=x", 3, "-", "`–` (U+2013, en dash): `-cc.mode` is meant"),
        ("command: |\n  x M–7B", 6, "-", "`–` (U+2013, en dash): the hyphen `-` is meant"),
        ("container: vllm‑node", 16, "-", "`‑` (U+2011, non-breaking hyphen): the hyphen `-` is meant"),
        ("env:\n  A:\u00a01", 5, " ", "(U+00A0, no-break space): an ordinary space is meant"),
        ("env:\n\u3000A: 1", 1, " ", "(U+3000, ideographic space): an ordinary space is meant"),
        ("\u200bcommand: x", 1, "", "(U+200B, zero width space): nothing is meant to be here"),
        ("env:\n  A\ufeff: 1", 4, "", "(U+FEFF, zero width no-break space): nothing is meant to be here"),
        ("env:\n\tA: 1", 1, "  ", "a tab in the indentation: YAML takes spaces only"),
        ("command: |\n\tx", 1, "  ", "a tab in the indentation: YAML takes spaces only"),
        ("description: “all of it", 0, "", ""),
    ],
)
def test_each_is_named_with_what_was_meant(text: str, column: int, meant: str, message: str) -> None:
    corrections = find(text)
    if not column:
        assert corrections == []
        return
    assert (text.count("\n") + 1, column, meant, message) in corrections


@pytest.mark.parametrize(
    "text",
    [
        "# “quotes”, – dashes • and more",
        "description: serves “it” – and so on…",
        "description: >\n  “two” – lines\n  • of prose",
        "env:\n  A: 1  # – as measured",
        "defaults:\n  served: 'größe – “x”'",
        'defaults:\n  served: "größe – ‘x’"',
        "defaults:\n  greeting: don’t",
        "command: |\n  vllm serve x --system 'say “hi” – now'",
        "command: |\n  # “switched off” –host\n  vllm serve größe 模型",
        "command: |\n  vllm serve x \\\n  \t--a 1",
        "mods:\n  - a\n",
        "defaults: &a {x: 1}\nenv: *a",
    ],
)
def test_prose_and_quoted_text_may_hold_them(text: str) -> None:
    assert find(text) == []


def test_json_is_looked_at_though_it_is_quoted() -> None:
    corrections = find("defaults:\n  spec: '{“n”: 3}'\ncommand: |\n  x --c '{“n”: –3}'")
    assert [(line, column, meant) for line, column, meant, _ in corrections] == [
        (2, 11, '"'),
        (2, 13, '"'),
        (4, 11, '"'),
        (4, 13, '"'),
        (4, 16, "-"),
    ]


def test_quotes_around_a_whole_name_are_no_part_of_it() -> None:
    assert [(line, column, meant) for line, column, meant, _ in find("name: “x y”\ndescription: “a” b")] == [
        (1, 7, '"'),
        (1, 11, '"'),
    ]
