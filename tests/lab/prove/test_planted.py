"""Planted faults: a first proof of each finds it, without a number before to compare with; a harmless change is none.

Rendered here, as transformers does; what only a parser finds is planted in a real front end (`planted`).
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from builder.lab.prove import conversations, judging
from builder.lab.prove.judging import Judgement, Reference
from tests import shipped_files
from tests.lab.prove import rendering

MOD = shipped_files.project().root / "mods/fix-qwen3.5-enhanced-chat-template/qwen3.5-enhanced.jinja"
TEMPLATES = {
    "hermes": rendering.template(),
    "glm": rendering.HERMES.with_name("glm.jinja").read_text(encoding="utf-8"),
    "xml": MOD.read_text(encoding="utf-8"),
}
PARSERS = {"hermes": "hermes", "glm": "glm45", "xml": "qwen3_coder"}
CALL_MARKS = {"hermes": "<tool_call>", "glm": "<tool_call>", "xml": "<function="}
_RESULT = "{{ text(message.content) }}\n</tool_response>"
_ARGUMENTS = "call.function.arguments | tojson"
_USER = "<|im_start|>user\n{{ text(message.content) }}"

FAULTS = [
    # Long, odd and exact
    ("hermes", _RESULT, _RESULT.replace(") }}", ")[:1000] }}")),
    ("hermes", _RESULT, _RESULT.replace(") }}", ")[:60000] }}")),
    ("hermes", _USER, _USER.replace(") }}", ") | truncate(4000) }}")),
    ("hermes", _USER, _USER.replace(") }}", ")[-65000:] }}")),
    ("hermes", _ARGUMENTS, "(call.function.arguments | tojson)[:2000]"),
    ("hermes", _RESULT, _RESULT.replace(") }}", ") | trim }}")),
    ("hermes", _RESULT, _RESULT.replace(") }}", ").split() | join(' ') }}")),
    ("hermes", _RESULT, _RESULT.replace(") }}", ").splitlines() | map('trim') | join('\n') }}")),
    ("hermes", _RESULT, _RESULT.replace(") }}", ") | e }}")),
    ("hermes", _RESULT, _RESULT.replace(") }}", ") | striptags }}")),
    ("hermes", _USER, _USER.replace(") }}", ") | replace('\t', ' ') }}")),
    ("hermes", _USER, _USER.replace(") }}", ") | replace('\n\n\n', '\n\n') }}")),
    ("hermes", _USER, _USER.replace(") }}", ") | tojson }}")),
    ("hermes", _USER, _USER.replace(") }}", ").encode('ascii', 'ignore').decode() }}")),
    ("hermes", _ARGUMENTS, "call.function.arguments | tojson | e"),
    ("hermes", _ARGUMENTS, "(call.function.arguments | tojson).encode('utf-16', 'replace').decode('ascii', 'ignore')"),
    ("hermes", "call.function.name | tojson", "call.function.name | replace('-', '_') | tojson"),
    ("hermes", "call.function.name | tojson", "call.function.name.split('.')[-1] | tojson"),
    ("hermes", "{%- for part in content -%}", "{%- for part in content[:1] -%}"),
    ("hermes", "{%- for part in content -%}", "{%- for part in content[-1:] -%}"),
    ("hermes", "{%- for message in messages -%}\n", "{%- for message in messages[-100:] -%}\n"),
    # Roles and turns
    (
        "hermes",
        "-%}\n<|im_start|>system\n{{ text",
        "-%}\n<|im_start|>{{ message.role | replace('developer', 'user') }}\n{{ text",
    ),
    ("hermes", "</tool_response><|im_end|>", "</tool_response>"),
    ("hermes", "<|im_start|>tool\n<tool_response>", "<tool_response>"),
    ("hermes", "<tool_response>\n{{", "{{"),
    ("hermes", "<|im_start|>user\n", "<|im_start|>user"),
    ("hermes", "<|im_start|>user\n", "<|im_end|><|im_start|>user\n"),
    ("hermes", "<|im_start|>assistant\n{% if enable", "<|im_start|>assistant\n<|im_start|>assistant\n{% if enable"),
    (
        "hermes",
        "{%- endfor %}<|im_end|>\n{% else",
        "{%- endfor %}{% if not message.tool_calls %}<|im_end|>{% endif %}\n{% else",
    ),
    ("hermes", "{%- if add_generation_prompt -%}", "{%- if add_generation_prompt is defined -%}"),
    ("hermes", '"tool" -%}\n', '"tool" and message.content -%}\n'),
    (
        "hermes",
        '{% elif message.role == "tool" -%}',
        '{% elif message.role == "tool" and not message.content -%}\n{% elif message.role == "tool" -%}',
    ),
    ("hermes", "</think>\n\n{% endif -%}\n{%- endif -%}", "{% endif -%}\n{%- endif -%}"),
    (
        "hermes",
        "enable_thinking is defined and not enable_thinking",
        "enable_thinking is defined and enable_thinking is none",
    ),
    ("hermes", "enable_thinking is defined and not enable_thinking", "enable_thinking is defined and enable_thinking"),
    ("hermes", " and loop.index0 > last.user -%}", " -%}"),
    ("hermes", " and loop.index0 > last.user -%}", " and loop.last -%}"),
    ("hermes", "loop.index0 > last.user", "loop.index0 < last.user"),
    ("hermes", "</think>\n\n{% endif -%}\n{{", "{% endif -%}\n{{"),
    ("hermes", '.split("</think>")[-1].split("<think>")[-1].strip() }}', " }}"),
    # Tools
    (
        "hermes",
        "{{ tool | tojson }}",
        "{{ tool.function.name }}: {{ tool.function.description }} {{ tool.function.parameters.properties | list }}",
    ),
    (
        "hermes",
        "{{ tool | tojson }}",
        "{{ dict(tool.function, parameters=dict(tool.function.parameters, required=[])) | tojson }}",
    ),
    (
        "hermes",
        "{{ tool | tojson }}",
        "{{ dict(tool.function, parameters={'properties': tool.function.parameters.properties}) | tojson }}",
    ),
    ("hermes", "{{ tool | tojson }}", "{{ tool }}"),
    ("hermes", "{{ tool | tojson }}", "{{ tool | tojson | tojson }}"),
    ("hermes", "{{ tool | tojson }}", "{{ tool | tojson }}\n{{ tool | tojson }}"),
    ("hermes", "{%- for tool in tools %}", "{%- for tool in tools[:2] %}"),
    ("hermes", " between <tool_call> and </tool_call>", ""),
    ("hermes", "{%- if tools -%}", '{%- if tools and messages[0].role != "system" -%}'),
    ("hermes", "{%- if tools -%}", '{%- if tools and messages[-1].role != "tool" -%}'),
    ("hermes", "{{ tool | tojson }}", "{{ tool.function.strict.mode }}{{ tool | tojson }}"),
    ("hermes", "{{ tool | tojson }}", "{{ tool | tojson }}{{ 1 + tool.function.name }}"),
    ("hermes", "{{ tool | tojson }}", "{{ tool | tojson | replace('\"type\": \"integer\", ', '') }}"),
    ("hermes", "{{ tool | tojson }}", "{{ tool | tojson | replace('\"required\"', '\"optional\"') }}"),
    ("hermes", "{{ tool | tojson }}", "{{ tool | tojson | replace('mcp-archive__add-entry', 'add_entry') }}"),
    # Nothing, and the end of a turn
    ("hermes", _RESULT, _RESULT.replace(") }}", ") or 'None' }}")),
    ("hermes", _RESULT, _RESULT.replace(") }}", ").rstrip() }}")),
    ("hermes", "<|im_start|>tool\n<tool_response>", "<|im_start|>assistant\n<tool_response>"),
    ("hermes", "{%- if add_generation_prompt -%}", '{%- if add_generation_prompt and messages[-1].role != "tool" -%}'),
    ("hermes", _ARGUMENTS, "call.function.arguments | tojson | replace('null', '\"None\"')"),
    ("hermes", _ARGUMENTS, "call.function.arguments | tojson | replace('0.25', '0')"),
    ("hermes", _ARGUMENTS, r"call.function.arguments | tojson | replace('\\n', ' ')"),
    # GLM
    ("glm", "value if value is string", "value | trim if value is string"),
    ("glm", "{{ tool | tojson }}", '{{ tool | tojson | replace(\'"required": ["pitch", "room"]\', \'"x": 1\') }}'),
    ("glm", "[gMASK]<sop>\n", ""),
    ("glm", "<|observation|>\n", ""),
    ("glm", "<arg_key>{{ key }}</arg_key>", "{{ key }}</arg_key>"),
    ("glm", "value | tojson }}", "value }}"),
    (
        "glm",
        "{%- for key, value in call.function.arguments.items() %}",
        "{%- for key, value in call.function.arguments.items() if value %}",
    ),
    ("glm", "<|system|>\n{{ text(message.content) }}", "{{ text(message.content) }}"),
    ("glm", "<think>{{ message.reasoning_content }}</think>", "<think>{{ message.reasoning_content }}"),
    ("glm", "{%- if message.reasoning_content and loop.index0 > last.user %}", "{%- if message.reasoning_content %}"),
    ("glm", "<tool_response>\n{{ text(message.content) }}", "<tool_response>\n{{ text(message.content)[:8000] }}"),
    ("glm", "</tool_call>\n{%- endfor -%}", "\n{%- endfor -%}"),
    # Qwen3.5
    ("xml", "parameter(name, value if value is string else", "parameter(name, value | trim if value is string else"),
    ("xml", "parameter(name, value if value is string else value | tojson)", "parameter(name, value)"),
    (
        "xml",
        "~ content_text(message.content) ~ '\\n</tool_response>'",
        "~ content_text(message.content) | trim ~ '\\n</tool_response>'",
    ),
    ("xml", "{{- '\\n</think>\\n\\n' if enable_thinking is false }}", ""),
    ("xml", "{{- tool_call(call.function or call) }}", "{{- tool_call(call.function or call) if loop.first }}"),
    ("xml", "is_current=loop.index0 > question.index", "is_current=false"),
    ("xml", "is_current=loop.index0 > question.index", "is_current=true"),
    ("xml", "~ value ~ '\\n</parameter>\\n'", "~ value | e ~ '\\n</parameter>\\n'"),
    ("xml", "{{- parameter(name, value if value is string else value | tojson) }}", "{{- parameter(name, value) }}"),
    ("xml", "{{- '\\n\\n' if tools and opening.text }}\n    {{- opening.text", "{{- '' if tools else opening.text"),
    ("xml", "{{- text }}\n    {%- for call", "{{- text if not message.tool_calls }}\n    {%- for call"),
    ("xml", "{{- tool_description(tool) ~ '\\n' }}", "{{- tool.function.name ~ nested_arguments.x ~ '\\n' }}"),
]

HARMLESS = [
    ("hermes", "{#- A small", "{#- Another remark. #}{#- A small"),
    ("hermes", "The functions are:", "These functions can be called:"),
    ("hermes", "{%- if tools -%}\n<|im_start|>system\n", "{%- if tools -%}\n<|im_start|>system\nYou are a pilot.\n"),
    ("hermes", "<tool_response>\n{{", "<tool_response>\n\n{{"),
    ("hermes", "tool | tojson }}", "tool | tojson(indent=2) }}"),
    ("hermes", "<think>\n\n</think>\n", "<think>\n</think>\n"),
    ("hermes", "{%- for message in messages -%}\n", "{%- for message in messages %}{% set unused = loop.index %}\n"),
    ("glm", "{%- if own %}\n{{ own }}", "{%- if own %}\n\n{{ own }}"),
    ("glm", "value if value is string else value | tojson", "value | tojson if value is not string else value"),
    ("xml", "'- If no call is needed, just answer.\\n'", "'- Answer where no call is needed.\\n'"),
]  # fmt: skip


def judged(family: str, source: str, reference: Reference | None = None) -> Judgement:
    """The judgement on the prompts of a template."""
    questions = tuple(each for each in conversations.questions(PARSERS[family], "qwen3") if each.kind == "prompt")
    style = replace(rendering.style(source), call=CALL_MARKS[family], begins="[gMASK]<sop>" if family == "glm" else "")
    answers = {each.name: rendering.prompt(source, each.body["request"]) for each in questions}
    return judging.judge_answers(questions, answers, tokenizer="t1", style=style, reference=reference)


def changed(family: str, old: str, new: str) -> str:
    source = TEMPLATES[family]
    assert old in source
    return source.replace(old, new)


@pytest.mark.slow
@pytest.mark.parametrize("family", TEMPLATES)
def test_nothing_is_found_in_a_template_without_fault(family: str) -> None:
    assert judged(family, TEMPLATES[family]).findings == ()


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(("family", "old", "new"), FAULTS)
def test_a_first_proof_finds_a_fault(family: str, old: str, new: str) -> None:
    assert judged(family, changed(family, old, new)).verdict == "fail"


@pytest.mark.parametrize(("family", "old", "new"), HARMLESS)
def test_a_harmless_change_fails_no_first_proof(family: str, old: str, new: str) -> None:
    assert judged(family, changed(family, old, new)).findings == ()


@pytest.mark.slow
def test_a_later_proof_says_what_is_other_once() -> None:
    before = judged("hermes", TEMPLATES["hermes"])
    source = changed("hermes", "<|im_start|>assistant\n{% if enable", "<|im_start|>assistant\n\n{% if enable")
    judgement = judged("hermes", source, Reference("small:1", before.goldens, before.texts))
    assert judgement.verdict == "changed"
    assert judgement.counts["changed"] > 90
    findings = [each for each in judgement.findings if each.verdict == "changed"]
    assert len(findings) <= 3  # a newline before a block, or with white space beside it, differs
    assert findings[0].text.startswith("one newline added at the end, compared with small:1\n  first in question\n")
    ending = [name for name, text in before.texts.items() if text.endswith("<|im_start|>assistant\n")]
    assert findings[0].at == f"{len(ending)} of {len(before.goldens) - 1} conversations"
