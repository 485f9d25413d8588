"""Holds the template against the real transformers and vLLM: run inside the image, `python in_image.py TEMPLATE`.

Renders the cases with transformers' own function, prepares conversations as vLLM's chat API does, and feeds every call
the template writes to vLLM's tool parsers, at once and as a stream. Written for vLLM 0.32.0, whose module paths it
uses. No network and no model: the tokenizer is made here. Prints a JSON summary; where something is wrong, lists it on
stderr and exits with 1.
"""

from __future__ import annotations

import copy
import importlib
import json
import sys
from collections import Counter
from importlib.metadata import version
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from .cases import Json

cases: Any = importlib.import_module("cases")  # beside this script

PARSERS = ["qwen3_coder", "qwen3_xml"]
STREAM_STEPS = [1, 4, 10_000]  # tokens a step: one by one, as with speculative decoding, all at once
ASSISTANT = "<|im_start|>assistant\n"
END = "<|im_end|>\n"
# Qwen3.5 has a token for each of these; the tags of functions and parameters are ordinary text to it.
TURN_TOKENS = ["<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
MARKUP_TOKENS = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]

checked: Counter[str] = Counter()
failures: list[str] = []


def expect(group: str, name: object, actual: object, expected: object) -> None:
    checked[group] += 1
    if actual != expected:
        failures.append(f"{group}: {name}\n  expected {expected!r}\n  got      {actual!r}")


class Template:
    """The template's text, and a tokenizer that renders it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokenizer = tiny_tokenizer()

    def render(self, messages: list[Json], tools: list[Json] | None = None, **options: Any) -> str:
        prompt: str = self.tokenizer.apply_chat_template(
            messages, tools=tools, chat_template=self.text, tokenize=False, **options
        )
        return prompt

    def refusal(self, messages: list[Json]) -> str:
        try:
            return f"rendered {self.render(messages)!r}"
        except Exception as error:  # noqa: BLE001 - whatever transformers raises, its text is compared
            return str(error)


def tiny_tokenizer() -> Any:
    """One token a byte, and Qwen3.5's own tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: index for index, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(TURN_TOKENS)
    tokenizer.add_tokens(MARKUP_TOKENS)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def as_vllm_loads(path: str) -> str:
    """As --chat-template does."""
    from vllm.renderers.chat_utils import load_chat_template, validate_chat_template

    validate_chat_template(path)
    text: str = load_chat_template(path)
    return text


def check_rendering(template: Template) -> None:
    for case in cases.CASES:
        expect("rendered", case.name, template.render(case.messages, case.tools, **case.options), case.expected)
    for case in cases.REFUSALS:
        if case.messages:  # transformers itself stumbles over an empty conversation
            expect("refused", case.name, template.refusal(case.messages), case.error)
    begun = [cases.user("Count."), cases.assistant("One, two,")]
    expect(
        "rendered",
        "an answer to be continued",
        template.render(begun, continue_final_message=True),
        f"<|im_start|>user\nCount.{END}{ASSISTANT}One, two,",
    )


def request(messages: list[Json]) -> Any:
    """What a client sends: arguments are always a JSON string on the wire."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

    sent = copy.deepcopy(messages)
    for function in (call["function"] for message in sent for call in message.get("tool_calls", [])):
        if not isinstance(function["arguments"], str):
            function["arguments"] = json.dumps(function["arguments"])
    return ChatCompletionRequest(messages=sent, tools=[cases.STORE])


def prepared(messages: list[Json], content_format: str) -> list[Json]:
    """The messages as vLLM's chat API hands them to the template."""
    from vllm.renderers.chat_utils import parse_chat_messages

    text_model = SimpleNamespace(multimodal_config=None, enable_prompt_embeds=False)
    conversation, _, _ = parse_chat_messages(request(messages).messages, text_model, content_format)
    return list(conversation)


def check_preparation(template: Template) -> str:
    from vllm.renderers.hf import _detect_content_format, _detect_developer_role_support, resolve_chat_template_kwargs

    options = {"enable_thinking": False, "preserve_thinking": True, "add_vision_id": True}
    kept = resolve_chat_template_kwargs(template.tokenizer, template.text, options)
    expect("detected", "options", kept, options)
    detected: str = _detect_content_format(template.text, default="string")
    expect("detected", "content format", detected, "openai")
    expect("detected", "developer role", _detect_developer_role_support(template.text), True)
    for content_format in ("openai", "string"):
        group = f"prepared in {content_format} format"
        for case in cases.TEXT_ONLY:
            prompt = template.render(prepared(case.messages, content_format), case.tools, **case.options)
            expect(group, case.name, prompt, case.expected)
        for arguments in cases.ROUND_TRIPS:
            prompt = template.render(prepared([store(arguments)], content_format))
            expect(group, arguments, prompt, template.render([store(arguments)]))
    return detected


def store(*arguments: object, content: str | None = None, **fields: object) -> Json:
    """An assistant message that calls the tool once for each."""
    message: Json = cases.assistant(content, *(cases.call("store", each) for each in arguments), **fields)
    return message


