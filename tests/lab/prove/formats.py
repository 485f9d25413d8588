"""Small templates of our own, in the structure of those of models that vLLM has parsers for: each writes calls and
thoughts in one format, and nothing else. `benchmarks/parser_mutants.py` and the tests read them back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_SKELETON = """\
{%- for message in messages -%}
  {{- "<|im_start|>" ~ message.role ~ "\\n" -}}
  {%- if message.role == "assistant" -%}
    {%- if message.reasoning_content -%}{{- "@THINK@" ~ message.reasoning_content ~ "@END_THINK@" -}}{%- endif -%}
    {%- if message.content -%}{{- "@SAY@" ~ message.content ~ "@END_SAY@" -}}{%- endif -%}
    {%- if message.tool_calls -%}{{- "@CALLS@" -}}
      {%- for call in message.tool_calls -%}
        {%- set name, arguments = call.function.name, call.function.arguments -%}
        ONE_CALL
        {%- if not loop.last -%}{{- "@BETWEEN@" -}}{%- endif -%}
      {%- endfor -%}
    {{- "@END_CALLS@" -}}{%- endif -%}
  {%- else -%}{{- message.content -}}{%- endif -%}
  {{- "<|im_end|>\\n" -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- "<|im_start|>assistant\\n@PROMPT@" -}}{%- endif -%}
"""
# `value` of a parameter: a text as it is, all else as JSON.
_VALUE = "{{- value if value is string else value | tojson -}}"


def _json(begin: str = "", end: str = "", arguments: str = "arguments") -> str:
    body = f"""'{{"name": ' ~ name | tojson ~ ', "{arguments}": ' ~ arguments | tojson ~ '}}'"""
    return f"{{{{- '{begin}' ~ {body} ~ '{end}' -}}}}"


def _xml(begin: str, key: str, after_key: str, end_value: str, end: str) -> str:
    """Calls with an element for each argument; NAME and KEY stand for the names."""
    opened = f"'{begin}'".replace("NAME", "' ~ name ~ '")
    keyed = f"'{key}'".replace("KEY", "' ~ key ~ '")
    return (
        f"{{{{- {opened} -}}}}{{%- for key, value in arguments.items() -%}}{{{{- {keyed} ~ '{after_key}' -}}}}{_VALUE}"
        f"{{{{- '{end_value}' -}}}}{{%- endfor -%}}{{{{- '{end}' -}}}}"
    )


@dataclass(frozen=True)
class Format:
    """How models of a ``tool`` parser and a ``reasoning`` parser write their turns. ``response`` is the response
    template that the `hf` parsers read, and ``variant`` distinguishes formats of the same parsers."""

    tool: str
    reasoning: str
    call: str
    calls: tuple[str, str] = ("", "")
    between: str = ""
    think: tuple[str, str] = ("<think>\n", "\n</think>\n\n")
    say: tuple[str, str] = ("", "")
    prompt: str = ""
    response: Mapping[str, Any] = field(default_factory=dict)
    variant: str = ""

    @property
    def name(self) -> str:
        return "-".join(filter(None, ("own", self.tool, self.reasoning, self.variant)))

    def template(self) -> str:
        parts = {
            "@END_THINK@": self.think[1],
            "@THINK@": self.think[0],
            "@END_SAY@": self.say[1],
            "@SAY@": self.say[0],
            "@END_CALLS@": self.calls[1],
            "@CALLS@": self.calls[0],
            "@BETWEEN@": self.between,
            "@PROMPT@": self.prompt,
        }
        source = _SKELETON
        for word, text in parts.items():
            source = source.replace(word, text.replace("\n", "\\n").replace('"', '\\"'))
        return source.replace("ONE_CALL", self.call)


_GLM = _xml("<tool_call>NAME\\n", "<arg_key>KEY</arg_key>\\n", "<arg_value>", "</arg_value>\\n", "</tool_call>")
_GLM_PACKED = _xml("<tool_call>NAME", "<arg_key>KEY</arg_key>", "<arg_value>", "</arg_value>", "</tool_call>")
_HY = _xml(
    "<tool_call>NAME<tool_sep>\\n", "<arg_key>KEY</arg_key>\\n", "<arg_value>", "</arg_value>\\n", "</tool_call>"
)
_QWEN = _xml(
    "<tool_call>\\n<function=NAME>\\n", "<parameter=KEY>", "\\n", "\\n</parameter>\\n", "</function>\\n</tool_call>"
)
_MIMO = _QWEN.replace("'\\n' -}}{{- value", "'' -}}{{- value").replace("'\\n</parameter>", "'</parameter>")
_INVOKE = ('<invoke name="NAME">\\n', '<parameter name="KEY">', "", "</parameter>\\n", "</invoke>")
_SEED = _xml("<function=NAME>\\n", "<parameter=KEY>", "", "</parameter>\\n", "</function>")
_STEP = [part.replace("<", "<steptml:", 1).replace("<steptml:/", "</steptml:") for part in _INVOKE]
_IFM = ("<ifm|arg_key>KEY</ifm|arg_key>", "<ifm|arg_value>", "</ifm|arg_value>")
_PLAMO = {
    name: (f"<|plamo:begin_{name}:plamo|>", f"<|plamo:end_{name}:plamo|>")
    for name in ("think", "tool_requests", "tool_request", "tool_name", "tool_arguments")
}
# As Python writes a call; `tojson` quotes a text as Python reads it.
_PYTHON = """\
{{- name ~ '(' -}}{%- for key, value in arguments.items() -%}
  {{- key ~ '=' -}}{{- value | tojson if value is string else value -}}{%- if not loop.last -%}{{- ', ' -}}{%- endif -%}
{%- endfor -%}{{- ')' -}}"""


def _dsml(space: str, calls: str) -> tuple[str, tuple[str, str]]:
    """DeepSeek's calls, which say of each value whether it is a text."""
    mark = f"\uff5cDSML\uff5c{space}"
    call = _xml(
        f'<{mark}invoke name="NAME">\\n',
        f'<{mark}parameter name="KEY" string="',
        "",
        f"</{mark}parameter>\\n",
        f"</{mark}invoke>",
    )
    typed = call.replace(_VALUE, "{{- ('true' if value is string else 'false') ~ '\">' -}}" + _VALUE)
    return typed, (f"\n\n<{mark}{calls}>\n", f"\n</{mark}{calls}>")


