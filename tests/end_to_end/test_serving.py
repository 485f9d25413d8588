"""The main job on the real cpu image: from the recipe to a served model with the baked template, and back."""

from __future__ import annotations

import json
import os
import re
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from builder.base import processes
from builder.base.project import Project
from builder.definitions.container import LABEL
from builder.engine import containers, images
from builder.engine.client import Endpoint, environment
from builder.lab.prove import prove
from builder.lock import lock_file
from builder.lock.model import ImageName
from builder.serving import readiness
from tests import program, projects, shared
from tests.commands import serving
from tests.conftest import command, remove_all
from tests.cpu_image import builder, project, run_in
from tests.lab.prove import planted
from tests.mods.fix_qwen35_enhanced_chat_template import rendering

if TYPE_CHECKING:
    from collections.abc import Iterator


pytestmark = [pytest.mark.engine, pytest.mark.image, pytest.mark.timeout(1800)]

RECIPE = "recipes/qwen3-0.6b-cpu.yaml"
MODEL = "Qwen/Qwen3-0.6B"
MOD = "fix-qwen3.5-enhanced-chat-template"
TEMPLATE = "qwen3.5-enhanced.jinja"
CHANGED = "{#- changed -#}\n"
HERE = Path(__file__).parent
MOD_TESTS = projects.REPOSITORY_ROOT / "tests/mods/fix_qwen35_enhanced_chat_template"
REVISION = "0123456789abcdef0123456789abcdef01234567"
# What the tiny model and two cores take, in place of what the recipe says for the real one.
SMALL = ["--max-model-len", "4096", "--", "--enforce-eager"]
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
    repository = f"{shared.unique_name()}-cpu"
    yield project(tmp_path_factory.mktemp("cpu"), repository, RECIPE)
    remove_all(endpoint, repository)


@pytest.fixture(scope="module")
def first(cpu: Project) -> ImageName:
    """Number 1, built from the recipe."""
    builder(cpu, "build", RECIPE)
    return lock_file.read_lock(cpu.lock).models[MODEL].pairing.image


@pytest.fixture(scope="module")
def second(cpu: Project, endpoint: Endpoint, first: ImageName) -> dict[str, str]:
    """Number 2, with another template, from which the model has gone back: what the build said, and the template under
    ``latest`` before it, with it, and after."""
    latest = f"{first.repository}:latest"
    original = baked_template(endpoint, latest)
    file = cpu.mods / MOD / TEMPLATE
    projects.write(file, CHANGED + original)
    said = builder(cpu, "build", RECIPE, "--no-prove")
    changed = baked_template(endpoint, latest)
    assert lock_file.read_lock(cpu.lock).models[MODEL].pairing.image.number == 2
    builder(cpu, "rollback", RECIPE)
    projects.write(file, original)
    return {"said": said, "before": original, "changed": changed, "after": baked_template(endpoint, latest)}


