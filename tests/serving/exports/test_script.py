"""Scripts with docker run, run with a docker that notes its arguments."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from builder.definitions.container import ContainerSettings, PublishedPort
from builder.serving import compose
from tests.serving.exports import settings

if TYPE_CHECKING:
    from pathlib import Path


def arguments(folder: Path, wanted: ContainerSettings) -> list[str]:
    """The arguments that docker gets from the script, run by a user whose home is ``folder``."""
    tools = folder / "tools"
    tools.mkdir()
    (tools / "docker").write_text('#!/bin/sh\nprintf "%s\\0" "$@"\n', encoding="utf-8")
    (tools / "docker").chmod(0o755)
    (folder / "serve.sh").write_text(compose.render_script(wanted, "/home/ann"), encoding="utf-8")
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
    (tmp_path / "serve.sh").write_text(compose.render_script(wanted, "/home/ann"), encoding="utf-8")
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