# Arguments of Gemma: its own marks around texts, none around names.
_GEMMA_CALL = """\
{%- macro written(value) -%}
  {%- if value is mapping -%}{{- '{' -}}{%- for key, each in value.items() -%}
    {{- key ~ ':' -}}{{- written(each) -}}{%- if not loop.last -%}{{- ',' -}}{%- endif -%}
  {%- endfor -%}{{- '}' -}}
  {%- elif value is string -%}{{- '<|"|>' ~ value ~ '<|"|>' -}}
  {%- elif value is iterable -%}{{- '[' -}}{%- for each in value -%}
    {{- written(each) -}}{%- if not loop.last -%}{{- ',' -}}{%- endif -%}
  {%- endfor -%}{{- ']' -}}
  {%- else -%}{{- value | tojson -}}{%- endif -%}
{%- endmacro -%}
{{- '<|tool_call>call:' ~ name ~ written(arguments) ~ '<tool_call|>' -}}"""
# Arguments of MiniMax M3: an element each, and those within it.
_M3 = "]<]minimax[>["
_M3_CALL = f"""\
{{%- macro element(value) -%}}
  {{%- if value is mapping -%}}{{%- for key, each in value.items() -%}}
    {{{{- "{_M3}<" ~ key ~ ">" -}}}}{{{{- element(each) -}}}}{{{{- "{_M3}</" ~ key ~ ">" -}}}}
  {{%- endfor -%}}
  {{%- elif value is iterable and value is not string -%}}{{%- for each in value -%}}
    {{{{- "{_M3}<item>" -}}}}{{{{- element(each) -}}}}{{{{- "{_M3}</item>" -}}}}
  {{%- endfor -%}}
  {{%- else -%}}{_VALUE}{{%- endif -%}}
{{%- endmacro -%}}
{{{{- '{_M3}<invoke name="' ~ name ~ '">' ~ element(arguments) ~ '{_M3}</invoke>\\n' -}}}}"""
_K3_TYPE = "('boolean' if value is boolean else 'null' if value is none else 'number' if value is number else 'string' "
_K3_TYPE += "if value is string else 'object' if value is mapping else 'array')"
_K3_CALL = f"""\
{{{{- '<|open|>call tool="' ~ name ~ '" index="' ~ loop.index ~ '"<|sep|>' -}}}}
{{%- for key, value in arguments.items() -%}}
  {{{{- '<|open|>argument key="' ~ key ~ '" type="' ~ {_K3_TYPE} ~ '"<|sep|>' -}}}}{_VALUE}
  {{{{- '<|close|>argument<|sep|>' -}}}}
{{%- endfor -%}}{{{{- '<|close|>call<|sep|>' -}}}}"""

