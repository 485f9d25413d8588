"""Families of models by how they write calls and reasoning, told by the names of vLLM's parsers."""

from __future__ import annotations

from typing import Literal

Family = Literal["hermes", "xml", "glm", "gpt-oss", "plain", ""]

# https://docs.vllm.ai/en/stable/features/tool_calling.html
_CALLS: dict[str, Family] = {
    "hermes": "hermes",
    "qwen3_json": "hermes",
    "qwen3_coder": "xml",
    "qwen3_xml": "xml",
    "glm45": "glm",
    "glm47": "glm",
    "openai": "gpt-oss",
}
# Reasoning that stands between <think> and </think>.
_THINKING = frozenset({"qwen3", "deepseek_r1", "glm45", "glm47"})

# Those that take text without any mark for an answer. Others may take all of it for reasoning, as deepseek_r1 does: its
# models begin within a block that the prompt has opened.
_WITHOUT_MARKS = frozenset({"", "qwen3", "glm45", "glm47", "openai_gptoss"})


def of_calls(tool_parser: str) -> Family:
    """The family whose calls a parser reads: ``plain`` without one, empty for one that is not known here."""
    return _CALLS.get(tool_parser, "") if tool_parser else "plain"


def reads_reasoning(tool_parser: str, reasoning_parser: str) -> bool:
    """True where the recorded outputs with reasoning are for these parsers."""
    if of_calls(tool_parser) == "gpt-oss":
        return reasoning_parser in {"", "openai_gptoss"}
    return reasoning_parser in _THINKING


def reads_answers(reasoning_parser: str) -> bool:
    """True where a text without a mark of reasoning is known to be read as an answer."""
    return reasoning_parser in _WITHOUT_MARKS