@pytest.fixture(scope="module")
def hub(endpoint: Endpoint, first: ImageName, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face cache that holds, in place of the recipe's model, a tiny random one, made inside the image."""
    home = tmp_path_factory.mktemp("huggingface")
    model = home / f"hub/models--{MODEL.replace('/', '--')}"
    projects.write(model / "refs/main", REVISION)
    folder = model / "snapshots" / REVISION
    folder.mkdir(parents=True)
    run_in(endpoint, str(first), ["python3", "/here/tiny_model.py", "/model"], {HERE: "/here", folder: "/model"})
    return home


def post(port: int, path: str, body: dict[str, Any]) -> Any:
    content = json.dumps({"model": "qwen3-0.6b", **body}).encode()
    address = f"http://127.0.0.1:{port}{path}"
    request = urllib.request.Request(address, content, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=600) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        raise AssertionError(f"{path}: {error.code} {error.read().decode()}") from None


def chat(port: int) -> str:
    """What the model answers in the middle of a conversation with tools: always the same."""
    question = {"messages": CONVERSATION, "tools": TOOLS, "max_tokens": 8, "temperature": 0}
    answer = post(port, "/v1/chat/completions", question)
    assert answer["object"] == "chat.completion"
    assert 1 <= answer["usage"]["completion_tokens"] <= 8
    (choice,) = answer["choices"]
    assert choice["message"]["role"] == "assistant"
    return json.dumps(choice["message"]["content"])


def prompt(port: int) -> str:
    """The conversation as the server puts it before the model."""
    tokens = post(port, "/tokenize", {"messages": CONVERSATION, "tools": TOOLS})["tokens"]
    found: str = post(port, "/detokenize", {"tokens": tokens})["prompt"]
    return found


def status(project: Project) -> dict[str, Any]:
    (found,) = json.loads(builder(project, "status", MODEL, "--json"))["services"]
    return dict(found)


def baked_template(endpoint: Endpoint, image: str) -> str:
    with containers.running(endpoint, image, labels={"builder.test": "1"}) as container:
        return container.run(["cat", f"/workspace/vllm/{TEMPLATE}"], timeout=120).output


@pytest.mark.long
def test_the_parser_reads_back_every_call_that_the_template_renders(endpoint: Endpoint, first: ImageName) -> None:
    argv = ["python3", "/here/in_image.py", f"/workspace/vllm/{TEMPLATE}"]
    said = run_in(endpoint, str(first), argv, {MOD_TESTS: "/here"})
    summary = json.loads(said[said.index("{\n") if "{\n" in said else said.rindex("\n{") :])
    assert summary


@pytest.mark.long
def test_every_planted_fault_is_found_and_none_where_there_is_none(endpoint: Endpoint, first: ImageName) -> None:
    judged = planted.judgements(endpoint, str(first), {"builder.test": "1"})
    alone, compared = judged.pop(planted.UNCHANGED)
    assert (alone.verdict, alone.findings, compared.verdict) == ("pass", (), "pass")
    assert len(judged) == 21
    assert {name for name, (by_properties, _) in judged.items() if by_properties.verdict != "fail"} == set()


GPT_OSS = """\
recipe_version: "1"
name: gpt-oss
model: /models/gpt-oss
container: {repository}
volumes: ["{folder}:/models/gpt-oss:ro"]
env: {{TIKTOKEN_ENCODINGS_BASE: /nowhere}}
command: |
  vllm serve /models/gpt-oss --enable-auto-tool-choice --tool-call-parser openai --reasoning-parser openai_gptoss
"""


@pytest.mark.long
def test_every_conversation_and_every_output_of_gpt_oss(
    cpu: Project, endpoint: Endpoint, first: ImageName, tmp_path: Path
) -> None:
    """vLLM writes and reads its format by code of its own, and no template."""
    folder = tmp_path / "gpt-oss"
    folder.mkdir()
    run_in(endpoint, str(first), ["python3", "/here/gpt_oss_files.py", "/model"], {HERE: "/here", folder: "/model"})
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    # The very file that openai-harmony would fetch: it knows it by the same digest.
    assert len(prove.harmony_vocabulary(files) or b"") == 3_613_922

    text = GPT_OSS.format(repository=first.repository, folder=folder)
    projects.write(cpu.root / "recipes/gpt-oss.yaml", text)
    (proof,) = json.loads(builder(cpu, "prove", str(first), "recipes/gpt-oss.yaml", "--json"))["proofs"]
    (cpu.root / "recipes/gpt-oss.yaml").unlink()
    assert proof["verdict"] == "pass"
    assert {finding["verdict"] for finding in proof["findings"]} <= {"pass"}
    assert proof["counts"]["conversations"] > 60
    assert proof["counts"]["outputs"] > 45


NESTED = '{{"a": ' * 5000 + "1" + "}}" * 5000
# By the recipe: its variables, its command, and the beginning of each problem that is told.
ASKED: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "well": ("VLLM_LOGGING_LEVEL: INFO", "--max_model_len 8k --served-model-name a b -tp 1 -O3", ()),
    "old": (
        "VLLM_LOGING_LEVEL: INFO",
        "--swap-space 4 --kv-cache-dtype fp9 --enable-auto-tool-choice --tool-call-parser qwen3_xlm",
        ("has no --tool-call-parser `qwen3_xlm`", "has no option `--swap-space`", "refuses `--kv-cache-dtype fp9`"),
    ),
    "hostile": (
        "VLLM_PLUGINS: evil",
        "--config /etc/passwd.yaml --tool-parser-plugin /tmp/evil.py --reasoning-parser-plugin evil"
        f" --served-model-name --port --hf-overrides '{NESTED}' --max-model-len {'9' * 5000} --x='$(touch /tmp/x)'",
        (
            "refuses `--served-model-name`: expected at least one argument",
            "refuses `--port`: expected one argument",
            "the value of --hf-overrides is nested too deep",
            "99: expected a number of at most 18 characters",
            "has no option `--x`",
        ),
    ),
}


