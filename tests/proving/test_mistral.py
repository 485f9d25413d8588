"""Questions for Mistral's own tokenizers, which take no options of a template."""

from __future__ import annotations

import json

import pytest

from builder.proving import conversations, mistral
from builder.proving.conversations import Conversation
from builder.proving.served_options import ServedOptions


@pytest.mark.parametrize(
    ("argv", "renders"),
    [(("--tokenizer-mode", "mistral"), True), (("--tokenizer-mode", "auto"), False), (("--tokenizer-mode",), False)],
)
def test_the_recipe_decides(argv: tuple[str, ...], renders: bool) -> None:
    assert mistral.renders(ServedOptions("m", argv, "", "", "", ())) == renders


def test_prompts_are_asked_for_without_options() -> None:
    whole = conversations.questions("mistral", "")
    asked = mistral.prompts(whole)
    assert {each.kind for each in whole} > {each.kind for each in asked} == {"prompt"}
    assert not any("chat_template_kwargs" in json.dumps(each.body) for each in asked)
    rendered = {each.name: each.subject for each in whole if each.kind == "prompt"}
    left_out = rendered.keys() - {each.name for each in asked}
    assert left_out == {name for name, each in rendered.items() if isinstance(each, Conversation) and each.options}
    assert left_out