_K3 = {name: (f"<|open|>{name}<|sep|>", f"<|close|>{name}<|sep|>") for name in ("think", "response", "tools")}

# How the model's own tokenizer tells Transformers to read its turns:
# https://huggingface.co/docs/transformers/main/en/chat_response_parsing
_HERMES_RESPONSE = {
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "thinking": {"open": "<think>\n", "close": "\n</think>\n\n"},
        "tool_calls": {
            "open": "<tool_call>\n",
            "close": "\n</tool_call>",
            "content": "json",
            "repeats": True,
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {},
    },
}
# Pairs of texts, which the schema of the tool gives their types; what is in no field is content.
_QWEN_RESPONSE = {
    "start_anchor_pattern": r"<\|im_start\|>assistant\n",
    "fields": {
        "thinking": {"open": "<think>\n", "close": ["\n</think>", "\n</think>\n\n"]},
        "tool_calls": {
            "open_pattern": r"<tool_call>\n<function=(?P<name>[^>\n]+)>\n",
            "close": "</function>\n</tool_call>",
            "content": "xml-inline",
            "content_args": {"tag_pattern": r"<parameter=(?P<key>[^>\n]+)>\n(?P<value>.*?)\n</parameter>"},
            "repeats": True,
            "transform": {
                "type": "function",
                "function": {"name": "{name}", "arguments": "{content}", "strict": False},
            },
        },
    },
}
# JSON with marks around texts and none around names.
_GEMMA_RESPONSE = {
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "thinking": {"open": "<|channel>thought\n", "close": "<channel|>"},
        "tool_calls": {
            "open_pattern": r"<\|tool_call>call:(?P<name>[^{]+)",
            "close": "<tool_call|>",
            "content": "json",
            "content_args": {"unquoted_keys": True, "string_delims": [['<|"|>', '<|"|>']], "allow_non_json": True},
            "repeats": True,
            "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
        },
        "content": {"close": "<turn|>"},
    },
}

