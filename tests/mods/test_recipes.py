"""What the shipped recipes, `recipes check` and the figures of a start count on in vLLM's releases.

The streaming parser `qwen3_coder` is fed with several tokens a step, since `recipes check` names the releases that
break a call. It runs from the wheels, beside stand-ins for the few modules that it imports."""

from __future__ import annotations

import ast
import json
import random
import re
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from builder.definitions import recipe
from builder.engine.containers import LogLine
from builder.lab.measure import bench
from tests import shipped_files
from tests.mods.releases import Releases

pytestmark = pytest.mark.slow

PARSER = "vllm/tool_parsers/qwen3coder_tool_parser.py"
MARKS = ("<tool_call>", "</tool_call>")
CALL = (
    "<tool_call>\n<function=write>\n<parameter=path>\n/a/b.py\n</parameter>\n"
    "<parameter=content>\nprint(1)\n</parameter>\n</function>\n</tool_call>"
)
ARGUMENTS = {"path": "/a/b.py", "content": "print(1)"}
STREAMS = 60


class Message(SimpleNamespace):
    """A message of vLLM's API: a field that nobody set is None."""

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


class ToolParser:
    """What the parser inherits in vLLM: its state, and the vocabulary of its tokenizer."""

    def __init__(self, tokenizer: Any, _tools: Any = None) -> None:
        self.model_tokenizer = tokenizer
        self.prev_tool_call_arr: list[dict[str, Any]] = []
        self.streamed_args_for_tool: list[str] = []

    @property
    def vocab(self) -> dict[str, int]:
        return {mark: at for at, mark in enumerate(MARKS)}


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> None:
    messages = (
        *("ChatCompletionRequest", "ChatCompletionToolsParam", "DeltaFunctionCall", "DeltaMessage", "DeltaToolCall"),
        *("ExtractedToolCallInformation", "FunctionCall", "ToolCall"),
    )
    quiet = SimpleNamespace(**dict.fromkeys(("debug", "info", "warning", "error", "exception"), lambda *_, **__: None))
    contents: dict[str, dict[str, Any]] = {
        "regex": vars(re),
        "vllm.logger": {"init_logger": lambda _: quiet},
        "vllm.tokenizers": {"TokenizerLike": object},
        "vllm.tool_parsers.abstract_tool_parser": {"Tool": Message, "ToolParser": ToolParser},
    }
    for name in ("protocol", "chat_completion.protocol", "engine.protocol"):
        contents[f"vllm.entrypoints.openai.{name}"] = dict.fromkeys(messages, Message)
    for name in (*contents, "vllm", "vllm.tool_parsers", "vllm.entrypoints", "vllm.entrypoints.openai"):
        module = ModuleType(name)
        module.__dict__.update(contents.get(name, {}))
        monkeypatch.setitem(sys.modules, name, module)


def broken(source: str, most: int) -> int:
    """How many of the streams come out wrong where a step has up to ``most`` tokens."""
    namespace: dict[str, Any] = {"__name__": "parser"}
    exec(compile(source, PARSER, "exec"), namespace)  # noqa: S102 - vLLM's own file, from its wheel
    chance = random.Random(1)  # noqa: S311
    return sum(streamed(namespace["Qwen3CoderToolParser"], chance, most) != ARGUMENTS for _ in range(STREAMS))


def streamed(parser: Any, chance: random.Random, most: int) -> object:
    properties = {name: {"type": "string"} for name in ARGUMENTS}
    function = Message(name="write", parameters={"type": "object", "properties": properties})
    tools = [Message(type="function", function=function)]
    tokens = re.findall(r"</?tool_call>|\s?\w{1,5}|\s|[^\w\s]{1,2}", CALL)
    assert "".join(tokens) == CALL
    made, before, written = parser(object()), 0, ""
    made.tools = tools
    while before < len(tokens):
        now = before + chance.randint(1, most)
        texts = ["".join(part) for part in (tokens[:before], tokens[:now], tokens[before:now])]
        ids = [[MARKS.index(t) if t in MARKS else 9 for t in part] for part in (tokens[:before], tokens[:now])]
        delta = made.extract_tool_calls_streaming(*texts, *ids, ids[1][before:], Message(tools=tools))
        calls = (delta.tool_calls or []) if delta else []
        written += "".join(call.function.arguments or "" for call in calls if call.function)
        before = now
    try:
        return json.loads(written)
    except ValueError:
        return written


@pytest.mark.usefixtures("modules")
@pytest.mark.parametrize(
    ("version", "breaks"), [("0.14.1", True), ("0.16.0", True), ("0.17.0", False), ("0.19.1", False)]
)
def test_the_releases_that_break_a_call(released: Releases, version: str, *, breaks: bool) -> None:
    source = released.text("vllm", version, PARSER)
    assert broken(source, 1) == 0
    assert bool(broken(source, 4)) == breaks


@pytest.mark.parametrize("version", ["0.28.0", "0.32.0", "0.33.0"])
def test_vllm_reads_every_variable_that_a_shipped_recipe_sets(released: Releases, version: str) -> None:
    source = released.text("vllm", version, "vllm/envs.py")
    shipped = recipe.readable_recipes(shipped_files.project())
    names = {(name, variable) for name, each in shipped for variable in each.env if variable.startswith("VLLM_")}
    unread = {(name, variable) for name, variable in names if f'    "{variable}": ' not in source}
    assert unread == set()
    assert len(names) > 5


@pytest.mark.parametrize(("version", "knows"), [("0.27.1", False), ("0.28.0", True), ("0.33.0", True)])
def test_the_release_of_the_image_dflash_drafts_with_dflash2(released: Releases, version: str, *, knows: bool) -> None:
    assert ('"DFlash2DraftModel"' in released.text("vllm", version, "vllm/model_executor/models/registry.py")) == knows


# Where vLLM logs what `builder bench` records of a start.
LOGGED = {
    "vllm/v1/worker/gpu_model_runner.py": ("Model loading took", "Graph capturing finished"),
    "vllm/v1/worker/gpu_worker.py": ("Available KV cache memory",),
    "vllm/v1/core/kv_cache_utils.py": (" KV cache size: ",),
}


@pytest.mark.parametrize("version", ["0.28.0", "0.30.0", "0.32.0", "0.33.0"])
def test_the_figures_of_a_start_are_in_the_lines_that_vllm_logs(released: Releases, version: str) -> None:
    texts = released.texts("vllm", version, LOGGED)
    lines = []
    for path, parts in LOGGED.items():
        constants = [each.value for each in ast.walk(ast.parse(texts[path])) if isinstance(each, ast.Constant)]
        for part in parts:
            (form,) = (text for text in constants if isinstance(text, str) and part in text)
            lines.append(re.sub(r"%[.0-9]*[sfd]", "2", form.replace("%s KV", "GPU KV")))
    moment = "2026-11-22T10:00:00Z"
    figures = bench.log_figures([LogLine(moment, line) for line in lines], moment)
    assert {figure.name: figure.values for figure in figures} == {
        "kv_tokens": (2,),
        "model_memory": (2 << 30,),
        "model_loading": (2,),
        "kv_memory": (2 << 30,),
        "graph_capture": (2,),
    }