def test_the_image_s_own_vllm_judges_recipes(cpu: Project, first: ImageName, tmp_path: Path) -> None:
    judge_recipes(cpu, str(first), tmp_path)


def judge_recipes(project: Project, image: str, folder: Path) -> None:
    for name, (env, arguments, _) in ASKED.items():
        text = f"name: x\ncontainer: x\nenv: {{{env}}}\ncommand: vllm serve m {arguments}\n"
        projects.write(folder / f"{name}.yaml", text.replace(": vllm", ": |\n  vllm"))
    argv = command(project, "recipes", "check", str(folder), "--image", image, "--json")
    done = program.run(argv)
    assert done.returncode == 2, done.stderr
    assert f"checking 3 recipes with the vLLM of {image}" in done.stderr
    found = {Path(each["file"]).stem: each for each in json.loads(done.stdout)["recipes"]}
    for name, (_, _, expected) in ASKED.items():
        told = [problem["message"] for problem in found[name]["problems"]]
        assert [any(part in message for message in told) for part in expected] == [True] * len(expected), told
        assert len(told) == len(expected), told
    assert any("reads VLLM_LOGING_LEVEL; did you mean" in note["message"] for note in found["old"]["notes"])
    assert not any("VLLM_" in note["message"] for note in found["well"]["notes"])
    assert "asking" not in program.run(argv).stderr, "the answers are kept"


@pytest.mark.long
def test_compare_serves_nothing_if_the_image_refuses_what_differs(
    cpu: Project, endpoint: Endpoint, first: ImageName, served: str
) -> None:
    done = program.run(command(cpu, "compare", str(first), MODEL, "--set", "max-num-seqs=many"))
    assert done.returncode == 2
    assert f"{first} (vLLM " in done.stderr
    assert "many" in done.stderr
    assert "refuses `--max-num-seqs many`" in done.stderr
    assert "starting" not in done.stderr
    assert containers.labelled(endpoint, f"{LABEL}={served}") == ()


@pytest.mark.long
def test_a_changed_template_is_a_new_layer_and_rolls_back(
    cpu: Project, endpoint: Endpoint, first: ImageName, second: dict[str, str]
) -> None:
    repository = first.repository
    assert second["said"].startswith(f"built {repository}:2 in ")
    assert f"  mod {MOD}: changed" in second["said"].splitlines()
    assert second["changed"] == CHANGED + second["before"]
    assert second["after"] == second["before"]
    one, two = (images.inspect_image(endpoint, f"{repository}:{number}") for number in (1, 2))
    assert one is not None
    assert two is not None
    assert two.layers[:-1] == one.layers[:-1]
    assert two.layers[-1] != one.layers[-1]
    lock = lock_file.read_lock(cpu.lock)
    assert lock.images[repository].current == 1
    assert lock.models[MODEL].pairing.image == first
    latest = images.inspect_image(endpoint, f"{repository}:latest")
    assert latest is not None
    assert latest.id == one.id
    assert builder(cpu, "build", RECIPE) == f"already built as {first}\n"


