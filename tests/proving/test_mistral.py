"""Questions for Mistral's own tokenizers, which take no options of a template."""

from __future__ import annotations

import json

import pytest

from builder.lab.prove import conversations, prove
from builder.lab.prove.conversations import Conversation
from builder.lab.prove.prove import ServedOptions


@pytest.mark.parametrize(
    ("argv", "renders"),
    [(("--tokenizer-mode", "mistral"), True), (("--tokenizer-mode", "auto"), False), (("--tokenizer-mode",), False)],
)
def test_the_recipe_decides(argv: tuple[str, ...], renders: bool) -> None:
    assert prove.renders(ServedOptions("m", argv, "", "", "", ())) == renders


def test_prompts_are_asked_for_without_options() -> None:
    whole = conversations.questions("mistral", "")
    asked = prove.prompts(whole)
    assert {each.kind for each in whole} > {each.kind for each in asked} == {"prompt"}
    assert not any("chat_template_kwargs" in json.dumps(each.body) for each in asked)
    rendered = {each.name: each.subject for each in whole if each.kind == "prompt"}
    left_out = rendered.keys() - {each.name for each in asked}
    assert left_out == {name for name, each in rendered.items() if isinstance(each, Conversation) and each.options}
    assert left_out
