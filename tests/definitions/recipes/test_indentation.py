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


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("defaults:\n  port: 1\nseqs: 2\ncommand: x --n {seqs}\n", "seqs"),
        ("env:\n  A: 1\nVLLM_X: 2\nmin_nodes: 2\n", "VLLM_X"),
        ("defaults:\ngpu-mem: 2\n", "gpu-mem"),
    ],
)
def test_what_tells_that_an_entry_belongs_to_the_block(text: str, name: str) -> None:
    ((_, message),) = find(text)
    assert message.startswith(f"`{name}`")


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
        "env:\n  A: 1\nmetadata:\n  author: ann\ncommand: x\n",
        "env:\nruntime_version: 3\ncommand: x\n",
        "defaults:\n  port: 1\nruntime_version: 3\nmin_nodes: 2\ncommand: x\n",
        "env:\n  A: 1\npre_exec:\n- mkdir x\n- touch y\ncommand: x\n",
        "command: |\n  x \\\n  --y\nmetadata:\n  author: ann\n",
        "command: |\n  x\nmin_nodes: 2\nbenchmark: {a: 1}\n",
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