def check_parser(template: Template, name: str) -> None:
    """Reads back what the template writes: the model imitates the calls it is shown, and the parser must take them."""
    from vllm.tool_parsers import ToolParserManager

    parser_class = ToolParserManager.get_tool_parser(name)
    asked = request([cases.user("Store it.")])
    answers: list[tuple[str | None, list[Json]]] = [(None, [arguments]) for arguments in cases.ROUND_TRIPS]
    answers.append(("I store them all.", cases.ROUND_TRIPS))
    for content, calls in answers:
        written = template.render([store(*calls, content=content)]).removeprefix(ASSISTANT).removesuffix(END)
        label = calls[0] if content is None else "parallel calls after content"
        expected = as_json(content, [("store", arguments) for arguments in calls])
        found = parser_class(template.tokenizer, asked.tools).extract_tool_calls(written, asked)
        expect(f"{name} at once", label, read(found.content, found.tool_calls), expected)
        for size in STREAM_STEPS:
            parser = parser_class(template.tokenizer, asked.tools)
            deltas = stream_calls(parser, asked, steps(template.tokenizer, written, size))
            expect(f"{name} by {size} tokens", label, read(*joined(deltas)[1:]), expected)


def stream_calls(parser: Any, asked: Any, tokens: Iterable[tuple[str, list[int]]]) -> Iterator[Any]:
    text, ids = "", list[int]()
    for piece, new in tokens:
        yield parser.extract_tool_calls_streaming(text, text + piece, piece, ids, ids + new, new, asked)
        text, ids = text + piece, ids + new
    yield parser.finish_streaming()


def check_answers_come_back(template: Template) -> None:
    """An answer that vLLM took apart and the client sent back must render as the very text the model wrote."""
    from vllm.parser.parser_manager import ParserManager

    parser_class: Any = ParserManager.get_parser("qwen3_coder", "qwen3", enable_auto_tools=True)
    question = [cases.user("Store it.")]
    asked = request(question)
    prompt = template.render(question, [cases.STORE], add_generation_prompt=True)
    prompt_ids = template.tokenizer.encode(prompt, add_special_tokens=False)
    for arguments in cases.ROUND_TRIPS:
        if "</think>" in str(arguments):
            continue  # vLLM 0.32.0 drops that tag from a value where it parses reasoning and calls together
        shown = template.render([store(arguments, content="I store it.", reasoning="A plan.\n\nIn two parts.")])
        written = shown.removeprefix(f"{ASSISTANT}<think>\n").removesuffix(END)
        at_once = parser_class(template.tokenizer, asked.tools).parse(written, asked, enable_auto_tools=True)
        answers = {"at once": at_once}
        for size in STREAM_STEPS:
            parser = parser_class(template.tokenizer, asked.tools)
            deltas = stream_answer(parser, asked, prompt_ids, list(steps(template.tokenizer, written, size)))
            answers[f"by {size} tokens"] = joined(deltas)
        for how, (reasoning, content, calls) in answers.items():
            sent_back = [cases.call(call.name, call.arguments) for call in calls or []]
            history = [*question, cases.assistant(content, *sent_back, reasoning_content=reasoning)]
            after = template.render(prepared(history, "openai"), [cases.STORE])
            expect(f"an answer {how} comes back", arguments, after, prompt + written + END)


def stream_answer(parser: Any, asked: Any, prompt_ids: list[int], tokens: list[tuple[str, list[int]]]) -> Iterator[Any]:
    for position, (piece, new) in enumerate(tokens, start=1):
        yield parser.parse_delta(piece, new, asked, prompt_ids, finished=position == len(tokens))


def steps(tokenizer: Any, text: str, size: int) -> Iterator[tuple[str, list[int]]]:
    """Text and tokens as an engine streams them: whole characters, at least `size` tokens a step but for the last."""
    pending: list[int] = []
    tokens = tokenizer.encode(text, add_special_tokens=False)
    for position, token in enumerate(tokens, start=1):
        pending.append(token)
        piece = tokenizer.decode(pending)
        if position == len(tokens) or (len(pending) >= size and not piece.endswith("\ufffd")):
            yield piece, pending
            pending = []


def joined(deltas: Iterable[Any]) -> tuple[str, str, list[SimpleNamespace]]:
    """What a client makes of a stream: reasoning, content and calls."""
    reasoning, content = "", ""
    calls: dict[int, SimpleNamespace] = {}
    for delta in deltas:
        if delta is None:
            continue
        reasoning += delta.reasoning or ""
        content += delta.content or ""
        for part in delta.tool_calls:
            call = calls.setdefault(part.index, SimpleNamespace(name="", arguments=""))
            call.name += part.function.name or ""
            call.arguments += part.function.arguments or ""
    return reasoning, content, list(calls.values())


def read(content: str | None, calls: Iterable[Any]) -> str:
    functions = [getattr(call, "function", call) for call in calls]
    return as_json(
        (content or "").strip() or None, [(each.name, json.loads(each.arguments or "{}")) for each in functions]
    )


def as_json(content: str | None, calls: list[tuple[str, Json]]) -> str:
    """To compare with: in JSON true is not 1, and 2 is not 2.0."""
    return json.dumps([content, calls], ensure_ascii=False)


def main() -> int:
    if len(sys.argv) != 2:
        sys.stderr.write("usage: python in_image.py TEMPLATE\n")
        return 2
    template = Template(as_vllm_loads(sys.argv[1]))
    check_rendering(template)
    content_format = check_preparation(template)
    for name in PARSERS:
        check_parser(template, name)
    check_answers_come_back(template)
    if failures:
        failures.append(
            f"{len(failures)} of {checked.total()} checks failed; detected content format: {content_format}"
        )
        sys.stderr.write("\n".join(failures) + "\n")
        return 1
    summary = {
        "vllm": version("vllm"),
        "transformers": version("transformers"),
        "content_format": content_format,
        "checks": checked,
    }
    sys.stdout.write(json.dumps(summary, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
