"""The container that serves a recipe, and what users add to it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from builder.base import records
from builder.base.errors import FileProblemsError, UsageError
from builder.definitions import command, container
from builder.definitions.configuration import NOTHING_REQUESTED, RequestedOptions
from builder.definitions.container import GIB, ContainerOptions, ContainerSettings, GpuMemory, Mount, PublishedPort
from builder.definitions.image import ServeSettings
from builder.definitions.recipe import Recipe
from tests.definitions.recipes import recipe_texts
from tests.processes import until

HOME = {"HOME": "/home/ann"}
IMAGE = ("vllm-node-tf5", 7)


def made(
    folder: Path, text: str, head: str = "", serving: ServeSettings | None = None, environ: dict[str, str] | None = None
) -> ContainerSettings:
    recipe = recipe_texts.make(folder, text, head)
    return container.settings(
        recipe, command.render_command(recipe, {}), serving or ServeSettings(), IMAGE, environ or HOME
    )


def test_a_gpu_image_gets_what_serving_on_a_spark_takes(tmp_path: Path) -> None:
    settings = made(tmp_path, "vllm serve Org/M --served-model-name m --port 8001", "model: Org/M\nenv: {A: 1}\n")
    assert settings.image == "vllm-node-tf5:7"
    assert settings.argv == ("vllm", "serve", "Org/M", "--served-model-name", "m", "--port", "8001")
    assert (settings.gpus, settings.network, settings.ipc, settings.shm_size, settings.ports) == (
        *(True, "host", "host", "", ()),
    )
    defaults = {"NCCL_IGNORE_CPU_AFFINITY": "1", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    defaults["TRITON_CACHE_DIR"] = "/root/.triton/cache"
    assert (settings.env, settings.secrets) == ({**defaults, "A": "1"}, ("HF_TOKEN",))
    assert settings.ulimits == {"memlock": -1, "nofile": 1048576}
    assert settings.labels == {
        "builder.serve": "x",
        "builder.serve.image": "vllm-node-tf5:7",
        "builder.serve.recipe": "r.yaml",
        "builder.serve.model": "Org/M",
        "builder.serve.names": '["m"]',
        "builder.serve.port": "8001",
        "builder.serve.gpu_memory": "0.92",
        "builder.serve.compiled": "/home/ann/.cache/builder/compile/vllm-node-tf5/7",
    }


def test_an_image_may_want_less(tmp_path: Path) -> None:
    settings = made(
        tmp_path, "vllm serve x", "", ServeSettings(gpus="none", network="bridge", ipc="private", shm_size="1g")
    )
    assert (settings.gpus, settings.network, settings.ports) == (False, "bridge", (PublishedPort(8000, 8000),))
    assert (settings.ipc, settings.shm_size) == ("private", "1g")
    assert (settings.env, settings.ulimits) == ({"TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0"}, {})
    assert "builder.serve.gpu_memory" not in settings.labels


def test_what_is_compiled_is_kept_apart_by_number(tmp_path: Path) -> None:
    settings = made(tmp_path, "vllm serve x")
    folder = "/home/ann/.cache/builder/compile/vllm-node-tf5/7"
    assert settings.mounts == (
        Mount("/home/ann/.cache/huggingface", "/root/.cache/huggingface"),
        Mount(f"{folder}/vllm", "/root/.cache/vllm"),
        Mount(f"{folder}/flashinfer", "/root/.cache/flashinfer"),
        Mount(f"{folder}/b12x", "/root/.cache/b12x"),
        Mount(f"{folder}/triton", "/root/.triton"),
        Mount(f"{folder}/tilelang", "/root/.tilelang"),
    )
    assert container.compile_cache(HOME, *IMAGE) == folder


@pytest.mark.parametrize(
    ("environ", "mounts"),
    [
        ({"XDG_CACHE_HOME": "/c"}, [Mount("/c/huggingface", "/root/.cache/huggingface")]),
        ({"HF_HOME": "/hf"}, [Mount("/hf", "/root/.cache/huggingface")]),
        (
            {"HF_HUB_CACHE": "/hub"},
            [
                Mount("/home/ann/.cache/huggingface", "/root/.cache/huggingface"),
                Mount("/hub", "/root/.cache/huggingface/hub"),
            ],
        ),
    ],
)
def test_models_are_where_the_user_keeps_them(tmp_path: Path, environ: dict[str, str], mounts: list[Mount]) -> None:
    settings = made(tmp_path, "vllm serve x", environ={**HOME, **environ})
    assert [mount for mount in settings.mounts if "huggingface" in mount.target] == mounts


def with_options(folder: Path, text: str, head: str = "", **options: Any) -> ContainerSettings:
    recipe = recipe_texts.make(folder, text, head)
    rendered = command.render_command(recipe, {})
    return container.settings(recipe, rendered, ServeSettings(), IMAGE, HOME, ContainerOptions(**options))


def test_triton_compiles_into_the_same_kept_folder_at_each_start(tmp_path: Path) -> None:
    settings = made(tmp_path, "vllm serve x")
    folder = f"{settings.labels[container.COMPILED]}/triton"
    kept = {mount.target for mount in settings.mounts if mount.source == folder}
    assert kept == {str(Path(settings.env["TRITON_CACHE_DIR"]).parent)}


def test_a_recipe_s_variable_counts_before_a_default(tmp_path: Path) -> None:
    settings = made(tmp_path, "vllm serve x", "env: {PYTORCH_CUDA_ALLOC_CONF: 'max_split_size_mb:64'}\n")
    assert settings.env["PYTORCH_CUDA_ALLOC_CONF"] == "max_split_size_mb:64"


def test_variables_that_were_added_and_secrets_by_name_alone(tmp_path: Path) -> None:
    settings = with_options(
        tmp_path, "vllm serve x", "env: {A: 1}\n", env={"B": "2", "KEY": None, "NCCL_IGNORE_CPU_AFFINITY": "0"}
    )
    assert (settings.env["A"], settings.env["B"], settings.env["NCCL_IGNORE_CPU_AFFINITY"]) == ("1", "2", "0")
    assert settings.secrets == ("KEY", "HF_TOKEN")
    assert "KEY" not in settings.env
    assert with_options(tmp_path, "vllm serve x", env={"HF_TOKEN": None}).secrets == ("HF_TOKEN",)
    assert with_options(tmp_path, "vllm serve x", env={"HF_TOKEN": "-"}).secrets == ()


def test_published_ports_take_the_place_of_the_host_s_network(tmp_path: Path) -> None:
    ports = (PublishedPort(9000, 8000, "10.0.0.1"), PublishedPort(8265, 8265))
    settings = with_options(tmp_path, "vllm serve x --host 0.0.0.0", publish=ports)
    assert (settings.network, settings.ports, settings.ipc) == ("bridge", ports, "host")
    labels = {name: settings.labels.get(f"builder.serve.{name}") for name in ("port", "inside", "address")}
    assert labels == {"port": "9000", "inside": "8000", "address": "10.0.0.1"}
    assert settings.health is not None
    assert "8000" in settings.health.argv[-1]


def test_the_server_s_own_port_is_published_where_no_other_leads_to_it(tmp_path: Path) -> None:
    settings = with_options(tmp_path, "vllm serve x --port 8001", publish=(PublishedPort(8265, 8265),))
    assert settings.ports == (PublishedPort(8265, 8265), PublishedPort(8001, 8001))
    assert settings.labels["builder.serve.port"] == "8001"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_a_server_that_only_its_container_reaches_is_not_published(tmp_path: Path, host: str) -> None:
    with pytest.raises(UsageError, match="only its own container can reach it") as caught:
        with_options(tmp_path, f"vllm serve x --host {host}", publish=(PublishedPort(8000, 8000),))
    assert "--host 0.0.0.0" in caught.value.hint


def test_volumes_and_memory(tmp_path: Path) -> None:
    volume = Mount("/srv/hf", "/root/.cache/huggingface", read_only=True, ours=False)
    settings = with_options(tmp_path, "vllm serve x", volumes=(volume,), memory="100g")
    assert [mount for mount in settings.mounts if "huggingface" in mount.target] == [volume]
    assert settings.memory == "100g"


@pytest.mark.parametrize(
    ("words", "label"),
    [
        ("--gpu-memory-utilization 0.7", "0.7"),
        ("--gpu-memory-utilization-gb 96", "96g"),
        ("--gpu-memory-utilization $SHARE", None),
    ],
)
def test_the_memory_that_the_server_asks_for_is_in_a_label(tmp_path: Path, words: str, label: str | None) -> None:
    assert made(tmp_path, f"vllm serve x {words}").labels.get(container.GPU_MEMORY) == label


def test_a_secret_that_the_recipe_sets_is_not_taken_from_the_environment(tmp_path: Path) -> None:
    assert made(tmp_path, "vllm serve x", "env: {HF_TOKEN: none}\n").secrets == ()


@pytest.mark.parametrize(
    ("text", "name"),
    [("Qwen3.5-122B (fast)", "qwen3-5-122b-fast"), ("--", "model"), ("größe", "gr-e"), ("a_b", "a-b")],
)
def test_the_name_is_one_that_containers_may_have(text: str, name: str) -> None:
    assert container.service_name(text) == name


@pytest.mark.parametrize("server", ["qwen3-5-122b", "vllm-qwen3-5-122b"])
def test_the_name_of_a_container_begins_with_vllm(server: str) -> None:
    assert container.container_name(server) == "vllm-qwen3-5-122b"


class _Server(BaseHTTPRequestHandler):
    answer = 200

    def do_GET(self) -> None:
        self.send_response(self.answer if self.path == "/health" else 404)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.slow
def test_the_health_check_tells_a_server_that_answers(tmp_path: Path) -> None:
    with HTTPServer(("127.0.0.1", 0), _Server) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        health = made(tmp_path, f"vllm serve x --port {server.server_port}").health
        assert health is not None

        def code() -> int:
            argv = [sys.executable, *health.argv[1:]]
            return subprocess.run(argv, capture_output=True, env={"http_proxy": "http://127.0.0.1:9"}).returncode

        assert code() == 0
        _Server.answer = 503
        assert code() == 1
        server.shutdown()
    assert code() == 1


@pytest.mark.parametrize(
    ("options", "host"),
    [
        ("", "127.0.0.1"),
        ("--host 0.0.0.0", "127.0.0.1"),
        ("--host 192.168.1.5", "192.168.1.5"),
        ("--host ::1", "::1"),
        ("--host '$(\"; import os'", '$("; import os'),
    ],
)
def test_the_health_check_asks_where_the_server_listens(tmp_path: Path, options: str, host: str) -> None:
    health = made(tmp_path, f"vllm serve x {options}").health
    assert health is not None
    assert f"c.HTTPConnection({host!r}, 8000, timeout=8)" in health.argv[-1]
    compile(health.argv[-1], "probe", "exec")


def test_without_a_known_port_there_is_no_health_check(tmp_path: Path) -> None:
    settings = made(tmp_path, "vllm serve x --port $PORT")
    assert settings.health is None
    assert "builder.serve.port" not in settings.labels
    assert json.loads(settings.labels["builder.serve.names"]) == ["x"]


@pytest.mark.parametrize(
    ("text", "port", "written"),
    [
        ("8000", PublishedPort(8000, 8000), "8000:8000"),
        ("8001:8000", PublishedPort(8001, 8000), "8001:8000"),
        ("127.0.0.1:8001:8000", PublishedPort(8001, 8000, "127.0.0.1"), "127.0.0.1:8001:8000"),
        ("[::1]:8001:8000", PublishedPort(8001, 8000, "::1"), "[::1]:8001:8000"),
        ("53:53/udp", PublishedPort(53, 53, protocol="udp"), "53:53/udp"),
        ("8001:8000/tcp", PublishedPort(8001, 8000), "8001:8000"),
    ],
)
def test_a_port_as_docker_writes_it(text: str, port: PublishedPort, written: str) -> None:
    assert container.parse_port(text) == port
    assert str(port) == written


@pytest.mark.parametrize("text", ["", "x", "0", "65536:1", "1:70000", "8000-8005", "127.0.0.1::8000", "1:2:3:4", "a:1"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected PORT|is not a port"):
        container.parse_port(text)


def test_the_port_that_leads_to_the_server() -> None:
    ports = (PublishedPort(1, 8000, protocol="udp"), PublishedPort(9000, 8000))
    assert container.of_server(ports, 8000) == ports[1]
    assert container.of_server(ports, 8001) is None
    assert container.with_server(ports, 8000) == ports
    assert container.with_server(ports, 8001) == (*ports, PublishedPort(8001, 8001))
    assert container.with_server((), None) == ()


ENVIRON = {"HOME": "/home/ann", "MODELS": "/srv/models", "EMPTY": ""}
FOLDER = Path("/project/here")


@pytest.mark.parametrize(
    ("text", "source", "target", "read_only"),
    [
        ("/srv/models:/models", "/srv/models", "/models", False),
        ("/srv/models/:/models/:ro", "/srv/models", "/models", True),
        ("/srv/a b:/models:rw", "/srv/a b", "/models", False),
        ("~:/home", "/home/ann", "/home", False),
        ("~/m:/m", "/home/ann/m", "/m", False),
        ("$MODELS/qwen:/m", "/srv/models/qwen", "/m", False),
        ("${HOME}/m:/m", "/home/ann/m", "/m", False),
        ("./x.jinja:/x.jinja:ro", "/project/here/x.jinja", "/x.jinja", True),
        ("../shared:/m", "/project/shared", "/m", False),
    ],
)
def test_a_volume_as_it_is_written(text: str, source: str, target: str, read_only: bool) -> None:
    mount = container.parse_volume(text, ENVIRON, FOLDER)
    assert mount == Mount(source, target, read_only=read_only, ours=False)
    assert container.parse_volume(str(mount), {}, Path("/elsewhere")) == mount


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("/models", "SRC:DST"),
        (":/models", "SRC:DST"),
        ("/models:", "SRC:DST"),
        ("/a:/b:ro:x", "SRC:DST"),
        ("/a:/b:z", "`z` is not a valid volume mode"),
        ("/a:/b:", "not a valid volume mode"),
        ("models:/models", "named volumes"),
        ("/a:models", "not a path in the container"),
        ("/a:/", "not a path in the container"),
        ("/a:/b/../c", "not a path in the container"),
        ("$MISSING/m:/m", "MISSING is not set"),
        ("$EMPTY/m:/m", "EMPTY is not set"),
        ("/srv/$(id):/m", "cannot be mounted"),
    ],
)
def test_anything_else_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        container.parse_volume(text, ENVIRON, FOLDER)
    assert reason in str(caught.value)


@pytest.mark.parametrize("text", ["~/m:/m", "$ANY/m:/m:ro", "${ANY}:/m", "./x:/m", "/a:/b"])
def test_a_volume_that_may_be_right_has_no_fault(text: str) -> None:
    assert container.fault(text) == ""


@pytest.mark.parametrize(
    ("text", "reason"), [("models:/m", "named volumes"), ("/a:/b/../c", "not a path"), ("/a:/", "no")]
)
def test_the_fault_of_one_that_cannot_be(text: str, reason: str) -> None:
    assert reason in container.fault(text)


def test_a_volume_takes_the_place_of_ours_and_of_those_below() -> None:
    hub = (Mount("/hf", "/root/hf"), Mount("/hub", "/root/hf/hub"), Mount("/c", "/root/cache"))
    typed = Mount("/data", "/root/hf", ours=False)
    assert container.merged(hub, (typed,)) == (hub[2], typed)


def test_a_volume_around_ours_leaves_them() -> None:
    ours = (Mount("/c", "/root/cache/vllm"),)
    around = Mount("/data", "/root/cache", ours=False)
    assert container.merged(ours, (around,)) == (*ours, around)


def test_the_last_volume_at_a_path_counts() -> None:
    first, last = Mount("/a", "/m", ours=False), Mount("/b", "/m", ours=False)
    assert container.merged((), (first, last)) == (last,)


OUTSIDE = {"HOME": "/home/ann", "MY_OWN": "from outside"}
FOLDERS = (Path("/project"), Path("/current"))


def settle(
    folder: Path,
    typed: RequestedOptions = NOTHING_REQUESTED,
    configured: RequestedOptions = NOTHING_REQUESTED,
    head: str = "",
) -> tuple[ContainerOptions, Recipe]:
    recipe = recipe_texts.make(folder, "vllm serve x", head)
    return container.settle_container_options(configured, recipe, typed, OUTSIDE, FOLDERS)


def test_the_command_line_counts_before_the_recipe_and_that_before_builder_yaml(tmp_path: Path) -> None:
    configured = RequestedOptions(
        volumes=("./a:/a", "./shared:/shared", "/c:/c"), env=("A=configured", "B=configured", "C=configured")
    )
    head = "env: {B: recipe, C: recipe}\nvolumes: [./r:/a, ./r:/shared]\n"
    typed = RequestedOptions(volumes=("./t:/a",), env=("C=typed", "D=typed"))
    options, recipe = settle(tmp_path, typed, configured, head)
    assert {mount.target: mount.source for mount in options.volumes} == {
        "/a": "/current/t",
        "/shared": "/project/r",
        "/c": "/c",
    }
    assert options.env == {"A": "configured", "C": "typed", "D": "typed"}
    assert recipe.env == {"B": "recipe"}


def test_the_other_options_that_are_typed_replace_those_of_builder_yaml(tmp_path: Path) -> None:
    configured = RequestedOptions(publish=("1:8000",), earlyoom=True, memory="100g")
    options, _ = settle(tmp_path, configured=configured)
    assert (options.publish, options.earlyoom, options.memory) == ((PublishedPort(1, 8000),), True, "100g")
    typed = RequestedOptions(publish=("2:8000", "3:3"), earlyoom=False, memory="90g")
    options, _ = settle(tmp_path, typed, configured)
    assert (options.publish, options.earlyoom, options.memory) == (
        (PublishedPort(2, 8000), PublishedPort(3, 3)),
        False,
        "90g",
    )


def test_nothing_said_is_nothing_set(tmp_path: Path) -> None:
    assert settle(tmp_path)[0] == container.NONE


def test_the_value_of_a_secret_is_apart_and_in_no_text(tmp_path: Path) -> None:
    typed = RequestedOptions(env=("API_KEY=hidden1", "PLAIN=hf_abcdefghijk", "MY_OWN", "SHOWN=yes"))
    options, _ = settle(tmp_path, typed, RequestedOptions(env=("OTHER_TOKEN=hidden2", "API_KEY=hidden3")))
    assert options.env == {"OTHER_TOKEN": None, "API_KEY": None, "PLAIN": None, "MY_OWN": None, "SHOWN": "yes"}
    assert options.secrets == {"OTHER_TOKEN": "hidden2", "API_KEY": "hidden1", "PLAIN": "hf_abcdefghijk"}
    kept = container.kept(typed, OUTSIDE, Path("/current"))
    assert kept == RequestedOptions(env=("API_KEY", "PLAIN", "MY_OWN", "SHOWN=yes"))
    texts = f"{options!r} {typed!r} {records.plain(kept)}"
    assert "hidden" not in texts
    assert "hf_abc" not in texts


def test_a_secret_of_the_recipe_s_name_is_the_typed_one(tmp_path: Path) -> None:
    options, recipe = settle(tmp_path, RequestedOptions(env=("HF_TOKEN=x",)), head="env: {HF_TOKEN: none}\n")
    assert (dict(recipe.env), options.env) == ({}, {"HF_TOKEN": None})


def test_a_later_value_in_clear_takes_the_place_of_the_environment_s(tmp_path: Path) -> None:
    options, _ = settle(tmp_path, RequestedOptions(env=("A", "A=1")), RequestedOptions(env=("A",)))
    assert (options.env, options.secrets) == ({"A": "1"}, {})


def test_values_that_the_environment_lacks_are_named(tmp_path: Path) -> None:
    options, _ = settle(tmp_path, RequestedOptions(env=("MISSING_KEY", "MY_OWN", "API_KEY=hidden")))
    with pytest.raises(UsageError, match="MISSING_KEY: not set in your environment") as caught:
        container.require_values(options, OUTSIDE)
    assert "--env MISSING_KEY=…" in caught.value.hint
    container.require_values(options, {**OUTSIDE, "MISSING_KEY": ""})


def test_what_was_kept_starts_it_again_from_any_folder(tmp_path: Path) -> None:
    typed = RequestedOptions(
        ("./t:/a:ro", "~/b:/b"), ("A=1", "KEY=hidden"), ("9000:8000",), earlyoom=True, memory="90g"
    )
    kept = container.kept(typed, OUTSIDE, Path("/current"))
    same = container.again(kept, NOTHING_REQUESTED)
    assert same.volumes == ("/current/t:/a:ro", "/home/ann/b:/b")
    assert (same.env, same.publish, same.earlyoom, same.memory) == (("A=1", "KEY"), ("9000:8000",), True, "90g")
    changed = container.again(kept, RequestedOptions(("/x:/a",), ("KEY=new",), ("1:8000",), False, "80g"))
    options, _ = settle(tmp_path, changed)
    assert [str(mount) for mount in options.volumes] == ["/x:/a", "/home/ann/b:/b"]
    assert (options.env, options.secrets) == ({"A": "1", "KEY": None}, {"KEY": "new"})
    assert (options.publish, options.earlyoom, options.memory) == ((PublishedPort(1, 8000),), False, "80g")


def test_a_request_without_options_keeps_nothing() -> None:
    kept = container.kept(NOTHING_REQUESTED, OUTSIDE, Path("/"))
    assert container.again(kept, NOTHING_REQUESTED) == NOTHING_REQUESTED


@pytest.mark.parametrize("text", ["=hidden", "A B=hidden", "1=hidden", "A-B=hidden", "", "ÄPFEL=hidden", "A=hidden\0"])
def test_an_error_in_a_variable_shows_no_value(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match="NAME=VALUE") as caught:
        settle(tmp_path, RequestedOptions(env=(text,)))
    assert "hidden" not in caught.value.message


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (RequestedOptions(volumes=("x:/y",)), "--volume x:/y: `x` is not a path"),
        (RequestedOptions(publish=("a",)), "--publish a: expected PORT:INSIDE"),
        (RequestedOptions(memory="100"), "--memory 100: expected a size such as 100g"),
        (RequestedOptions(memory="-1g"), "--memory -1g"),
    ],
)
def test_errors_name_the_option(tmp_path: Path, typed: RequestedOptions, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        settle(tmp_path, typed)
    assert caught.value.message.startswith(message)
    with pytest.raises(UsageError, match=r"builder\.yaml: (volumes|publish|memory)"):
        settle(tmp_path, configured=typed)


def test_errors_in_a_recipe_s_volumes_have_their_place(tmp_path: Path) -> None:
    with pytest.raises(FileProblemsError) as caught:
        settle(tmp_path, head="volumes:\n  - /a:/b\n  - models:/m\n  - $NOT_SET/x:/x\n")
    assert [(problem.location.line, problem.message.partition(":/")[0]) for problem in caught.value.problems] == [
        (caught.value.problems[0].location.line, "`models"),
        (caught.value.problems[0].location.line + 1, "`$NOT_SET/x"),
    ]


SERVE = ("vllm", "serve", "x")


@pytest.mark.parametrize(
    ("words", "memory"),
    [
        (("--gpu-memory-utilization", "0.7"), GpuMemory(0.7)),
        (("--gpu_memory_utilization=0.7",), GpuMemory(0.7)),
        (("--gpu-memory-utilization", "0.7", "--gpu-memory-utilization", "0.5"), GpuMemory(0.5)),
        (("--gpu-memory-utilization-gb", "96"), GpuMemory(gibibytes=96)),
        (("--gpu-memory-utilization", "0.7", "--gpu-memory-utilization-gb", "96"), GpuMemory(gibibytes=96)),
        (("--gpu-memory-utilization", "0.7", "--kv-cache-memory-bytes", "4G"), GpuMemory(0.7)),
        ((), GpuMemory(0.92)),
        (("--gpu-memory-utilization", "$SHARE"), None),
        (("--gpu-memory-utilization", "nan"), None),
        (("--gpu-memory-utilization-gb", "-1"), None),
    ],
)
def test_the_memory_that_a_command_asks_for(words: tuple[str, ...], memory: GpuMemory | None) -> None:
    assert container.read_gpu_memory((*SERVE, *words)) == memory


def test_what_serves_no_model_asks_for_nothing() -> None:
    assert container.read_gpu_memory(("sleep", "1")) is None


@pytest.mark.parametrize("memory", [GpuMemory(0.7), GpuMemory(0.92), GpuMemory(gibibytes=96), GpuMemory(gibibytes=0.5)])
def test_a_label_tells_the_same(memory: GpuMemory) -> None:
    assert container.of_label(str(memory)) == memory


def test_a_server_without_the_label_has_the_default() -> None:
    assert container.of_label("") == GpuMemory(0.92)


def test_bytes() -> None:
    assert GpuMemory(0.5).of(120 * GIB) == 60 * GIB
    assert GpuMemory(gibibytes=96).of(120 * GIB) == 96 * GIB


SERVER = ("sh", "-c", 'echo "$$ $*"; exit 7', "server", "a b", "$HOME", "'")


def path_with(folder: Path, *programs: str) -> str:
    """A PATH with a shell and a stand-in for each of ``programs``, and nothing else."""
    for program in programs:
        (folder / program).write_text(f'#!/bin/sh\necho "$@" > {folder}/arguments\n', encoding="utf-8")
        (folder / program).chmod(0o755)
    (folder / "sh").symlink_to("/bin/sh")
    return str(folder)


def test_the_server_is_the_main_process_and_its_end_that_of_the_container(tmp_path: Path) -> None:
    argv = container.earlyoom_beside(SERVER)
    with subprocess.Popen(
        argv, stdout=subprocess.PIPE, text=True, env={**os.environ, "PATH": path_with(tmp_path, "earlyoom")}
    ) as process:
        output, _ = process.communicate(timeout=120)
    assert process.returncode == 7
    assert output == f"{process.pid} a b $HOME '\n"
    arguments = tmp_path / "arguments"
    until(lambda: arguments.exists() and arguments.stat().st_size, "earlyoom runs")
    assert arguments.read_text(encoding="utf-8") == "-M 524288,102400 -s 100 -r 60\n"


def test_without_earlyoom_the_server_is_not_started(tmp_path: Path) -> None:
    environ = {"PATH": path_with(tmp_path)}
    done = subprocess.run(container.earlyoom_beside(SERVER), capture_output=True, text=True, env=environ, timeout=120)
    assert (done.returncode, done.stdout) == (127, "")
    assert done.stderr == "earlyoom is not in this image\n"
