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

# By these a call begins; the prompt of a model that is to call tools says so.
_CALL_MARKS = {"hermes": "<tool_call>", "xml": "<function=", "glm": "<tool_call>"}

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
    return thinks_in_tags(reasoning_parser)


def thinks_in_tags(reasoning_parser: str) -> bool:
    """True for a parser whose models reason between <think> and </think>."""
    return reasoning_parser in _THINKING


def reads_answers(reasoning_parser: str) -> bool:
    """True where a text without a mark of reasoning is known to be read as an answer."""
    return reasoning_parser in _WITHOUT_MARKS


def call_mark(tool_parser: str) -> str:
    """The mark by which a model's calls begin; empty where it is not known."""
    return _CALL_MARKS.get(of_calls(tool_parser), "")


def beginning(tool_parser: str) -> str:
    """The marks by which every prompt of a family begins; empty where they are not known."""
    return "[gMASK]<sop>" if of_calls(tool_parser) == "glm" else ""


def forgets_reasoning(reasoning_parser: str) -> bool:
    """True where the models of a parser see the reasoning of the turn under way again, and none of earlier turns."""
    return reasoning_parser in _THINKING - {"deepseek_r1"}
