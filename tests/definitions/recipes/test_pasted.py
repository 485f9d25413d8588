# ruff: noqa: RUF001
from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder.definitions import recipe


@pytest.mark.parametrize(
    ("text", "typed"),
    [
        ("env: “x”", 'env: "x"'),
        ("env: ‘x", "env: 'x"),
        ("env: «x", 'env: "x'),
        ("mods:\n  • a", "mods:\n  - a"),
        ("mods:\n  – a", "mods:\n  - a"),
        ("mods:\n  * a", "mods:\n  - a"),
        ("mods:\n  •\u00a0a", "mods:\n  - a"),
        ("command: |\n  –host x", "command: |\n  --host x"),
        ("command: |\n  —host x", "command: |\n  --host x"),
        ("command: |\n  ––host x", "command: |\n  --host x"),
        ("command: |\n  –-host x", "command: |\n  --host x"),
        ("command: |\n  ‑‑host x", "command: |\n  --host x"),
        ("command: |\n  –tp 2", "command: |\n  -tp 2"),
        ("command: |\n  –cc.mode=x", "command: |\n  -cc.mode=x"),
        ("command: |\n  x M–7B", "command: |\n  x M-7B"),
        ("command: |\n  x\u00a0\u200b–host ‘b’", "command: |\n  x --host 'b'"),
        ("container: vllm‑node", "container: vllm-node"),
        ("env:\n  A:\u00a01", "env:\n  A: 1"),
        ("env:\n\u3000A: 1", "env:\n A: 1"),
        ("\u200bcommand: x", "command: x"),
        ("env:\n  A\ufeff: 1", "env:\n  A: 1"),
        ("env:\n\tA: 1", "env:\n  A: 1"),
        ("command: |\n\tx", "command: |\n  x"),
        # JSON is looked at though it is quoted.
        ("defaults:\n  spec: '{“n”: –3}'", "defaults:\n  spec: '{\"n\": -3}'"),
        ("```yaml\nname: x\ncommand: |\n  x\n```\n", "\nname: x\ncommand: |\n  x\n\n"),
        ("~~~\ncommand: |\nx\n~~~", "\ncommand: |\n  x\n"),
        # Quotes around a whole name are no part of it.
        ("name: “x y”\ndescription: “a” b", 'name: "x y"\ndescription: “a” b'),
    ],
)
def test_what_a_page_changed_is_what_was_typed(text: str, typed: str) -> None:
    assert recipe.as_typed(text) == typed


@pytest.mark.parametrize(
    "text",
    [
        "# “quotes”, – dashes • and more",
        "description: “all of it",
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
def test_prose_and_quoted_text_may_hold_such_characters(text: str) -> None:
    assert recipe.as_typed(text) == text
    assert recipe.pasted_problem(text, "r.yaml") is None


@pytest.mark.parametrize(
    ("text", "typed"),
    [
        (
            "defaults:\nport: 1\n\n# why\nmax-num-seqs: 2\nenv:\nA: 1\ncommand: x {port}\n",
            "defaults:\n  port: 1\n\n# why\n  max-num-seqs: 2\nenv:\n  A: 1\ncommand: x {port}\n",
        ),
        (
            "defaults:\n  port: 1\nseqs: 2\ncommand: x --n {seqs}\n",
            "defaults:\n  port: 1\n  seqs: 2\ncommand: x --n {seqs}\n",
        ),
        ("env:\n  A: 1\nVLLM_X: 2\nmin_nodes: 2\n", "env:\n  A: 1\n  VLLM_X: 2\nmin_nodes: 2\n"),
        (
            "command: |\nx \\\n--a 1 \\\n# --b\n\n--c '{key: 1}'\n\n# the end\nname: x\n",
            "command: |\n  x \\\n  --a 1 \\\n  # --b\n\n  --c '{key: 1}'\n\n# the end\nname: x\n",
        ),
        # A comment at the margin would end the command.
        ("command: |\n  x \\\n# --b\n  --c\n#  --d\n", "command: |\n  x \\\n  # --b\n  --c\n#  --d\n"),
    ],
)
def test_lines_at_the_margin_belong_to_the_key_above(text: str, typed: str) -> None:
    assert recipe.as_typed(text) == typed


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
def test_what_has_not_lost_its_indentation_stays(text: str) -> None:
    assert recipe.as_typed(text) == text


@given(st.text("ab –—“”\u200b\u00a0\t-:'\n", max_size=60))
def test_what_was_corrected_needs_no_correction(body: str) -> None:
    for text in (f"command: |\n{body}\n", f"env:\n{body}\n", f"name: {body}\nmods:\n{body}\n"):
        once = recipe.as_typed(text)
        assert len(once.split("\n")) == len(text.split("\n"))
        letters = str.maketrans("", "", "".join({*once, *text} - {"a", "b"}))
        assert once.translate(letters) == text.translate(letters)


@pytest.mark.parametrize(
    ("command", "mended"),
    [
        ("vllm serve x\n--port 1\n--host h", "vllm serve x \\\n  --port 1 \\\n  --host h"),
        ("vllm serve x \\  \n  --port 1", "vllm serve x \\\n  --port 1"),
        ("echo a\nvllm serve x", "echo a\n  vllm serve x"),
        ("vllm serve x\n\n--port 1", "vllm serve x\n\n  --port 1"),
        ("x --p 'be kind\n  - and short'\n  --q", "x --p 'be kind\n  - and short' \\\n  --q"),
        ("vllm serve x # why\n--port 1", "vllm serve x # why\n  --port 1"),
    ],
)
def test_the_backslashes_of_a_command_come_back_where_an_option_follows(command: str, mended: str) -> None:
    text = f"name: x\ncommand: |\n  {command}\n"
    assert recipe.mended(text) == f"name: x\ncommand: |\n  {mended}\n"


def test_a_fence_alone_is_named() -> None:
    told = recipe.pasted_problem("```yaml\nname: x\n```\n", "r.yaml")
    assert str(told) == (
        "r.yaml:1:1: this recipe was pasted from a page: `builder recipes add --mend r.yaml` corrects that"
    )
    assert recipe.pasted_problem("name: x\ncommand: |\n  x\n  ```\n  y\n", "r.yaml") is None


def test_one_problem_stands_for_all_of_a_page() -> None:
    told = recipe.pasted_problem("mods:\n  • a\nenv:\nA: “1”\ncommand: |\n–x\n", "my recipes/r.yaml")
    assert str(told) == (
        "my recipes/r.yaml:2:3: this recipe was pasted from a page: "
        "`builder recipes add --mend 'my recipes/r.yaml'` corrects that"
    )
