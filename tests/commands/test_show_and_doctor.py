from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from builder.base.project import Project
from builder.commands import about
from builder.engine import client as endpoints
from builder.engine import images, machine
from builder.engine.client import Endpoint
from builder.lock import lock_file
from tests import projects, spark_proc
from tests.conftest import Command
from tests.stock import stock

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.engine


@pytest.mark.long
def test_show_tells_all_that_is_in_an_image(small: Project, builder: Command, repository: str) -> None:
    builder("build", "chat")
    image = lock_file.read_lock(small.lock).images[repository].numbers[1]
    shown = json.loads(builder("show", f"{repository}:1", "--json").stdout)
    assert shown["fingerprint"] == image.fingerprint
    assert shown["input_hash"] == image.input_hash
    assert shown["base"]["image"] == "debian:bookworm-slim"
    assert shown["mod_hashes"] == image.mods
    assert shown["build_directory"] == f"builds/{repository}/1"
    output = dict(line.split(maxsplit=1) for line in builder("show", "small").stdout.splitlines())
    assert output["image"] == f"{repository}:1"
    assert output["state"] == "present, current"
    assert output["models"] == "Org/Model-1B"
    done = builder("show", f"{repository}:9", code=2)
    assert f"{repository} has no number 9" in done.stderr
    assert "its numbers: 1" in done.stderr


def test_keep_and_release_say_what_they_changed(small: Project, builder: Command, repository: str) -> None:
    builder("build", "chat")
    assert builder("keep", "small:1").stdout == f"{repository}:1 is kept\n"
    assert builder("pin", "small:1").stdout == f"{repository}:1 was already kept\n"  # the earlier name of the command
    assert lock_file.read_lock(small.lock).images[repository].numbers[1].pinned
    assert builder("release", "small").stdout == f"{repository}:1, the image that small means now, is not kept\n"
    assert not lock_file.read_lock(small.lock).images[repository].numbers[1].pinned


@pytest.mark.long
def test_doctor_finds_nothing_wrong_where_nothing_is(builder: Command) -> None:
    done = builder("doctor", "--json", code=None)
    verdicts = {finding["subject"]: finding["verdict"] for finding in json.loads(done.stdout)["findings"]}
    assert done.returncode == int("error" in verdicts.values())  # the disk may be full, without any fault of ours
    assert {verdicts[subject] for subject in ("engine", "buildx", "definitions", "recipes", "images.lock")} == {"ok"}


@pytest.mark.long
def test_doctor_names_every_thing_that_is_wrong(
    small: Project, builder: Command, endpoint: Endpoint, repository: str, tmp_path: Path
) -> None:
    stock(small, endpoint, repository, (1,))
    images.tag_image(endpoint, "debian:bookworm-slim", f"{repository}:1")
    projects.write(small.root / "recipes/broken.yaml", "name: x\n")
    projects.write(small.root / "recipes/lost.yaml", f"name: x\ncontainer: {repository}\nmods: [lost]\ncommand: x\n")
    file = small.root / "dockerfiles/small/image.yaml"
    projects.write(file, f"{file.read_text(encoding='utf-8')}mods: [gone]\n")
    output = builder("doctor", code=1).stdout
    assert f"warning  image:         {repository}:1 names a different image in the engine" in output
    assert "error    recipes:       recipes/broken.yaml:1:1: the key `command` is missing" in output
    assert "warning  recipe mods:   recipes/lost.yaml:3:8: no mod `lost` in mods/; `builder mods add ADDRESS`" in output
    assert "error    definitions:   dockerfiles/small/image.yaml:6:8: no mod `gone` in mods/; `builder" in output
    assert "builder.yaml" not in output
    projects.write(small.root / "builder.yaml", "registri: x\n")
    projects.write(small.root / "checkpoints/made/checkpoint.yaml", "description: x\n")
    projects.write(small.checkpoints_lock, "{")
    projects.write(file, file.read_text(encoding="utf-8").replace("mods: [gone]\n", ""))
    template = file.with_name("Dockerfile.j2")
    projects.write(template, f"{template.read_text(encoding='utf-8')}{{% if %}}\n")
    output = builder("doctor", code=1).stdout
    assert "error    builder.yaml:  builder.yaml:1:1: unknown key `registri`" in " ".join(output.split("\n"))
    assert "checkpoints/made/checkpoint.yaml:1:1: the key `model` is missing" in output
    assert "checkpoints.lock:1:2: the file is damaged" in output
    assert (
        f"dockerfiles/small/Dockerfile.j2:{template.read_text(encoding='utf-8').count(chr(10))}:1: template: " in output
    )
    nowhere = {"DOCKER_HOST": f"unix://{tmp_path}/nothing.sock", "HTTPS_PROXY": "http://[::1", "NO_PROXY": "a,[::1"}
    assert "error    proxy:         HTTPS_PROXY is not an address" in builder("doctor", code=1, environ=nowhere).stdout
    assert "error    engine:" in builder("doctor", code=1, environ=nowhere).stdout
    small.lock.write_text("<<<<<<< ours\n", encoding="utf-8")
    assert "error    images.lock:   images.lock:1:" in builder("doctor", code=1).stdout


@pytest.mark.long
def test_doctor_looks_at_gpu_and_proxies(small: Project, tmp_path: Path) -> None:
    """A machine with an NVIDIA GPU is one with the driver's file; no engine of a test has the GPU's runtime."""
    environ = {**os.environ, "HTTPS_PROXY": "http://127.0.0.1:3128", "HTTP_PROXY": "10.0.0.1:3128"}
    found = {finding.subject: finding for finding in about.run_doctor(small, environ, tmp_path)}
    assert "GPU" not in found
    assert "10.0.0.1" not in found["proxy"].message
    assert "HTTPS_PROXY points to 127.0.0.1" in found["proxy"].message
    projects.write(tmp_path / "driver/nvidia/version", "")
    gpu = next(finding for finding in about.run_doctor(small, environ, tmp_path) if finding.subject == "GPU")
    engine = machine.require_supported(endpoints.find_endpoint(os.environ))
    assert gpu.verdict == ("ok" if engine.nvidia else "error")
    assert engine.nvidia or "nvidia-ctk runtime configure" in gpu.remedy


def test_doctor_on_a_spark_tells_what_to_do(small: Project, tmp_path: Path) -> None:
    """The machine is a folder like a Spark's /proc, and `nvidia-smi` a stand-in on PATH."""
    proc = spark_proc.write_whole(tmp_path / "proc", earlyoom=False)
    programs = spark_proc.nvidia_smi(tmp_path / "bin", "12.0")
    file = small.root / "dockerfiles/small/image.yaml"
    projects.write(file, file.read_text(encoding="utf-8").replace("args: {", "args: {gpu_arch: 12.1a, "))
    environ = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
    found = {finding.subject: finding for finding in about.run_doctor(small, environ, proc)}
    assert (found["driver"].verdict, found["driver"].message) == ("ok", "NVIDIA 580.95.05")
    assert found["memory"].message == "110 of 120 GiB available, shared with the GPU"
    assert found["swap"].message == "0.0 of 16 GiB in use"
    assert (
        found["GPU arch"].message
        == "compute capability 12.0, but these definitions build for another GPU: small (12.1a)"
    )
    assert found["GPU arch"].remedy.startswith("set `gpu_arch: 12.0a`")
    assert "apt install earlyoom" in found["earlyoom"].remedy
    away = {**environ, "DOCKER_HOST": f"ssh://nobody@{tmp_path.name}.invalid"}
    assert "driver" not in {finding.subject for finding in about.run_doctor(small, away, proc)}
