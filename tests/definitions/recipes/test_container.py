from __future__ import annotations

import json
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest

from builder.base.errors import UsageError
from builder.definitions import command, container
from builder.definitions.container import ContainerOptions, ContainerSettings, Mount, PublishedPort
from builder.definitions.image import ServeSettings
from tests.definitions.recipes import recipe_texts

if TYPE_CHECKING:
    from pathlib import Path


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
    }


def test_an_image_may_want_less(tmp_path: Path) -> None:
    settings = made(
        tmp_path, "vllm serve x", "", ServeSettings(gpus="none", network="bridge", ipc="private", shm_size="1g")
    )
    assert (settings.gpus, settings.network, settings.ports) == (False, "bridge", (PublishedPort(8000, 8000),))
    assert (settings.ipc, settings.shm_size) == ("private", "1g")
    assert (settings.env, settings.ulimits) == ({}, {})
    assert "builder.serve.gpu_memory" not in settings.labels


def test_what_is_compiled_is_kept_apart_by_number(tmp_path: Path) -> None:
    settings = made(tmp_path, "vllm serve x")
    folder = "/home/ann/.cache/builder/compile/vllm-node-tf5/7"
    assert settings.mounts == (
        Mount("/home/ann/.cache/huggingface", "/root/.cache/huggingface"),
        Mount(f"{folder}/vllm", "/root/.cache/vllm"),
        Mount(f"{folder}/flashinfer", "/root/.cache/flashinfer"),
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
    with pytest.raises(UsageError, match="only its own container reaches it") as caught:
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
