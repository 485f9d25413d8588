"""Ways to break a chat template or a parser, each as users have met them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TemplateFault:
    """A change of ``hermes.jinja``."""

    name: str
    old: str
    new: str


@dataclass(frozen=True)
class ParserFault:
    """A change of the parsers `hermes` and `qwen3`, by a ``plugin`` that vLLM loads, or another ``parser``."""

    name: str
    plugin: str = ""
    parser: str = "hermes"


_ARGUMENTS = "call.function.arguments | tojson"
_CALLS = "{%- for call in message.tool_calls or [] %}"

TEMPLATES = (
    TemplateFault(
        "system dropped",
        "{%- for message in messages -%}\n",
        '{%- for message in messages if message.role != "system" -%}\n',
    ),
    TemplateFault("tool result lost", "{{ text(message.content) }}\n</tool_response>", "\n</tool_response>"),
    TemplateFault("arguments encoded twice", _ARGUMENTS, "call.function.arguments | tojson | tojson"),
    TemplateFault("order swapped", "{%- for message in messages -%}\n", "{%- for message in messages | reverse -%}\n"),
    TemplateFault(
        "developer dropped",
        "{%- for message in messages -%}\n",
        '{%- for message in messages if message.role != "developer" -%}\n',
    ),
    TemplateFault("parallel calls merged", _CALLS, "{%- for call in (message.tool_calls or [])[:1] %}"),
    TemplateFault("unicode escaped", _ARGUMENTS, "call.function.arguments | tojson(ensure_ascii=True)"),
    TemplateFault(
        "nested arguments flattened",
        _ARGUMENTS,
        "dict(call.function.arguments.items() | rejectattr(1, 'mapping')) | tojson",
    ),
    TemplateFault(
        "empty arguments broken", _ARGUMENTS, 'call.function.arguments | tojson if call.function.arguments else ""'
    ),
    TemplateFault("generation prompt missing", "{%- if add_generation_prompt -%}", "{%- if false -%}"),
    TemplateFault("role names wrong", "<|im_start|>user\n", "<|im_start|>person\n"),
    TemplateFault("tool schema dropped", "{{ tool | tojson }}", "{{ tool.function.name }}"),
    TemplateFault(
        "nothing printed as None", "{%- if content is string -%}", "{%- if content is string or not content -%}"
    ),
    TemplateFault("parts printed as a list", "{%- if content is string -%}", "{%- if true -%}"),
    TemplateFault(
        "thinking kept twice",
        "{{ text(message.content).split",
        "{{ message.reasoning_content }}{{ message.reasoning_content }}{{ text(message.content).split",
    ),
    TemplateFault("thought left open before a call", '.split("<think>")[-1]', ""),
    TemplateFault("broken Jinja", "{%- endmacro -%}", "{%- endmacroo -%}"),
)

_PARSER = "from vllm.tool_parsers.hermes_tool_parser import Hermes2ProToolParser as Parser\n"

PARSERS = (
    ParserFault("parser of another family", parser="glm45"),
    ParserFault(
        "streamed differs from whole",
        _PARSER
        + """
streaming = Parser.extract_tool_calls_streaming

def broken(self, *arguments, **named):
    delta = streaming(self, *arguments, **named)
    for call in (delta.tool_calls or []) if delta else []:
        if call.function and call.function.arguments:
            call.function.arguments = call.function.arguments.replace("e", "")
    return delta

Parser.extract_tool_calls_streaming = broken
""",
    ),
    ParserFault(
        "marks of calls in content",
        _PARSER
        + """
whole = Parser.extract_tool_calls

def broken(self, *arguments, **named):
    result = whole(self, *arguments, **named)
    if result.tools_called:
        result.content = (result.content or "") + "<tool_call>"
    return result

Parser.extract_tool_calls = broken
""",
    ),
    ParserFault(
        "reasoning in content",
        """
from vllm.reasoning import ReasoningParserManager

parser = ReasoningParserManager.get_reasoning_parser("qwen3")
parser.extract_reasoning = lambda self, model_output, request: (None, model_output)
""",
    ),
)
