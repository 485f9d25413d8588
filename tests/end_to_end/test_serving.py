"""The main job on the real cpu image: from the recipe to a served model with the baked template, and back."""

from __future__ import annotations

import json
import os
import secrets
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from docker.models.containers import Container

from builder.engine import containers, images
from builder.engine.endpoint import Endpoint, environment
from builder.lock import reading
from builder.lock.model import ImageName
from builder.project import Project
from tests import projects
from tests.conftest import remove_all
from tests.cpu_image import builder, project, run_in, started
from tests.mods.fix_qwen35_enhanced_chat_template import rendering

pytestmark = [pytest.mark.engine, pytest.mark.image, pytest.mark.timeout(1800)]

RECIPE = "recipes/qwen3-0.6b-cpu.yaml"
MODEL = "Qwen/Qwen3-0.6B"
MOD = "fix-qwen3.5-enhanced-chat-template"
TEMPLATE = "qwen3.5-enhanced.jinja"
HERE = Path(__file__).parent
MOD_TESTS = projects.REPOSITORY_ROOT / "tests/mods/fix_qwen35_enhanced_chat_template"
SERVE = [
    *("vllm", "serve", "/model", "--served-model-name", "tiny", "--port", "8000"),
    *("--enforce-eager", "--max-model-len", "4096", "--max-num-seqs", "2"),
    *("--chat-template", TEMPLATE, "--enable-auto-tool-choice", "--tool-call-parser", "qwen3_coder"),
]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Tells the weather in a city.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]
CONVERSATION = [
    {"role": "user", "content": "Is it raining in Bern?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Bern"}'}},
        ],
    },
    {"role": "tool", "tool_call_id": "1", "content": "light rain"},
]


@pytest.fixture(scope="module")
def cpu(tmp_path_factory: pytest.TempPathFactory, endpoint: Endpoint) -> Iterator[Project]:
    """The shipped definitions, mods and recipes with the pins that are committed, under a repository of this test's."""
    repository = f"builder-test-{secrets.token_hex(4)}-cpu"
    yield project(tmp_path_factory.mktemp("cpu"), repository, RECIPE)
    remove_all(endpoint, repository)


@pytest.fixture(scope="module")
def first(cpu: Project) -> ImageName:
    """Number 1, built from the recipe."""
    builder(cpu, "build", RECIPE)
    return reading.read(cpu.lock).models[MODEL].pairing.image


