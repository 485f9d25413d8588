"""The configuration of llama-swap: read as that program reads it, and its commands run with a docker that notes its
arguments.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from builder.definitions import command
from builder.serving import exports
from builder.serving.exports import RoutedModel
from tests.definitions.recipes import recipe_texts
from tests.serving.exports import settings

if TYPE_CHECKING:
    from pathlib import Path


# As llama-swap finds macros: https://github.com/mostlygeek/llama-swap, proxy/config.
MACRO = re.compile(r"\$\{([a-zA-Z0-9_-]+)(\.[a-zA-Z0-9_-]+)?\}")


def routed(model: str, *served: str, port: int = 8000, folder: str = "/srv") -> RoutedModel:
    wanted = settings.hostile()
    mounts = (wanted.mounts[0], replace(wanted.mounts[1], source=f"{folder}/$models"))
    return RoutedModel(model, served, "small:1", replace(wanted, mounts=mounts), port)


def entries(*models: RoutedModel) -> dict[str, Any]:
    document = yaml.safe_load(exports.render_llama_swap(models, "/home/ann"))
    found: dict[str, Any] = document["models"]
    return found


def test_docker_gets_every_value_as_it_was_meant(tmp_path: Path) -> None:
    model = routed("Org/M", "m")
    cmd = entries(model)["Org/M"]["cmd"]
    assert not MACRO.search(cmd)
    assert "\n" not in cmd
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "docker").write_text('#!/bin/sh\nprintf "%s\\0" "$@"\n', encoding="utf-8")
    (tools / "docker").chmod(0o755)
    environ = {**os.environ, "HOME": str(tmp_path), "PATH": f"{tools}:{os.environ['PATH']}"}
    done = subprocess.run(shlex.split(cmd), cwd=tmp_path, capture_output=True, text=True, env=environ)
    assert done.returncode == 0, done.stderr
    given = done.stdout.split("\0")[:-1]
    assert given[:4] == ["run", "--rm", "--pull", "never"]
    assert "--detach" not in given
    assert "--restart" not in given
    program, *arguments = model.container.argv
    assert given[-len(arguments) - 1 :] == ["small:1", *arguments]
    assert given[given.index("--entrypoint") + 1] == program
    for name, value in model.container.env.items():
        assert f"{name}={value}" in given
    for name, value in {**model.container.labels, "builder.serve.by": "llama-swap"}.items():
        assert f"{name}={value}" in given
    assert f"{tmp_path}/.cache/a b:/root/.cache/x" in given
    assert (tmp_path / ".cache/a b").is_dir()


def test_each_name_leads_to_one_model() -> None:
    found = entries(routed("Org/A", "chat", "a"), routed("Org/B", "chat", port=8001))
    assert found["Org/A"]["aliases"] == ["a"]
    assert "aliases" not in found["Org/B"]
    assert found["Org/A"]["useModelName"] == "chat"
    assert found["Org/B"]["proxy"] == "http://127.0.0.1:8001"
    assert found["Org/B"]["metadata"] == {"image": "small:1"}


def test_litellm_has_an_entry_for_each_name() -> None:
    models = (routed("Org/A", "chat", "a"), routed("Org/B", port=8001))
    document = yaml.safe_load(exports.render_litellm(models, "fd00::1"))
    assert [(each["model_name"], each["litellm_params"]) for each in document["model_list"]] == [
        ("Org/A", {"model": "hosted_vllm/chat", "api_base": "http://[fd00::1]:8000/v1"}),
        ("chat", {"model": "hosted_vllm/chat", "api_base": "http://[fd00::1]:8000/v1"}),
        ("a", {"model": "hosted_vllm/chat", "api_base": "http://[fd00::1]:8000/v1"}),
        ("Org/B", {"model": "hosted_vllm/Org/B", "api_base": "http://[fd00::1]:8001/v1"}),
    ]


def test_models_on_one_port_are_told() -> None:
    (line,) = exports.shared_ports((routed("Org/A"), routed("Org/B"), routed("Org/C", port=8001)))
    assert line.startswith("Org/A, Org/B share port 8000")


def provider(folder: Path, text: str, address: str = "127.0.0.1") -> dict[str, Any]:
    recipe = recipe_texts.make(folder, text)
    document = json.loads(exports.render_opencode(recipe, command.render_command(recipe, {}), address))
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
