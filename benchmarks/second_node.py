"""Measures how a large image gets to other machines, against `docker save | docker load` in the same run.

    .venv/bin/python benchmarks/second_node.py BASE

BASE is a large image of this engine; one mod is baked on it, and then changed. Two further engines on this machine are
the nodes (root). Takes a few minutes and some 15 GB of disk for a base of 5 GB. Prints a Markdown table. Everything it
makes is gone afterwards, the volume `builder-registry` too where there was none.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from builder.engine import endpoint as endpoints
from builder.engine import images
from builder.engine.endpoint import Endpoint
from builder.project import Project
from tests import projects, registries
from tests.registries import Node

BUILDER = str(Path(sys.executable).parent / "builder")


def seconds(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def builder(project: Project, *arguments: str) -> None:
    subprocess.run([BUILDER, "--project", str(project.root), *arguments], check=True, stdout=subprocess.DEVNULL)


def save_and_load(docker: str, endpoint: Endpoint, node: Node, name: str) -> None:
    save = [docker, "-H", endpoint.host, "save", name]
    load = [docker, "-H", node.host, "load"]
    with subprocess.Popen(save, stdout=subprocess.PIPE) as saving:
        subprocess.run(load, stdin=saving.stdout, check=True, stdout=subprocess.DEVNULL)
    assert saving.returncode == 0


def saved_bytes(docker: str, endpoint: Endpoint, name: str) -> int:
    with subprocess.Popen([docker, "-H", endpoint.host, "save", name], stdout=subprocess.PIPE) as saving:
        assert saving.stdout
        return sum(len(piece) for piece in iter(lambda: saving.stdout.read(1 << 20), b""))  # type: ignore[union-attr]


def row(what: str, taken: float, moved: int | None = None) -> None:
    shown = "" if moved is None else f"{moved / 1e6:.3f}"
    print(f"| {what} | {taken:.2f} | {shown} |", flush=True)


def main(base: str) -> None:
    endpoint = endpoints.find(os.environ)
    docker = str(Path(endpoint.buildx[0]).with_name("docker")) if "/" in endpoint.buildx[0] else "docker"
    repository = f"builder-bench-{secrets.token_hex(4)}"
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        os.environ["BUILDER_REGISTRY_IMAGE"] = stack.enter_context(registries.image(endpoint))
        one = stack.enter_context(registries.node("builder-bench1", "10.216.0.1/24"))
        two = stack.enter_context(registries.node("builder-bench2", "10.217.0.1/24"))
        try:
            measure(endpoint, docker, Path(folder), repository, base, one, two)
        finally:
            for tag in images.tags(endpoint, [repository]):
                images.remove(endpoint, tag)


def measure(endpoint: Endpoint, docker: str, root: Path, repository: str, base: str, one: Node, two: Node) -> None:
    project = projects.make(root / "project", repository)
    definition = project.dockerfiles / "small/image.yaml"
    projects.write(definition, definition.read_text(encoding="utf-8").replace("debian:bookworm-slim", base))
    registries.configure(project, nodes={"one": one.host, "two": two.host})
    builder(project, "build", "chat")
    print("| what | seconds | MB |\n|---|---|---|", flush=True)
    whole = saved_bytes(docker, endpoint, f"{repository}:1")
    row(
        "whole image: `docker save \\| docker load`",
        seconds(lambda: save_and_load(docker, endpoint, two, f"{repository}:1")),
        whole,
    )
    row("whole image: `builder copy`, the first", seconds(lambda: builder(project, "copy", "small:1", "one")))
    row("again: `builder copy`, nothing to move", seconds(lambda: builder(project, "copy", "small:1", "one")))
    for number in (2, 3):
        projects.write(project.root / "mods/template/chat.jinja", f"version {number}\n")
        builder(project, "build", "chat")
        name = f"{repository}:{number}"
        row(f"mod changed ({number}): `builder copy`", seconds(lambda name=name: builder(project, "copy", name, "one")))
        whole = saved_bytes(docker, endpoint, name)
        row(
            f"mod changed ({number}): `docker save \\| docker load`",
            seconds(lambda name=name: save_and_load(docker, endpoint, two, name)),
            whole,
        )
    with registries.registry(root / "registry") as registry, registries.before(registry) as front:
        registries.configure(project, registry=registry.address)
        builder(project, "push", "small:3")
        projects.write(project.root / "mods/template/chat.jinja", "version 4\n")
        builder(project, "build", "chat")
        row("mod changed (4): `builder push`", seconds(lambda: builder(project, "push", "small:4")))
        registries.configure(project, registry=front.address, nodes={"two": two.host})
        row(
            "mod changed (4): `builder copy` through that registry",
            seconds(lambda: builder(project, "copy", "small:4", "two")),
            front.sent,
        )


if __name__ == "__main__":
    main(sys.argv[1])