@pytest.fixture(scope="module")
def model(endpoint: Endpoint, first: ImageName, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Qwen3, made inside the image."""
    folder = tmp_path_factory.mktemp("model")
    run_in(endpoint, str(first), ["python3", "/here/tiny_model.py", "/model"], {HERE: "/here", folder: "/model"})
    return folder


Post = Callable[[str, dict[str, Any]], Any]


@contextmanager
def serving(endpoint: Endpoint, image: str, model: Path) -> Iterator[Post]:
    """A real ``vllm serve`` that answers; gives a function that posts to it."""
    variables = {"VLLM_CPU_KVCACHE_SPACE": "1"}
    options = {"ports": {"8000/tcp": ("127.0.0.1", None)}, "environment": variables, "shm_size": "1g"}
    with started(endpoint, image, SERVE, {model: "/model"}, **options) as container:
        container.reload()
        base = f"http://127.0.0.1:{container.ports['8000/tcp'][0]['HostPort']}"
        await_healthy(container, base)

        def post(path: str, body: dict[str, Any]) -> Any:
            request = urllib.request.Request(
                base + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
            )
            try:
                with urllib.request.urlopen(request, timeout=120) as answer:
                    return json.load(answer)
            except urllib.error.HTTPError as error:
                said = container.logs().decode()[-6000:]
                raise AssertionError(f"{path}: {error.code} {error.read().decode()}\n{said}") from None

        yield post


def await_healthy(container: Container, base: str) -> None:
    end = time.monotonic() + 600
    while time.monotonic() < end:
        container.reload()
        assert container.status == "running", container.logs().decode()[-4000:]
        try:
            with urllib.request.urlopen(f"{base}/health", timeout=5):
                return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(1)
    raise AssertionError(f"not healthy after 600 s:\n{container.logs().decode()[-4000:]}")


def baked_template(endpoint: Endpoint, image: str) -> str:
    with containers.running(endpoint, image, labels={"builder.test": "1"}) as box:
        return box.run(["cat", f"/workspace/vllm/{TEMPLATE}"], timeout=60).output


def test_the_parser_reads_back_every_call_that_the_template_renders(endpoint: Endpoint, first: ImageName) -> None:
    argv = ["python3", "/here/in_image.py", f"/workspace/vllm/{TEMPLATE}"]
    said = run_in(endpoint, str(first), argv, {MOD_TESTS: "/here"})
    summary = json.loads(said[said.index("{\n") if "{\n" in said else said.rindex("\n{") :])
    assert summary


def test_the_served_model_uses_the_baked_template(endpoint: Endpoint, first: ImageName, model: Path) -> None:
    with serving(endpoint, str(first), model) as post:
        question = {"model": "tiny", "messages": CONVERSATION, "tools": TOOLS, "max_tokens": 8, "temperature": 0}
        answer = post("/v1/chat/completions", question)
        assert answer["object"] == "chat.completion"
        assert answer["choices"][0]["message"]["role"] == "assistant"
        assert 1 <= answer["usage"]["completion_tokens"] <= 8

        tokens = post("/tokenize", {"model": "tiny", "messages": CONVERSATION, "tools": TOOLS})["tokens"]
        prompt = post("/detokenize", {"model": "tiny", "tokens": tokens})["prompt"]
    # vLLM reads the arguments' JSON before it renders.
    said = json.loads(json.dumps(CONVERSATION))
    said[1]["tool_calls"][0]["function"]["arguments"] = {"city": "Bern"}
    assert prompt == rendering.render(said, tools=TOOLS, add_generation_prompt=True)


def test_a_changed_template_is_a_new_layer_and_rolls_back(cpu: Project, endpoint: Endpoint, first: ImageName) -> None:
    repository = first.repository
    original = baked_template(endpoint, f"{repository}:latest")
    file = cpu.mods / MOD / TEMPLATE
    projects.write(file, "{#- changed -#}\n" + original)

    said = builder(cpu, "build", RECIPE)
    assert said.startswith(f"built {repository}:2 in ")
    assert f"  mod {MOD}: changed" in said.splitlines()
    one, two = (images.inspect(endpoint, f"{repository}:{number}") for number in (1, 2))
    assert one is not None
    assert two is not None
    assert two.layers[:-1] == one.layers[:-1]
    assert two.layers[-1] != one.layers[-1]
    assert baked_template(endpoint, f"{repository}:latest") == "{#- changed -#}\n" + original
    assert reading.read(cpu.lock).models[MODEL].pairing.image.number == 2

    builder(cpu, "rollback", RECIPE)
    assert baked_template(endpoint, f"{repository}:latest") == original
    lock = reading.read(cpu.lock)
    assert lock.images[repository].current == 1
    assert lock.models[MODEL].pairing.image == first
    latest = images.inspect(endpoint, f"{repository}:latest")
    assert latest is not None
    assert latest.id == one.id
    projects.write(file, original)
    assert builder(cpu, "build", RECIPE) == f"already built as {first}\n"


def test_what_was_built_is_what_was_pinned(cpu: Project, endpoint: Endpoint, first: ImageName) -> None:
    pinned = reading.read(cpu.lock).pins_of("cpu", images_platform(endpoint, first)).python
    assert pinned is not None
    said = run_in(endpoint, str(first), ["python3", "-m", "pip", "list", "--format", "json"], {})
    found = {row["name"].lower().replace("_", "-").replace(".", "-"): row["version"] for row in json.loads(said)}
    wrong = {p.name: (p.version, found.get(p.name)) for p in pinned.packages if found.get(p.name) != p.version}
    assert wrong == {}


def images_platform(endpoint: Endpoint, name: ImageName) -> str:
    details = images.inspect(endpoint, str(name))
    assert details is not None
    return details.platform


def test_nothing_of_the_person_is_in_the_image(endpoint: Endpoint, first: ImageName) -> None:
    details = images.inspect(endpoint, str(first))
    assert details is not None
    assert environment(endpoint)
    variables = {entry.partition("=")[0] for entry in details.config["Env"]}
    assert variables == {
        *("PATH", "PIP_BREAK_SYSTEM_PACKAGES", "PIP_ROOT_USER_ACTION", "UV_BREAK_SYSTEM_PACKAGES"),
        "VLLM_TARGET_DEVICE",
    }
    links = os.environ.get("PIP_FIND_LINKS", "")
    assert not links or links not in json.dumps(details.labels)
