"""Serving, with a stand-in for vLLM: the engine and all around it are real."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from builder.base import processes
from builder.base.project import Project
from builder.definitions.container import COMPILED, LABEL
from builder.engine import client, containers, images
from builder.engine.client import Endpoint, environment
from builder.lock import lock_file
from builder.serving import compile_caches
from tests import json_outputs, program, projects
from tests.commands import serving
from tests.commands.serving import MODEL, Kitchen
from tests.conftest import command, remove_all, run_command

pytestmark = pytest.mark.engine

Builder = Callable[..., subprocess.CompletedProcess[str]]

# As NVIDIA's: it sets something up, and runs what it is given.
WRAPPER = r"""RUN mkdir -p /opt/nvidia \
    && printf '#!/bin/sh\necho "$1" > /entrypoint-ran\nexec "$@"\n' > {path} && chmod +x {path}
ENTRYPOINT ["{path}"]
"""
NVIDIAS = WRAPPER.format(path="/opt/nvidia/nvidia_entrypoint.sh")


@pytest.fixture
def builder(kitchen: Kitchen) -> Builder:
    def run(*arguments: str, code: int = 0, **environ: str) -> subprocess.CompletedProcess[str]:
        more = {**kitchen.environ, **environ}
        return run_command(kitchen.project, *arguments, code=code, environ=more)

    return run


def inspect(endpoint: Endpoint, name: str) -> dict[str, Any]:
    details: dict[str, Any] = client.request(endpoint, "GET", f"/containers/{name}/json")
    return details


def status(builder: Builder, what: str) -> dict[str, Any]:
    (found,) = json_outputs.parsed("status", builder("status", what, "--json").stdout)["services"]
    return dict(found)


def get(kitchen: Kitchen, path: str) -> None:
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{kitchen.port}{path}", timeout=120).close()
    except (urllib.error.URLError, ConnectionError):
        assert path == "/die"


def test_from_run_to_stop(kitchen: Kitchen, builder: Builder, endpoint: Endpoint) -> None:
    planned = builder("run", "chat", "--dry-run").stdout
    assert f"{kitchen.name} would serve from {kitchen.repository}:2, port {kitchen.port}" in " ".join(planned.split())
    assert containers.find_container(endpoint, kitchen.name) is None

    done = builder("run", "chat")
    serves = f"{kitchen.name} serves from {kitchen.repository}:2"
    address = f"http://127.0.0.1:{kitchen.port}/v1"
    assert re.fullmatch(rf"{serves}, ready after \d+\.\d s: {address}\n", done.stdout)
    assert "loading weights" in done.stderr
    get(kitchen, "/health")

    again = builder("run", MODEL)
    assert again.stdout == f"{kitchen.name} already serves from {kitchen.repository}:2: {address}\n"

    service = status(builder, MODEL)
    assert (service["state"], service["image"], service["restarts"]) == ("healthy", f"{kitchen.repository}:2", 0)
    assert (service["requests_running"], service["requests_waiting"], service["prompt_tokens"]) == (2, 1, 1200)
    assert 300 < service["generated_tokens_per_second"] < 3000
    assert (service["draft_tokens"], service["accepted_tokens"], service["acceptance"]) == (2000, 1760, 0.88)
    for_people = builder("status", kitchen.name).stdout
    assert for_people.startswith(f"{kitchen.name}: healthy\n")
    assert "88.0% accepted: 1760 of 2000 drafted tokens" in for_people
    assert max(map(len, for_people.splitlines())) <= 80

    server = json_outputs.parsed("run", builder("run", "chat", "--json").stdout)["server"]
    assert (server["name"], server["image"], server["address"]) == (kitchen.name, f"{kitchen.repository}:2", address)
    assert (server["already"], server["ready_seconds"]) == (True, 0)

    stopped = builder("stop", "chat", "--json")
    assert json_outputs.parsed("stop", stopped.stdout)["server"]["killed"] == []
    assert stopped.stderr == ""
    assert containers.find_container(endpoint, kitchen.name) is None
    # Other tests may serve something on the same engine.
    told = builder("stop", "chat", code=2).stderr
    assert "there is nothing to stop" in told or "served now: " in told
    assert "builder run" not in told


@pytest.mark.long
def test_a_container_is_found_by_its_prefix_and_by_either_name(
    kitchen: Kitchen, builder: Builder, endpoint: Endpoint
) -> None:
    name = kitchen.name.removeprefix("vllm-")
    kitchen.recipe(name=name)
    builder("run", "chat")
    filters = {"filters": json.dumps({"name": ["vllm"]})}
    listed = client.listed(endpoint, "/containers/json", query=filters)
    assert f"/vllm-{name}" in [each for service in listed for each in service["Names"]]
    assert status(builder, f"vllm-{name}")["name"] == status(builder, name)["name"] == name
    builder("stop", f"vllm-{name}")
    assert containers.find_container(endpoint, f"vllm-{name}") is None


@pytest.mark.long
def test_a_server_without_the_prefix_is_restarted_and_stopped(
    kitchen: Kitchen, builder: Builder, endpoint: Endpoint
) -> None:
    name = kitchen.name.removeprefix("vllm-")
    kitchen.recipe(name=name)
    builder("run", "chat")
    client.request(endpoint, "POST", f"/containers/vllm-{name}/rename", query={"name": name})
    assert f"is already used by {name} (image " in builder("run", "chat", code=1).stderr
    builder("restart", "chat")
    assert containers.find_container(endpoint, f"vllm-{name}") is not None
    assert containers.find_container(endpoint, name) is None

    client.request(endpoint, "POST", f"/containers/vllm-{name}/rename", query={"name": name})
    builder("stop", name)
    assert containers.find_container(endpoint, name) is None


def test_what_crashes_is_restarted_and_counted(kitchen: Kitchen, builder: Builder) -> None:
    builder("run", "chat")
    get(kitchen, "/die")
    end = time.monotonic() + 120
    service = status(builder, "chat")
    while (service["state"], service["restarts"]) != ("healthy", 1) and time.monotonic() < end:
        time.sleep(0.2)
        service = status(builder, "chat")
    assert (service["state"], service["restarts"]) == ("healthy", 1)
    log = builder("logs", "chat").stdout
    assert log.count("Application startup complete") == 2
    assert builder("logs", "chat", "--tail", "1").stdout == "INFO:     Application startup complete.\n"


@pytest.mark.long
def test_what_hangs_is_told_though_its_health_check_is_made_seldom(
    kitchen: Kitchen, builder: Builder, endpoint: Endpoint
) -> None:
    builder("run", "chat")
    end = time.monotonic() + 120
    while inspect(endpoint, kitchen.name)["State"]["Health"]["Status"] != "healthy" and time.monotonic() < end:
        time.sleep(0.2)
    containers.execute(endpoint, kitchen.name, ["sh", "-c", "kill -STOP -1"], 120)
    assert status(builder, "chat")["state"] == "unhealthy"
    assert "is running but does not answer" in builder("run", "chat", code=1).stderr
    containers.execute(endpoint, kitchen.name, ["sh", "-c", "kill -CONT -1"], 120)
    assert status(builder, "chat")["state"] == "healthy"
    assert " already serves from " in builder("run", "chat").stdout


def test_after_a_rollback_restart_serves_from_the_older_number_as_it_was_asked_for(
    kitchen: Kitchen, builder: Builder, endpoint: Endpoint
) -> None:
    port = processes.free_port()
    builder("run", "chat", "--port", str(port), "--", "--extra", "a b")
    before = inspect(endpoint, kitchen.name)["Config"]["Cmd"]
    told = builder("rollback", MODEL).stdout
    stays = f"{kitchen.name} still serves from {kitchen.repository}:2; to switch: `builder restart {kitchen.name}`"
    assert told.splitlines()[-1] == f"  {stays}"
    assert f"paired with  {kitchen.repository}:1 now; to switch: `builder restart" in builder("status", "chat").stdout
    assert status(builder, "chat")["paired_with_now"] == f"{kitchen.repository}:1"
    asked = builder("run", "chat", "--port", str(port), "--", "--extra", "a b", code=1)
    expected = (
        f"is already being served, from {kitchen.repository}:2, and would now be served from {kitchen.repository}:1"
    )
    assert expected in asked.stderr

    done = builder("restart", kitchen.name)
    assert f"{kitchen.name} serves from {kitchen.repository}:1, ready after " in done.stdout
    after = inspect(endpoint, kitchen.name)
    assert after["Config"]["Cmd"] == before
    assert after["Config"]["Image"] == f"{kitchen.repository}:1"

    other = processes.free_port()
    builder("restart", MODEL, "--port", str(other))
    now = inspect(endpoint, kitchen.name)["Config"]["Cmd"]
    assert now == [str(other) if word == str(port) else word for word in before]

    done = builder("rollback", MODEL, "--restart")
    assert f"{kitchen.name} serves from {kitchen.repository}:2, ready after " in done.stdout
    assert status(builder, "chat")["paired_with_now"] is None

    builder("stop", "chat")
    assert "no server of this machine has to be restarted" in builder("rollback", MODEL, "--restart").stdout


def test_other_options_are_not_taken_for_the_same(kitchen: Kitchen, builder: Builder) -> None:
    kitchen.recipe("--slow 60")
    builder("run", "chat", "--detach")
    asked = builder("run", "chat", "--max-model-len", "4096", code=1)
    assert "is already being served, with other options" in asked.stderr
    assert f"`builder stop {kitchen.name}`, then run the command again" in asked.stderr
    assert "is already starting" in builder("run", "chat", "--detach").stdout


def test_a_model_without_a_pairing_gets_the_current_image_and_is_told(
    kitchen: Kitchen, builder: Builder, endpoint: Endpoint
) -> None:
    kitchen.recipe(file="new", model="Org/New")
    done = builder("run", "new", "--detach")
    assert f"Org/New is not paired with an image; the current image {kitchen.repository}:2 is used" in done.stderr
    assert inspect(endpoint, kitchen.name)["Config"]["Image"] == f"{kitchen.repository}:2"


HOSTILE = ["it's", 'a "b"', "$(touch /tmp/x)", "a b", "`id`", "; rm -rf /", "zeile\nzwei", "grün 🙂", "-- -x", "{port}"]


def test_whatever_is_written_reaches_the_server_as_that_very_argument(
    kitchen: Kitchen, builder: Builder, endpoint: Endpoint
) -> None:
    model = '/models/$(id)\'s "model" of $two'
    name = f"{kitchen.name} 'of' $(id) \"two\""
    own = '\'a "b"\' {\\"c\\":1}'
    kitchen.recipe("--greeting {greeting} -q '{quoted}' {own}", name=name, greeting="", quoted="", own=own)
    settings = {"served": model, "greeting": HOSTILE[1], "quoted": HOSTILE[0]}
    typed = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    builder("run", "chat", *typed, "--", *HOSTILE)
    expected = ["vllm", "serve", model, "--port", str(kitchen.port), "--host", "127.0.0.1"]
    expected += ["--greeting", HOSTILE[1], "-q", HOSTILE[0], 'a "b"', '{"c":1}', *HOSTILE]
    service = f"{kitchen.name}-of-id-two"
    assert inspect(endpoint, service)["Config"]["Cmd"] == expected
    output = builder("logs", service).stdout.splitlines()[0]
    assert json.loads(output.removeprefix("arguments "))[1:] == expected[1:]
    # What was asked for is kept in a label, and is the same when it comes back.
    builder("restart", service)
    assert inspect(endpoint, service)["Config"]["Cmd"] == expected


@pytest.mark.long
def test_the_token_is_in_no_label_and_no_log(kitchen: Kitchen, builder: Builder, endpoint: Endpoint) -> None:
    token = "hf_very-secret"
    done = builder("run", "chat", HF_TOKEN=token)
    assert f"token {len(token)}\n" in builder("logs", "chat").stdout
    details = inspect(endpoint, kitchen.name)
    assert f"HF_TOKEN={token}" in details["Config"].pop("Env")
    output = [
        json.dumps(details),
        done.stdout,
        done.stderr,
        builder("status", "--json").stdout,
        builder("logs", "chat").stdout,
    ]
    assert not [text for text in output if token in text]


def test_the_container_is_as_the_definition_and_the_recipe_say(
    kitchen: Kitchen, builder: Builder, endpoint: Endpoint
) -> None:
    kitchen.recipe(more="env: {NOTE: 'a b', EMPTY: }\n")
    builder("run", "chat", "--detach")
    details = inspect(endpoint, kitchen.name)
    config, host = details["Config"], details["HostConfig"]
    assert {"NOTE=a b", "EMPTY="} <= set(config["Env"])
    assert (host["NetworkMode"], host["IpcMode"], host["ShmSize"]) == ("host", "private", 64 << 20)
    assert (host["RestartPolicy"]["Name"], host["Init"], host["DeviceRequests"]) == ("unless-stopped", True, [])
    assert (config["StopSignal"], config["StopTimeout"]) == ("SIGTERM", 60)
    home = kitchen.environ["HOME"]
    mounts = {mount["Target"]: mount["Source"] for mount in host["Mounts"]}
    assert mounts["/root/.cache/huggingface"] == f"{home}/.cache/huggingface"
    compiled = f"{home}/.cache/builder/compile/{kitchen.repository}/2"
    assert mounts["/root/.cache/vllm"] == f"{compiled}/vllm"
    assert config["Labels"][f"{LABEL}.image"] == f"{kitchen.repository}:2"


def test_gpus_are_asked_for_and_missed_in_words(kitchen: Kitchen, builder: Builder, endpoint: Endpoint) -> None:
    file = kitchen.project.dockerfiles / "served/image.yaml"
    file.write_text(file.read_text().replace("gpus: none", "gpus: all"))
    done = builder("run", "chat", code=1)
    assert (
        f"{kitchen.name} needs a GPU, but this engine gives containers no access to one (could not select"
        in done.stderr
    )
    assert "builder doctor" in done.stderr
    found = builder("doctor", code=None).stdout
    assert "this engine cannot give containers a GPU, which these models require: " in " ".join(found.split())
    assert containers.find_container(endpoint, kitchen.name) is None


def given_to_entrypoint(endpoint: Endpoint, kitchen: Kitchen) -> str:
    """The program that the entrypoint of a server was given; empty where it did not run."""
    service = containers.find_container(endpoint, kitchen.name)
    assert service
    argv = ["sh", "-c", "cat /entrypoint-ran 2> /dev/null || true"]
    return containers.execute(endpoint, service.id, argv, 120).output.strip()


@pytest.mark.long
@pytest.mark.parametrize(("entrypoint", "runs"), [(NVIDIAS, "vllm"), ('ENTRYPOINT ["false"]\n', "")])
def test_nvidias_entrypoint_runs_the_command_of_an_image_that_was_built_elsewhere(
    kitchen: Kitchen, builder: Builder, endpoint: Endpoint, tmp_path: Path, entrypoint: str, runs: str
) -> None:
    """Without a number, with one, and in what `export` writes. No other entrypoint does: it may be a server itself."""
    other = f"{kitchen.repository}-nvidia"
    image_yaml = kitchen.project.dockerfiles / "other/image.yaml"
    projects.write(image_yaml, serving.IMAGE.format(repository=other))
    projects.write(image_yaml.with_name("Dockerfile.j2"), serving.DOCKERFILE)
    projects.write(tmp_path / "context/Dockerfile", f"FROM {kitchen.repository}:2\n{entrypoint}")
    argv = [*endpoint.buildx, "build", "--provenance=false", "-t", f"{other}:latest", str(tmp_path / "context")]
    subprocess.run(argv, env={**os.environ, **environment(endpoint)}, check=True, capture_output=True)
    serving.recipe(kitchen.project, other, file="chat-2", model="Org/Other", name=kitchen.name, port=kitchen.port)
    try:
        for arguments in ((), ("adopt", other)):
            if arguments:
                builder(*arguments)
            builder("run", "chat-2")
            assert given_to_entrypoint(endpoint, kitchen) == runs
            builder("stop", kitchen.name)
        assert ("--entrypoint" in builder("export", "chat-2", "--format", "script").stdout) == (not runs)
        assert ("entrypoint:" in builder("export", "chat-2", "--format", "compose").stdout) == (not runs)
        told = " ".join(builder("export", "chat-2", "--format", "recipe").stderr.split())
        assert ("--keep-entrypoint" in told) == bool(runs)
    finally:
        remove_all(endpoint, other)


@pytest.mark.long
def test_a_definition_that_keeps_its_entrypoint_serves_through_it(
    kitchen: Kitchen, builder: Builder, endpoint: Endpoint
) -> None:
    folder = kitchen.project.dockerfiles / "served"
    text = serving.IMAGE.format(repository=kitchen.repository)
    projects.write(folder / "image.yaml", f"{text}args: {{keep_entrypoint: true}}\n")
    projects.write(folder / "Dockerfile.j2", serving.DOCKERFILE + WRAPPER.format(path="/opt/nvidia/mine"))
    builder("build", "chat")
    number = lock_file.read_lock(kitchen.project.lock).images[kitchen.repository].current
    try:
        assert f"serves from {kitchen.repository}:{number}, ready" in builder("run", "chat").stdout
        assert given_to_entrypoint(endpoint, kitchen) == "vllm"
        builder("stop", kitchen.name)
    finally:
        images.remove_extra_tag(endpoint, f"{kitchen.repository}:{number}")


def test_a_crash_loop_ends_with_the_log_and_the_way_back(
    kitchen: Kitchen, builder: Builder, endpoint: Endpoint
) -> None:
    done = builder("run", "chat", "--", "--crash", code=1)
    cause = "ValueError: Free memory on device cuda:0 (9.31/119.7 GiB) on startup is less than desired GPU memory"
    said = " ".join(done.stderr.split())
    assert re.search(rf"{kitchen.name} ended \d times before it answered: {re.escape(cause)}", said)
    assert "Engine core initialization failed" not in done.stderr  # the log has it, and the traceback
    assert f"`builder rollback {MODEL}` goes back to {kitchen.repository}:1" in done.stderr
    log = kitchen.project.root / f".builder/serve-logs/{kitchen.name}.log"
    assert f"the whole log: {kitchen.project.relative(log)}" in done.stderr
    assert log.read_text().count(cause) >= 2
    assert containers.find_container(endpoint, kitchen.name) is None
    remedy = "`builder logs chat --report` shows why the last start failed"
    assert remedy in " ".join(builder("logs", "chat", code=2).stderr.split())
    assert (
        "no/report cannot be written: No such file" in builder("logs", "chat", "--report", "no/report", code=2).stderr
    )
    assert "No space left on device" in builder("logs", "chat", "--report", "/dev/full", code=8).stderr


def test_a_crash_loop_ends_with_its_cause_if_no_log_can_be_written(
    kitchen: Kitchen, builder: Builder, endpoint: Endpoint
) -> None:
    projects.write(kitchen.project.state / "serve-logs", "not a folder")
    done = builder("run", "chat", "--", "--crash", code=1)
    assert "before it answered: ValueError: Free memory on device cuda:0" in " ".join(done.stderr.split())
    assert f"`builder rollback {MODEL}` goes back to {kitchen.repository}:1" in done.stderr
    assert "the whole log" not in done.stderr
    assert containers.find_container(endpoint, kitchen.name) is None


def test_a_crash_of_a_loader_in_the_image_names_it_beside_the_way_back(kitchen: Kitchen, builder: Builder) -> None:
    cause = "RuntimeError: buffer_size (9663676416 B) exceeds device memory budget (3221225472 B)"
    done = builder("run", "chat", "--", "--crash", "--crash-message", cause, code=1)
    told = " ".join(done.stderr.split())
    assert f"before it answered: {cause}" in told
    assert "InstantTensor before 0.2.1 counts the page cache as used memory" in told
    assert f"`builder rollback {MODEL}` goes back to {kitchen.repository}:1" in told


def test_one_crash_is_forgiven(kitchen: Kitchen, builder: Builder) -> None:
    done = builder("run", "chat", "--", "--crash-once")
    assert "the server exited after" in done.stderr
    assert " serves from " in done.stdout


def test_a_program_that_is_not_in_the_image(kitchen: Kitchen, builder: Builder, endpoint: Endpoint) -> None:
    file = kitchen.project.recipes / "chat.yaml"
    file.write_text(file.read_text().replace("vllm serve", "vlm serve"))
    output = builder("run", "chat", code=1).stderr
    assert f"{kitchen.name} ended " in output
    assert "exec vlm failed: No such file or directory" in output
    assert containers.find_container(endpoint, kitchen.name) is None


def test_an_image_that_is_not_the_recorded_one_is_refused(
    kitchen: Kitchen, builder: Builder, endpoint: Endpoint
) -> None:
    name = lock_file.read_lock(kitchen.project.lock).models[MODEL].pairing.image
    kept = images.inspect_image(endpoint, str(name))
    assert kept is not None
    images.tag_image(endpoint, str(name), f"{name.repository}:kept")
    try:
        images.tag_image(endpoint, f"{name.repository}:1", str(name))
        done = builder("run", "chat", code=7)
    finally:
        images.tag_image(endpoint, kept.id, str(name))
        images.remove_extra_tag(endpoint, f"{name.repository}:kept")
    assert f"{name} is not the image that images.lock records" in done.stderr
    assert "frees the name; then run the command again" in done.stderr
    assert containers.find_container(endpoint, kitchen.name) is None


@pytest.mark.long
def test_an_image_that_lost_its_tag_has_it_again_and_serves(
    kitchen: Kitchen, builder: Builder, endpoint: Endpoint
) -> None:
    """The engine has the content under a name of another project, too."""
    name = lock_file.read_lock(kitchen.project.lock).models[MODEL].pairing.image
    kept = images.inspect_image(endpoint, str(name))
    assert kept is not None
    images.remove_image(endpoint, str(name))
    done = builder("run", "chat")
    assert f"{name} had lost its tag in this engine" in done.stderr
    builder("stop", "chat")
    again = images.inspect_image(endpoint, str(name))
    assert again is not None
    assert images.fingerprint(again) == images.fingerprint(kept)


def test_an_image_without_a_number_serves_by_its_name_and_adopting_gives_it_one(
    kitchen: Kitchen, builder: Builder, endpoint: Endpoint
) -> None:
    other = f"{kitchen.repository}-other"
    image_yaml = kitchen.project.dockerfiles / "other/image.yaml"
    projects.write(image_yaml, serving.IMAGE.format(repository=other))
    projects.write(image_yaml.with_name("Dockerfile.j2"), serving.DOCKERFILE)
    serving.recipe(kitchen.project, other, file="chat-2", model="Org/Other", name=kitchen.name, port=kitchen.port)
    refused = " ".join(builder("run", "chat-2", code=7).stderr.split())
    assert f"{other} is missing from this engine: nothing was started" in refused
    assert "`builder build recipes/chat-2.yaml` builds it, or get it from a registry: `docker pull" in refused
    images.tag_image(endpoint, f"{kitchen.repository}:2", f"{other}:latest")
    try:
        done = builder("run", "chat-2")
        assert f"serves from {other}, ready" in done.stdout
        assert f"{other} has no number" in " ".join(done.stderr.split())
        mounts = inspect(endpoint, kitchen.name)["Mounts"]
        assert not [mount for mount in mounts if "compile" in mount["Source"]]
        builder("stop", kitchen.name)
        builder("adopt", other)  # a stand-in, in which no vLLM is found
        builder("pair", "Org/Other", f"{other}:1")
        done = builder("run", "chat-2")
        assert f"serves from {other}:1, ready" in done.stdout
        assert "has no number" not in done.stderr
        assert "carry mods/standin" not in " ".join(done.stderr.split())  # its labels name them
        builder("stop", kitchen.name)
    finally:
        for tag in images.image_tags(endpoint, [other]):
            images.remove_extra_tag(endpoint, tag)


def test_a_port_in_use_is_told_before_anything_starts(kitchen: Kitchen, builder: Builder, endpoint: Endpoint) -> None:
    with socket.create_server(("127.0.0.1", kitchen.port)):
        done = builder("run", "chat", code=1)
    assert f"port {kitchen.port} is already used on this machine" in done.stderr
    assert containers.find_container(endpoint, kitchen.name) is None

    builder("run", "chat", "--detach")
    kitchen.recipe(file="other", name=f"{kitchen.name}-b", model="Org/Other")
    done = builder("run", "other", code=1)
    assert f"port {kitchen.port} is already used by {kitchen.name} (image {kitchen.repository}:2)" in done.stderr


def test_a_name_that_somebody_else_has(kitchen: Kitchen, builder: Builder, endpoint: Endpoint) -> None:
    body = {"Image": f"{kitchen.repository}:1", "Cmd": ["true"]}
    client.request(endpoint, "POST", "/containers/create", query={"name": kitchen.name}, body=body)
    try:
        done = builder("run", "chat", code=1)
    finally:
        client.request(endpoint, "DELETE", f"/containers/{kitchen.name}")
    assert f"another container, not made by builder, is called {kitchen.name}" in done.stderr


def test_what_was_stopped_by_hand_is_started_again(kitchen: Kitchen, builder: Builder, endpoint: Endpoint) -> None:
    builder("run", "chat")
    client.request(endpoint, "POST", f"/containers/{kitchen.name}/stop")
    assert status(builder, "chat")["state"] == "stopped"
    assert ", ready after " in builder("run", "chat").stdout


def test_a_paused_server_is_told_and_can_be_restarted_and_stopped(
    kitchen: Kitchen, builder: Builder, endpoint: Endpoint
) -> None:
    builder("run", "chat")
    client.request(endpoint, "POST", f"/containers/{kitchen.name}/pause")
    assert status(builder, "chat")["state"] == "paused"
    assert f"`docker unpause {kitchen.name}`" in builder("status").stdout
    refused = builder("run", "chat", code=1).stderr
    assert f"{kitchen.name} is paused, and does not answer" in refused
    assert f"to start it again: `builder restart {kitchen.name}`" in " ".join(refused.split())
    assert ", ready after " in builder("restart", kitchen.name).stdout
    client.request(endpoint, "POST", f"/containers/{kitchen.name}/pause")
    builder("stop", "chat")
    assert containers.find_container(endpoint, kitchen.name) is None


@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.long), signal.SIGTERM])
def test_interrupted_while_it_starts_nothing_is_left(
    kitchen: Kitchen, endpoint: Endpoint, number: signal.Signals
) -> None:
    argv = command(kitchen.project, "run", "chat", "--", "--slow", "600")
    environ = {**os.environ, **kitchen.environ}
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ) as child:
        assert child.stderr
        assert "loading weights" in child.stderr.readline()
        child.send_signal(number)
        _, output = child.communicate(timeout=120)
    assert child.returncode == 130
    stopping = f"stopping {kitchen.name}; `--detach` starts it without waiting"
    assert output.splitlines()[-3:] == [stopping, "", "interrupted"]
    assert containers.find_container(endpoint, kitchen.name) is None


def test_while_it_starts_status_says_the_phase(kitchen: Kitchen, builder: Builder) -> None:
    done = builder("run", "chat", "--detach", "--", "--slow", "600")
    assert done.stdout == f"{kitchen.name} starts from {kitchen.repository}:2; `builder status` shows its progress\n"
    end = time.monotonic() + 120
    while (service := status(builder, "chat"))["phase"] is None and time.monotonic() < end:
        time.sleep(0.1)
    assert (service["state"], service["phase"], service["requests_running"]) == ("starting", "loading weights", None)


@pytest.mark.long
def test_what_does_not_end_in_time_is_killed(kitchen: Kitchen, builder: Builder, endpoint: Endpoint) -> None:
    builder("run", "chat", "--", "--stubborn")
    done = builder("stop", kitchen.name, "--time", "1")
    assert f"{kitchen.name} was killed, because it did not stop within 1 seconds" in done.stderr
    assert containers.find_container(endpoint, kitchen.name) is None


@pytest.mark.long
def test_logs_are_followed_across_a_restart_until_it_is_stopped(kitchen: Kitchen, builder: Builder) -> None:
    builder("run", "chat")
    argv = command(kitchen.project, "logs", "chat", "--follow", "--tail", "1")
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout
        assert child.stdout.readline() == "INFO:     Application startup complete.\n"
        get(kitchen, "/die")
        rest = iter(child.stdout.readline, "")
        assert next(rest).startswith("arguments ")
        assert next(line for line in rest if "complete" in line)
        builder("stop", "chat")
        assert child.wait(timeout=120) == 0


@pytest.mark.long
def test_status_is_watched(kitchen: Kitchen, builder: Builder) -> None:
    # What is not being served is started by `restart`, too.
    assert " serves from " in builder("restart", "chat").stdout
    argv = command(kitchen.project, "status", "chat", "--watch", "--json")
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout
        first, second = (json.loads(child.stdout.readline())["services"][0] for _ in range(2))
        child.send_signal(signal.SIGINT)
        child.communicate(timeout=120)
    assert child.returncode == 130
    assert second["generated_tokens"] > first["generated_tokens"]
    assert second["up_seconds"] > first["up_seconds"]


@pytest.mark.long
def test_an_exported_compose_file_serves_as_run_does(
    kitchen: Kitchen, builder: Builder, endpoint: Endpoint, tmp_path: Path
) -> None:
    def served() -> list[Any]:
        get(kitchen, "/health")
        (service,) = containers.labelled(endpoint, f"{LABEL}={kitchen.name}")
        details = inspect(endpoint, service.id)
        environ = {entry for entry in details["Config"]["Env"] if entry.partition("=")[0] != "HF_TOKEN"}
        mounts = {(mount["Source"], mount["Destination"]) for mount in details["Mounts"]}
        return [details["Image"], details["Path"], details["Args"], environ, mounts]

    file = tmp_path / "compose.yaml"
    builder("run", "chat")
    by_run = served()
    builder("export", "chat", "--format", "compose", "--output", str(file))
    builder("stop", "chat")
    serving.compose(endpoint, file, "up", "--detach", "--wait", **kitchen.environ)
    assert served() == by_run
    serving.compose(endpoint, file, "down", **kitchen.environ)
    assert containers.labelled(endpoint, f"{LABEL}={kitchen.name}") == ()


@pytest.mark.long
def test_what_another_project_serves_is_meant_by_its_own_name_alone(
    kitchen: Kitchen, builder: Builder, built: tuple[Project, str], tmp_path: Path, endpoint: Endpoint
) -> None:
    other = serving.kitchen(built[0], tmp_path / "other", built[1])
    environ = {**os.environ, **other.environ}
    program.run(command(other.project, "run", "chat", "--detach"), env=environ, check=True)
    try:
        builder("run", "chat", "--detach")
        assert builder("stop", "chat").stdout.startswith(f"{kitchen.name} stopped")
        for what in (["chat"], [MODEL], []):
            builder("stop", *what, code=2)
        assert builder("stop", other.name).stdout.startswith(f"{other.name} stopped")
    finally:
        containers.remove_labelled(endpoint, f"{LABEL}={other.name}")


def test_nothing_served_by_that_name(kitchen: Kitchen, builder: Builder) -> None:
    for command_line in (["stop", "nonesuch"], ["logs", "nonesuch"], ["status", "nonesuch"]):
        assert "`nonesuch` is not being served" in builder(*command_line, code=2).stderr


def test_what_requests_compiled_is_complete_after_a_stop_and_not_after_a_kill(
    kitchen: Kitchen, builder: Builder, endpoint: Endpoint
) -> None:
    for name, options, stop in (("kernel", (), ()), ("half", ("--", "--stubborn"), ("--time", "1"))):
        builder("run", "chat", *options)
        folder = Path(inspect(endpoint, kitchen.name)["Config"]["Labels"][COMPILED])
        projects.write(folder / "triton" / name, "compiled")
        builder("stop", kitchen.name, *stop)
        assert (f"triton/{name}" in compile_caches.complete_files(folder)) == (not stop)


def test_a_number_with_another_template_starts_with_what_the_one_before_compiled(
    kitchen: Kitchen, builder: Builder, endpoint: Endpoint
) -> None:
    root = kitchen.project.root
    recipe = root / "recipes/chat.yaml"
    projects.write(recipe, recipe.read_text(encoding="utf-8").replace("mods/standin]", "mods/standin, mods/template]"))
    names, compiled = [], []
    for text in ("one", "two"):
        projects.add_mod(root, "template", 'cp chat.jinja "$WORKSPACE_DIR/chat.jinja"\n', {"chat.jinja": text})
        names.append(builder("build", "chat").stdout.split()[1])  # others may have taken numbers of this repository
        if text == "one":
            builder("run", "chat")
            folder = Path(inspect(endpoint, kitchen.name)["Config"]["Labels"][COMPILED])
            projects.write(folder / "triton/kernel", "compiled")
            builder("restart", "chat")
        else:
            assert f"warm, with the compile caches of {names[0]}" in " ".join(builder("show", names[1]).stdout.split())
            # A start that ended in the middle leaves its mark, and what it left is not used.
            projects.write(folder / "begun", "")
            projects.write(folder / "triton/half", "comp")
            assert "removed 1 incomplete or damaged file from the compile caches" in " ".join(
                builder("restart", "chat").stderr.split()
            )
        compiled.append(inspect(endpoint, kitchen.name)["Config"]["Labels"][COMPILED])
    assert compiled[0] == compiled[1] == str(folder)
    assert sorted(path.name for path in (folder / "triton").iterdir()) == ["kernel"]
    assert not json.loads(builder("show", f"{kitchen.repository}:2", "--json").stdout)["warm"]


def test_a_recipe_of_version_2_serves_with_its_steps_and_variables(
    kitchen: Kitchen, builder: Builder, endpoint: Endpoint
) -> None:
    text = f"""\
recipe_version: "2"
name: {kitchen.name}
model: {MODEL}
runtime: vllm
container: {kitchen.repository}
max_nodes: 1
defaults: {{port: {kitchen.port}, served_model_name: house}}
env: {{HOUSE: "$HOME and more"}}
pre_exec: ["echo before {{port}} $HOUSE"]
command: |
  vllm serve {{model}} \\
    --port {{port}} --x '{{"a": 1}}'
"""
    (kitchen.project.recipes / "chat.yaml").write_text(text, encoding="utf-8")
    builder("run", "chat")
    get(kitchen, "/health")
    config = inspect(endpoint, kitchen.name)["Config"]
    assert "HOUSE=$HOME and more" in config["Env"]
    served = ["vllm", "serve", MODEL, "--port", str(kitchen.port), "--x", '{"a": 1}', "--served-model-name", "house"]
    assert [*config["Entrypoint"], *config["Cmd"]][-len(served) :] == served
    assert f"before {kitchen.port} $HOME and more\n" in builder("logs", "chat").stdout
    builder("stop", "chat")