FORMATS = (
    Format("hermes", "qwen3", _json("<tool_call>\\n", "\\n</tool_call>"), between="\n"),
    Format("hf", "hf", _json("<tool_call>\\n", "\\n</tool_call>"), between="\n", response=_HERMES_RESPONSE),
    Format("hf", "hf", _QWEN, between="\n", response=_QWEN_RESPONSE, variant="pairs"),
    Format(
        "hf",
        "hf",
        _GEMMA_CALL,
        think=("<|channel>thought\n", "<channel|>"),
        response=_GEMMA_RESPONSE,
        variant="own-marks",
    ),
    Format("qwen3_coder", "nemotron_v3", _QWEN, between="\n", think=("<think>\n", "\n</think>\n")),
    Format("qwen3_coder", "granite_thinking_parser", _QWEN, between="\n", think=("<think>\n", "\n</think>\n")),
    Format("qwen3_coder", "minicpmv", _QWEN, between="\n"),
    Format("mimo", "mimo", _MIMO, between="\n", think=("<think>", "</think>")),
    Format("ling3", "ling3", _GLM, between="\n", think=("<think>", "</think>")),
    Format("poolside_v1", "poolside_v1", "{#- <assistant> -#}" + _GLM, between="\n", think=("<think>", "</think>")),
    Format("hy_v3", "hy_v3", _HY, ("<tool_calls>\n", "\n</tool_calls>"), "\n", ("<think>", "</think>")),
    Format(
        "hy_v4", "hy_v4", _GLM_PACKED, ("<tool_calls>", "</tool_calls>"), "", ("<think>", "</think>"), prompt="<think>"
    ),
    Format(
        "k2_horizon",
        "k2_horizon",
        _xml("<ifm|tool_call>NAME", *_IFM, "</ifm|tool_call>"),
        ("<ifm|tool_calls>", "</ifm|tool_calls>"),
        "\n",
        ("<ifm|think>", "</ifm|think>"),
        prompt="<ifm|think>",
    ),
    Format("gemma4", "gemma4", _GEMMA_CALL, think=("<|channel>thought\n", "<channel|>")),
    Format(
        "minimax_m2",
        "minimax_m2",
        _xml(*_INVOKE),
        ("<minimax:tool_call>\n", "\n</minimax:tool_call>"),
        "\n",
        prompt="<think>\n",
    ),
    Format(
        "seed_oss",
        "seed_oss",
        "{{- '<seed:tool_call>\\n' -}}" + _SEED + "{{- '\\n</seed:tool_call>' -}}",
        between="\n",
        think=("<seed:think>", "</seed:think>"),
    ),
    Format("dots", "", _xml(*_INVOKE), ("<dots_function_call>\n", "\n</dots_function_call>"), "\n"),
    Format(
        "step3",
        "step3",
        "{{- '<\uff5ctool_call_begin\uff5c>function<\uff5ctool_sep\uff5c>' -}}"
        + _xml(*_STEP)
        + "{{- '<\uff5ctool_call_end\uff5c>' -}}",
        ("<\uff5ctool_calls_begin\uff5c>", "<\uff5ctool_calls_end\uff5c>"),
        prompt="<think>\n",
    ),
    Format(
        "minimax_m3",
        "minimax_m3",
        _M3_CALL,
        (f"{_M3}<tool_call>\n", f"{_M3}</tool_call>"),
        "",
        ("<mm:think>", "</mm:think>"),
    ),
    Format(
        "minicpm5",
        "qwen3",
        _xml('<function name="NAME">', '<param name="KEY">', "", "</param>", "</function>"),
        between="\n",
    ),
    Format("jamba", "", _json(), ("<tool_calls>[\n    ", "\n]</tool_calls>"), ",\n    "),
    Format("longcat", "", _json("<longcat_tool_call>", "</longcat_tool_call>"), between="\n"),
    Format(
        "ernie45",
        "ernie45",
        _json("<tool_call>\\n", "\\n</tool_call>"),
        between="\n",
        prompt="<think>\n",
    ),
    Format("deepseek_v32", "deepseek_v3", *_dsml("", "function_calls"), "\n", ("<think>", "</think>")),
    Format("deepseek_v4", "deepseek_v4", *_dsml("", "tool_calls"), "\n", ("<think>", "</think>")),
    Format("deepseek_v41", "deepseek_v41", *_dsml(" ", "calls"), "\n", ("<think>", "</think>")),
    Format(
        "plamo3",
        "plamo3",
        f"{{{{- '{_PLAMO['tool_request'][0]}{_PLAMO['tool_name'][0]}' ~ name ~ '{_PLAMO['tool_name'][1]}"
        f"{_PLAMO['tool_arguments'][0]}<|plamo:constrain|>json<|plamo:msg|>' ~ arguments | tojson ~ "
        f"'{_PLAMO['tool_arguments'][1]}{_PLAMO['tool_request'][1]}' -}}}}",
        _PLAMO["tool_requests"],
        "",
        _PLAMO["think"],
    ),
    Format(
        "inkling",
        "inkling",
        _json("<|message_model|><|content_invoke_tool_json|>", "<|end_message|>", "args"),
        think=("<|message_model|><|content_thinking|>", "<|end_message|>"),
        say=("<|message_model|><|content_text|>", "<|end_message|>"),
    ),
    Format("kimi_k3", "kimi_k3", _K3_CALL, _K3["tools"], "", _K3["think"], _K3["response"]),
    # A recipe without a tool parser.
    Format("", "kimi_k3", _K3_CALL, _K3["tools"], "", _K3["think"], _K3["response"]),
    Format(
        "olmo3",
        "olmo3",
        "{{- name ~ '(' -}}{%- for key, value in arguments.items() -%}{{- key ~ '=' ~ value | tojson -}}"
        "{%- if not loop.last -%}{{- ', ' -}}{%- endif -%}{%- endfor -%}{{- ')' -}}",
        ("<function_calls>", "</function_calls>"),
        "\n",
        prompt="<think>\n",
    ),
    Format("hermes", "olmo3", _json("<tool_call>\\n", "\\n</tool_call>"), between="\n", prompt="<think>\n"),
    Format(
        "hermes",
        "granite",
        _json("<tool_call>\\n", "\\n</tool_call>"),
        between="\n",
        think=("Here is my thought process:\n", "\n\nHere is my response:\n"),
    ),
    Format("hermes", "step3p5", _json("<tool_call>\\n", "\\n</tool_call>"), between="\n", prompt="<think>\n"),
    Format(
        "hermes", "kimi_k2", _json("<tool_call>\\n", "\\n</tool_call>"), between="\n", think=("<think>", "</think>")
    ),
    Format(
        "kimi_k2",
        "kimi_k2",
        "{{- '<|tool_call_begin|>' ~ call.id ~ '<|tool_call_argument_begin|>' -}}"
        "{{- arguments | tojson ~ '<|tool_call_end|>' -}}",
        ("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
        think=("<think>", "</think>"),
    ),
    Format(
        "mistral",
        "mistral",
        "{{- '[TOOL_CALLS]' ~ name ~ '[ARGS]' ~ arguments | tojson -}}",
        think=("[THINK]", "[/THINK]"),
    ),
    Format(
        "hunyuan_a13b",
        "hunyuan_a13b",
        _json(),
        ("<tool_calls>[", "]</tool_calls>"),
        ", ",
        ("<think>\n", "\n</think>\n<answer>\n"),
    ),
    Format("hermes", "deepseek_r1", _json("<tool_call>\\n", "\\n</tool_call>"), between="\n", prompt="<think>\n"),
    Format("xlam", "", _json(), ("[", "]"), ", "),
    Format("pythonic", "", _PYTHON, ("[", "]"), ", "),
    Format("llama4_pythonic", "", _PYTHON, ("[", "]"), ", "),
    Format("phi4_mini_json", "", _json(), ("functools[", "]"), ", "),
    Format("llama4_json", "", _json(arguments="parameters"), between="; "),
    Format("granite-20b-fc", "", _json("<function_call>"), between="\n"),
    Format("lfm2", "", _PYTHON, ("<|tool_call_start|>[", "]<|tool_call_end|>"), ", "),
    Format("hermes", "holo2", _json("<tool_call>\\n", "\\n</tool_call>"), between="\n"),
)
