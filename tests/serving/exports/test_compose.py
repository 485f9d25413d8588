"""Compose files, read by Docker's compose itself."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from builder.base.errors import UsageError
from builder.definitions import command
from builder.definitions.container import ContainerSettings, PublishedPort
from builder.definitions.recipe import Recipe
from builder.serving import exports
from tests import projects
from tests.definitions.recipes import recipe_texts
from tests.serving.exports import settings

if TYPE_CHECKING:
    from pathlib import Path


COMPOSE = projects.REPOSITORY_ROOT / "scripts/compose"


def configured(folder: Path, wanted: ContainerSettings, home: str = "/home/ann", **environ: str) -> dict[str, Any]:
    """The service as compose reads it from the file, for a user whose home is /home/bob."""
    (folder / "compose.yaml").write_text(exports.render_compose(wanted, home), encoding="utf-8")
    argv = [str(COMPOSE), "-f", str(folder / "compose.yaml"), "config", "--format", "json"]
    kept = {key: value for key, value in os.environ.items() if key != "HF_TOKEN"}
    done = subprocess.run(argv, capture_output=True, text=True, env={**kept, "HOME": "/home/bob", **environ})
    assert done.returncode == 0, done.stderr
    service: dict[str, Any] = json.loads(done.stdout)["services"]["builder-test"]
    return service


def undoubled(value: Any) -> Any:
    """`config` prints what could be read as compose file again, with every $ doubled."""
    return json.loads(json.dumps(value).replace("$$", "$"))


@pytest.mark.slow
def test_compose_reads_every_value_as_it_was_meant(tmp_path: Path) -> None:
    wanted = settings.hostile()
    service = configured(tmp_path, wanted)
    assert service["entrypoint"] == []
    assert undoubled(service["command"]) == list(wanted.argv)
    assert undoubled(service["environment"]) == {**wanted.env, "HF_TOKEN": None}
    assert undoubled(service["labels"]) == wanted.labels
    assert undoubled(service["healthcheck"]["test"]) == ["CMD", "true", *settings.HOSTILE]
    assert undoubled({v["source"]: v["target"] for v in service["volumes"]}) == {
        "/home/bob/.cache/a b": "/root/.cache/x",
        "/srv/$models": "/root/models",
    }
    modes = [
        (volume.get("read_only", False), volume["bind"].get("create_host_path", False)) for volume in service["volumes"]
    ]
    assert modes == [(False, True), (True, False)]
    assert (service["image"], service["pull_policy"]) == ("small:1", "never")
    assert (service["restart"], service["stop_grace_period"], service["init"]) == ("unless-stopped", "1m0s", True)
    assert (service["network_mode"], service["ipc"], service["shm_size"]) == ("host", "private", "67108864")
    assert [device["source"] for device in service["devices"]] == ["/dev/null"]
    assert (service["cap_add"], service["pids_limit"]) == (["IPC_LOCK"], 4096)
    assert (service["mem_limit"], service["memswap_limit"]) == (str(1 << 30), str(2 << 30))
    assert "deploy" not in service


@pytest.mark.slow
def test_a_secret_comes_from_the_environment(tmp_path: Path) -> None:
    assert configured(tmp_path, settings.hostile(), HF_TOKEN="abc$d")["environment"]["HF_TOKEN"] == "abc$$d"
    assert "abc" not in (tmp_path / "compose.yaml").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_gpu_is_reserved(tmp_path: Path) -> None:
    service = configured(tmp_path, replace(settings.hostile(), gpus=True))
    (device,) = service["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], device["count"], device["capabilities"]) == ("nvidia", -1, ["gpu"])


@pytest.mark.slow
def test_ports_are_published_where_the_network_is_not_the_host_s(tmp_path: Path) -> None:
    service = configured(
        tmp_path, replace(settings.hostile(), network="bridge", ports=(PublishedPort(8001, 8001),), health=None)
    )
    assert [(port["target"], port["published"]) for port in service["ports"]] == [(8001, "8001")]
    assert "healthcheck" not in service


@pytest.mark.slow
def test_ports_of_one_address_and_other_protocols(tmp_path: Path) -> None:
    ports = (PublishedPort(9000, 8000, "127.0.0.1"), PublishedPort(53, 53, protocol="udp"), PublishedPort(1, 2, "::1"))
    service = configured(tmp_path, replace(settings.hostile(), network="bridge", ports=ports))
    published = [(p.get("host_ip", ""), p["published"], p["target"], p["protocol"]) for p in service["ports"]]
    assert published == [("127.0.0.1", "9000", 8000, "tcp"), ("", "53", 53, "udp"), ("::1", "1", 2, "tcp")]


HEAD = (
    "# by hand\nrecipe_version: 1\ndescription: 'größe: x'\nmodel: Org/M\nsolo_only: true\nbuild_args: [--tf5]\n"
    "mods: [mods/a, mods/b]\nenv: {A: 1, B: '0123'}\n"
    'defaults:\n  port: 8000\n  share: 0.80\n  spec: \'{"n": 3}\'\n  text: "it\'s"\n  empty:\n'
)
COMMAND = "vllm serve Org/M \\\n  --port {port} --x '{spec}' \\\n\n  # --y {{}}\n  --z \"{text}\" \\"


def again(folder: Path, original: Recipe, mods: list[str]) -> Recipe:
    """The exported recipe, read as any other."""
    rendered = command.render_command(original, {})
    reread = recipe_texts.read(folder, exports.render_recipe(original, rendered, "small:7", mods))
    assert reread.recipe is not None
    assert reread.problems == ()
    return reread.recipe


def test_other_launchers_serve_the_same_from_the_numbered_image(tmp_path: Path) -> None:
    original = recipe_texts.make(tmp_path, COMMAND.replace("\n\n", "\n"), HEAD)
    reread = again(tmp_path, original, ["mods/b"])
    assert (reread.container, reread.mods, reread.ignored_build_args) == ("small:7", ("mods/b",), ())
    assert (reread.command, reread.defaults, reread.env) == (original.command, original.defaults, original.env)
    assert (reread.name, reread.description, reread.model, reread.solo_only) == ("x", "größe: x", "Org/M", True)
    assert command.render_command(reread, {}) == command.render_command(original, {})
    assert 'recipe_version: "1"' in reread.text.replace("'", '"')


def test_baked_mods_are_not_applied_again(tmp_path: Path) -> None:
    reread = again(tmp_path, recipe_texts.make(tmp_path, "vllm serve Org/M", HEAD), [])
    assert reread.mods == ()
    assert "mods" not in reread.text


@pytest.mark.parametrize("text", ["vllm serve Org/M", "vllm serve Org/M \\\n  --port {port} \\\n"])
def test_the_revision_is_written_out(tmp_path: Path, text: str) -> None:
    original = recipe_texts.make(tmp_path, text, f"{HEAD}model_revision: a{{b}}'c\n")
    reread = again(tmp_path, original, [])
    assert reread.revision is None
    assert command.render_command(reread, {}).argv == command.render_command(original, {}).argv
    assert command.render_command(reread, {}).argv[-2:] == ("--revision", "a{b}'c")


@pytest.mark.parametrize("text", ["export A=1\nvllm serve Org/M", "vllm serve Org/M # why"])
def test_a_revision_that_cannot_be_written_out_is_refused(tmp_path: Path, text: str) -> None:
    original = recipe_texts.make(tmp_path, text, f"{HEAD}model_revision: abc\n")
    with pytest.raises(UsageError, match="other launchers ignore `model_revision`"):
        again(tmp_path, original, [])


def test_a_script_stays_as_it_is(tmp_path: Path) -> None:
    original = recipe_texts.make(tmp_path, "export A=1  # why\n\nif true; then\n    vllm serve {port}\nfi", HEAD)
    assert again(tmp_path, original, []).command == original.command


# Scripts with docker run, run with a docker that notes its arguments.


def arguments(folder: Path, wanted: ContainerSettings) -> list[str]:
    """The arguments that docker gets from the script, run by a user whose home is ``folder``."""
    tools = folder / "tools"
    tools.mkdir()
    (tools / "docker").write_text('#!/bin/sh\nprintf "%s\\0" "$@"\n', encoding="utf-8")
    (tools / "docker").chmod(0o755)
    (folder / "serve.sh").write_text(exports.render_script(wanted, "/home/ann"), encoding="utf-8")
    environ = {**os.environ, "HOME": str(folder), "PATH": f"{tools}:{os.environ['PATH']}"}
    done = subprocess.run(["sh", "serve.sh"], cwd=folder, capture_output=True, text=True, env=environ)
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\0")[:-1]


def hostile(folder: Path) -> ContainerSettings:
    wanted = settings.hostile()
    (folder / "$models").mkdir()
    return replace(wanted, mounts=(wanted.mounts[0], replace(wanted.mounts[1], source=f"{folder}/$models")))


def test_docker_gets_every_value_as_it_was_meant(tmp_path: Path) -> None:
    wanted = hostile(tmp_path)
    words = arguments(tmp_path, wanted)

    def given(option: str) -> list[str]:
        return [value for name, value in pairwise(words) if name == option]

    entrypoint = words.index("--entrypoint")
    assert words[entrypoint + 1] == wanted.argv[0]
    assert words[entrypoint + 2 :] == [wanted.image, *wanted.argv[1:]]
    assert given("--env") == [*(f"{name}={value}" for name, value in wanted.env.items()), "HF_TOKEN"]
    assert given("--label") == [f"{name}={value}" for name, value in wanted.labels.items()]
    assert given("--volume") == [f"{tmp_path}/.cache/a b:/root/.cache/x", f"{tmp_path}/$models:/root/models:ro"]
    assert words[:5] == ["run", "--detach", "--pull", "never", "--init"]
    assert (given("--network"), given("--ipc"), given("--shm-size")) == (["host"], ["private"], ["64m"])
    assert (given("--device"), given("--cap-add")) == (["/dev/null"], ["IPC_LOCK"])
    assert (given("--memory"), given("--memory-swap"), given("--pids-limit")) == (["1g"], ["2g"], ["4096"])
    assert "--gpus" not in words
    (health,) = given("--health-cmd")
    output = subprocess.run(["sh", "-c", f"printf '%s\\0' {health}"], capture_output=True, text=True).stdout
    assert wanted.health is not None
    assert output.split("\0")[:-1] == list(wanted.health.argv)
    assert {path.name for path in tmp_path.iterdir()} == {"serve.sh", "tools", ".cache", "$models"}


def test_a_volume_that_is_missing_ends_the_script(tmp_path: Path) -> None:
    wanted = hostile(tmp_path)
    (tmp_path / "$models").rmdir()
    (tmp_path / "serve.sh").write_text(exports.render_script(wanted, "/home/ann"), encoding="utf-8")
    environ = {**os.environ, "HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    done = subprocess.run(["sh", "serve.sh"], cwd=tmp_path, capture_output=True, text=True, env=environ)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", f"{tmp_path}/$models is missing\n")
    assert not (tmp_path / "$models").exists()


def test_folders_are_the_person_s_own(tmp_path: Path) -> None:
    arguments(tmp_path, hostile(tmp_path))
    assert (tmp_path / ".cache/a b").is_dir()


def test_a_gpu_and_ports_where_the_image_wants_them(tmp_path: Path) -> None:
    wanted = replace(
        hostile(tmp_path),
        gpus=True,
        network="bridge",
        ports=(PublishedPort(8001, 8001),),
        shm_size="",
        health=None,
        init=False,
    )
    words = arguments(tmp_path, wanted)
    assert words[words.index("--gpus") + 1] == "all"
    assert words[words.index("--publish") + 1] == "8001:8001"
    assert not {"--shm-size", "--health-cmd", "--init"} & set(words)