@pytest.fixture
def served(
    cpu: Project, endpoint: Endpoint, first: ImageName, hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """What the recipe's server is called; the tiny model is where a person has theirs. Gone when the test ends."""
    monkeypatch.setenv("HF_HOME", str(hub))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = cpu.root / RECIPE
    name = f"{first.repository}-served"
    original = file.read_text(encoding="utf-8")
    text = original.replace("name: Qwen3-0.6B-cpu", f"name: {name}")
    projects.write(file, text.replace("\nenv:\n", "\nenv:\n  HF_HUB_OFFLINE: 1\n"))
    yield name
    projects.write(file, original)
    containers.remove_labelled(endpoint, f"{LABEL}={name}")


def test_from_run_to_stop(cpu: Project, endpoint: Endpoint, first: ImageName, served: str) -> None:
    port = processes.free_port()
    said = builder(cpu, "run", MODEL, "--port", str(port), *SMALL)
    assert said.startswith(f"{served} serves from {first}, ready after ")
    chat(port)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=120) as page:
        counted = readiness.read_metrics(page.read().decode())
    now = status(cpu)
    assert counted is not None
    assert counted.generated_tokens > 0
    assert (now["state"], now["restarts"], now["image"]) == ("healthy", 0, str(first))
    assert (now["requests_running"], now["requests_waiting"]) == (counted.running, counted.waiting)
    assert (now["prompt_tokens"], now["generated_tokens"]) == (counted.prompt_tokens, counted.generated_tokens)
    # vLLM reads the arguments' JSON before it renders.
    conversation = json.loads(json.dumps(CONVERSATION))
    conversation[1]["tool_calls"][0]["function"]["arguments"] = {"city": "Bern"}
    assert prompt(port) == rendering.render(conversation, tools=TOOLS, add_generation_prompt=True)

    measured(cpu, str(first))

    assert re.match(
        rf"{served} stopped after (\d+ min )?\d+(\.\d)? s; it served from {first}\n", builder(cpu, "stop", served)
    )
    assert containers.labelled(endpoint, f"{LABEL}={served}") == ()


@pytest.mark.long
@pytest.mark.usefixtures("second")
def test_after_a_kill_and_a_rollback_restart_and_a_compose_file_answer_as_before(
    cpu: Project, endpoint: Endpoint, first: ImageName, served: str, tmp_path: Path
) -> None:
    port = processes.free_port()
    builder(cpu, "rollback", MODEL, "--to", "2")
    said = builder(cpu, "run", MODEL, "--port", str(port), *SMALL)
    assert said.startswith(f"{served} serves from {first.repository}:2, ready after ")
    answer = chat(port)

    kill = ["sh", "-c", "kill -9 $(cat /proc/1/task/1/children)"]
    assert containers.execute(endpoint, f"vllm-{served}", kill, 120).exit_code == 0
    now = restarted(cpu)
    assert (now["restarts"], now["requests_running"]) == (1, None)

    builder(cpu, "rollback", MODEL)
    said = builder(cpu, "restart", served)
    assert f"{served} serves from {first}, ready after " in said
    now = status(cpu)
    assert (now["state"], now["restarts"], now["image"]) == ("healthy", 0, str(first))
    inside = containers.execute(endpoint, f"vllm-{served}", ["cat", TEMPLATE], 120).output
    assert not inside.startswith("{#- changed -#}")
    assert chat(port) == answer

    file = tmp_path / "compose.yaml"
    builder(cpu, "export", MODEL, "--format", "compose", "--output", str(file), "--port", str(port), *SMALL)
    builder(cpu, "stop", served)
    serving.compose(endpoint, file, "up", "--detach", "--wait")
    assert chat(port) == answer
    serving.compose(endpoint, file, "down")
    assert containers.labelled(endpoint, f"{LABEL}={served}") == ()


