from __future__ import annotations

import json
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import TYPE_CHECKING

import pytest

from builder.definitions.recipes import command, container
from builder.definitions.recipes.container import ContainerSettings, Mount
from builder.definitions.serving import ServeSettings
from tests.definitions.recipes import recipe_texts

if TYPE_CHECKING:
    from pathlib import Path

HOME = {"HOME": "/home/ann"}
IMAGE = ("vllm-node-tf5", 7)


def made(
    folder: Path, text: str, head: str = "", serving: ServeSettings | None = None, environ: dict[str, str] | None = None
) -> ContainerSettings:
    recipe = recipe_texts.make(folder, text, head)
    return container.settings(recipe, command.render(recipe, {}), serving or ServeSettings(), IMAGE, environ or HOME)


def test_a_gpu_image_gets_what_serving_on_a_spark_takes(tmp_path: Path) -> None:
    settings = made(tmp_path, "vllm serve Org/M --served-model-name m --port 8001", "model: Org/M\nenv: {A: 1}\n")
    assert settings.image == "vllm-node-tf5:7"
    assert settings.argv == ("vllm", "serve", "Org/M", "--served-model-name", "m", "--port", "8001")
    assert (settings.gpus, settings.network, settings.ipc, settings.shm_size, settings.ports) == (
        *(True, "host", "host", "", ()),
    )
    defaults = {"NCCL_IGNORE_CPU_AFFINITY": "1", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    assert (settings.env, settings.secrets) == ({**defaults, "A": "1"}, ("HF_TOKEN",))
    assert settings.labels == {
        "builder.serve": "x",
        "builder.serve.image": "vllm-node-tf5:7",
        "builder.serve.recipe": "r.yaml",
        "builder.serve.model": "Org/M",
        "builder.serve.names": '["m"]',
        "builder.serve.port": "8001",
    }


def test_an_image_may_want_less(tmp_path: Path) -> None:
    settings = made(
        tmp_path, "vllm serve x", "", ServeSettings(gpus="none", network="bridge", ipc="private", shm_size="1g")
    )
    assert (settings.gpus, settings.network, settings.ports) == (False, "bridge", (8000,))
    assert (settings.ipc, settings.shm_size) == ("private", "1g")


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


def test_a_secret_that_the_recipe_sets_is_not_taken_from_the_environment(tmp_path: Path) -> None:
    assert made(tmp_path, "vllm serve x", "env: {HF_TOKEN: none}\n").secrets == ()


@pytest.mark.parametrize(
    ("text", "name"),
    [("Qwen3.5-122B (fast)", "qwen3-5-122b-fast"), ("--", "model"), ("größe", "gr-e"), ("a_b", "a-b")],
)
def test_the_name_is_one_that_containers_may_have(text: str, name: str) -> None:
    assert container.service_name(text) == name


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
        ("--host '\"; import os'", '"; import os'),
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
