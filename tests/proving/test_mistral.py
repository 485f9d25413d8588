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


def test_no_request_has_options() -> None:
    whole = conversations.questions("mistral", "")
    assert any("chat_template_kwargs" in json.dumps(each.body) for each in whole)
    asked = mistral.without_options(whole)
    assert not any("chat_template_kwargs" in json.dumps(each.body) for each in asked)
    left_out = {each.name for each in whole} - {each.name for each in asked}
    about_options = {each.name for each in whole if isinstance(each.subject, Conversation) and each.subject.options}
    assert left_out == about_options != set()
    assert all(each.body.get("request", each.body.get("before")) for each in asked)