def measured(project: Project, image: str) -> None:
    """Measures the server that runs, by the real llama-benchy, and probes it; both are kept as evidence."""
    profile = {"pp": 64, "tg": 32, "depth": [0, 256], "runs": 2, "coherence": False}
    projects.write(project.root / "builder.yaml", json.dumps({"bench": {"tiny": profile}}))
    done = program.run(command(project, "bench", MODEL, "--profile", "tiny", "--json"))
    bench = json.loads(done.stdout)
    assert bench["image"] == image
    # Most tokens of a random model are not yet text, a short prompt may take less than the latency varies, and a busy
    # machine may send a whole answer at once.
    assert done.returncode == 0
    assert {finding["check"] for finding in bench["findings"]} <= {"tokens", "pp", "tg"}
    assert not any("left out, as" in finding["text"] for finding in bench["findings"])
    figures = {(figure["name"], figure["at"].get("depth")): figure for figure in bench["figures"]}
    for depth in (0, 256):
        assert figures["ttft", depth]["n"] == 2
        assert figures["ttft", depth]["mean"] > 1
        left_out = any(note["check"] == "tg" and note["at"].endswith(f"depth {depth}") for note in bench["findings"])
        assert left_out or figures["tg", depth]["n"] == 2
    assert 1 << 30 > figures["kv_tokens", None]["mean"] > 4096
    assert figures["startup", None]["mean"] > 1
    assert figures["memory_floor", None]["mean"] > 0
    assert figures["memory_peak", None]["mean"] > 1 << 28

    check = "import json, os, urllib.request as r; json.load(r.urlopen(os.environ['BUILDER_ADDRESS'] + '/models'))"
    projects.write(project.root / "probes/lists/probe.yaml", json.dumps({"command": ["python3", "-c", check]}))
    assert "4 runs, 0 failed" in builder(project, "probe", MODEL, "lists")
    # 46 tools are more than its context holds, which is no failure of the model.
    refused = program.run(command(project, "probe", MODEL, "tools-long"))
    assert (refused.returncode, "too few for the probe tools-long" in refused.stderr) == (2, True)
    kept = [json.loads(path.read_text(encoding="utf-8")) for path in project.root.glob("evidence/**/*.json")]
    assert sorted((run["kind"], run["name"]) for run in kept if run["kind"] != "prove") == [
        ("bench", "tiny"),
        ("probe", "lists"),
    ]
    assert {run["subject"]["revision"] for run in kept if run["kind"] == "bench"} == {REVISION}


def restarted(project: Project) -> dict[str, Any]:
    """The status when the engine has started it again, which it does after a moment."""
    end = time.monotonic() + 120
    while (now := status(project))["restarts"] == 0 and time.monotonic() < end:
        time.sleep(0.2)
    return now


def test_what_was_built_is_what_was_pinned(cpu: Project, endpoint: Endpoint, first: ImageName) -> None:
    pinned = lock_file.read_lock(cpu.lock).pins_of("cpu", images_platform(endpoint, first)).python
    assert pinned is not None
    said = run_in(endpoint, str(first), ["python3", "-m", "pip", "list", "--format", "json"], {})
    found = {row["name"].lower().replace("_", "-").replace(".", "-"): row["version"] for row in json.loads(said)}
    wrong = {p.name: (p.version, found.get(p.name)) for p in pinned.packages if found.get(p.name) != p.version}
    assert wrong == {}


def images_platform(endpoint: Endpoint, name: ImageName) -> str:
    details = images.inspect_image(endpoint, str(name))
    assert details is not None
    return details.platform


def test_nothing_of_the_person_is_in_the_image(endpoint: Endpoint, first: ImageName) -> None:
    details = images.inspect_image(endpoint, str(first))
    assert details is not None
    assert environment(endpoint)
    variables = {entry.partition("=")[0] for entry in details.config["Env"]}
    assert variables == {
        *("PATH", "PIP_BREAK_SYSTEM_PACKAGES", "PIP_ROOT_USER_ACTION", "UV_BREAK_SYSTEM_PACKAGES"),
        "VLLM_TARGET_DEVICE",
    }
    links = os.environ.get("PIP_FIND_LINKS", "")
    assert not links or links not in json.dumps(details.labels)
