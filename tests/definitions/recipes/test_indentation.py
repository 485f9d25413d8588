from __future__ import annotations

import pytest

from builder.definitions.recipes import indentation

KEYS = ("name", "description", "container", "mods", "defaults", "env", "command")


def find(text: str) -> list[tuple[tuple[int, ...], str]]:
    return [(lost.numbers, lost.message) for lost in indentation.find(text, KEYS)]


def test_settings_at_the_margin_belong_to_the_preceding_block() -> None:
    assert find("defaults:\nport: 1\n\n# why\nmax-num-seqs: 2\nenv:\nA: 1\ncommand: x\n") == [
        ((2, 5), "`port`, `max-num-seqs`: the indentation is lost; they belong to `defaults` (line 1), two spaces in"),
        ((7,), "`A`: the indentation is lost; it belongs to `env` (line 6), two spaces in"),
    ]


def test_one_line_of_several_may_have_lost_it() -> None:
    assert [numbers for numbers, _ in find("defaults:\n  port: 1\nhost: h\n  tp: 1\n")] == [(3,)]


@pytest.mark.parametrize(
    "text",
    [
        "defaults: {port: 1}\nnonsense: 2\n",
        "defaults:\n  port: 1\ncommand: x\n",
        "defaults:\n  port: 1\ndesciption: a typing error\n",
        "mods:\n- a\n- b\n",
        "command: |\n  x\n\n#  --y\n",
        "command: x\n",
        "command: |\n  x\n\n  # y\n",
    ],
)
def test_what_is_not_lost(text: str) -> None:
    assert find(text) == []


def test_a_command_at_the_margin() -> None:
    assert find("command: |\nx \\\n--a 1 \\\n# --b\n\n--c '{key: 1}'\n\n# the end\nname: x\n") == [
        ((2, 3, 4, 6), "the indentation of lines 2 to 6 is lost; they belong to `command` (line 1), two spaces in")
    ]


def test_a_comment_at_the_margin_would_end_the_command() -> None:
    assert find("command: |\n  x \\\n# --b\n  --c\n#  --d\n") == [
        ((3,), "the indentation of line 3 is lost; it belongs to `command` (line 1), two spaces in")
    ]
