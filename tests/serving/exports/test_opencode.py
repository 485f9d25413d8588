from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from builder.definitions import command
from builder.serving import routers
from tests.definitions.recipes import recipe_texts

if TYPE_CHECKING:
    from pathlib import Path


def provider(folder: Path, text: str, address: str = "127.0.0.1") -> dict[str, Any]:
    recipe = recipe_texts.make(folder, text)
    document = json.loads(routers.render_opencode(recipe, command.render_command(recipe, {}), address))
    assert document["$schema"] == "https://opencode.ai/config.json"
    ((provider_name, block),) = document["provider"].items()
    assert document["model"] in {f"{provider_name}/{model}" for model in block["models"]}
    assert block["npm"] == "@ai-sdk/openai-compatible"
    return dict(block)


def test_the_provider_knows_what_the_command_says(tmp_path: Path) -> None:
    block = provider(
        tmp_path,
        "vllm serve Org/M --served-model-name m n --port 8001 --max-model-len 196608 --enable-auto-tool-choice"
        " --reasoning-parser qwen3",
    )
    assert block["options"] == {"baseURL": "http://127.0.0.1:8001/v1"}
    model = {
        "name": "x",
        "tool_call": True,
        "reasoning": True,
        "modalities": {"input": ["text"], "output": ["text"]},
        "limit": {"context": 196608, "output": 32768},
    }
    assert block["models"] == {"m": model, "n": model}


def test_what_the_command_does_not_say_is_assumed_low(tmp_path: Path) -> None:
    (model,) = provider(tmp_path, "vllm serve Org/M --max-model-len auto")["models"].values()
    assert (model["tool_call"], model["reasoning"]) == (False, False)
    assert model["limit"] == {"context": 32768, "output": 8192}


@pytest.mark.parametrize("length", [2048, 8192, 40960, 131072, 1_000_000])
def test_a_conversation_has_room_before_it_is_compacted(tmp_path: Path, length: int) -> None:
    """OpenCode compacts what exceeds the context without the longest output and as much again, 20,000 at most."""
    (model,) = provider(tmp_path, f"vllm serve Org/M --max-model-len {length}")["models"].values()
    context, output = model["limit"]["context"], model["limit"]["output"]
    assert output > 0
    assert context - output - min(20_000, output) >= context // 2


@pytest.mark.parametrize(
    ("arguments", "takes"),
    [
        ("", ["text"]),
        ("--limit-mm-per-prompt '{{\"image\": 4}}'", ["text", "image"]),
        ("--limit-mm-per-prompt image=2", ["text", "image"]),
        ('--limit-mm-per-prompt \'{{"image": 0, "video": 0}}\'', ["text"]),
        ("--limit-mm-per-prompt '{{\"video\": 1}}'", ["text"]),
    ],
)
def test_images_are_told_where_the_command_speaks_of_them(tmp_path: Path, arguments: str, takes: list[str]) -> None:
    (model,) = provider(tmp_path, f"vllm serve Org/M {arguments}")["models"].values()
    assert model["modalities"] == {"input": takes, "output": ["text"]}


@pytest.mark.parametrize(
    ("address", "url"), [("spark.local", "http://spark.local:8000/v1"), ("fd00::1", "http://[fd00::1]:8000/v1")]
)
def test_the_server_may_be_another_machine(tmp_path: Path, address: str, url: str) -> None:
    assert provider(tmp_path, "vllm serve Org/M", address)["options"]["baseURL"] == url
