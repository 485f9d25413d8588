"""Measures the everyday commands side by side with what a person would type instead.

    .venv/bin/python benchmarks/everyday.py [RUNS]

Prints a Markdown table of medians and ranges, in milliseconds. Everything it makes in the engine is gone afterwards.
"""

from __future__ import annotations

import io
import json
import os
import secrets
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from builder.engine import endpoint as endpoints
from builder.engine import images
from builder.engine.endpoint import Endpoint, environment
from builder.lock import text
from builder.lock.model import ImageName, Lock, Model, NumberedImage, Pairing, Repository, Version
from builder.project import Project
from tests import projects

BUILDER = str(Path(sys.executable).parent / "builder")
ENTRIES = 200


def measure(action: Callable[[], object], runs: int) -> list[float]:
    """Milliseconds of each run, after one that does not count."""
    action()
    return [timed(action) for _ in range(runs)]


def timed(action: Callable[[], object]) -> float:
    """Milliseconds of one run."""
    began = time.perf_counter()
    action()
    return (time.perf_counter() - began) * 1000


def run(argv: list[str], cwd: Path, environ: dict[str, str] | None = None) -> None:
    env = {**os.environ, **(environ or {})}
    subprocess.run(argv, cwd=cwd, env=env, check=True, capture_output=True, stdin=subprocess.DEVNULL)


def import_tiny_image(endpoint: Endpoint, name: str) -> None:
    """An image of one small layer, different from every other."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        content = name.encode()
        entry = tarfile.TarInfo("name")
        entry.size = len(content)
        archive.addfile(entry, io.BytesIO(content))
    docker = str(Path(endpoint.buildx[0]).with_name("docker"))
    docker = docker if Path(docker).exists() else "docker"
    env = {**os.environ, **environment(endpoint)}
    subprocess.run([docker, "import", "-", name], input=packed.getvalue(), env=env, check=True, capture_output=True)


def many_images(
    endpoint: Endpoint, project: Project, repository: str, distinct: bool, entries: int = ENTRIES, served: int = 20
) -> None:
    """A lock with numbered images, each its own content or all the same, and models that the latest of them serve."""
    numbers = {}
    for number in range(1, entries + 1):
        name = f"{repository}:{number}"
        if distinct or number == 1:
            import_tiny_image(endpoint, name)
        else:
            images.tag(endpoint, f"{repository}:1", name)
        found = images.inspect(endpoint, name)
        assert found is not None
        numbers[number] = NumberedImage(
            built="2026-11-20T12:00:00Z",
            definition="small",
            platform=found.platform,
            fingerprint=images.fingerprint(found),
            input_hash=f"sha256:{number:064x}",
            size=found.size,
            versions={"vllm": Version("0.19.1", "0" * 40)},
            mods={"template": f"sha256:{number:064x}"},
        )
    images.tag(endpoint, f"{repository}:{entries}", f"{repository}:latest")
    models = {
        f"Org/Model-{n}": Model(Pairing(ImageName(repository, n))) for n in range(entries - served + 1, entries + 1)
    }
    held = Repository(entries + 1, entries, tuple(range(entries - 1, 0, -1)), numbers)
    project.lock.write_text(text.dump(Lock(images={repository: held}, models=models)), encoding="utf-8")


def row(name: str, taken: list[float]) -> None:
    print(f"| {name} | {statistics.median(taken):.0f} | {min(taken):.0f} to {max(taken):.0f} |", flush=True)


def main(runs: int) -> None:
    endpoint = endpoints.find(os.environ)
    repository = f"builder-bench-{secrets.token_hex(4)}"
    print("| what | median ms | range |\n|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        try:
            measure_all(endpoint, root, repository, runs)
        finally:
            for tag in images.tags(endpoint, [f"{repository}*"]):
                images.remove(endpoint, tag)


def measure_all(endpoint: Endpoint, root: Path, repository: str, runs: int) -> None:
    row("`python -c pass`", measure(lambda: run([sys.executable, "-c", "pass"], root), runs))
    row("`builder --help`", measure(lambda: run([BUILDER, "--help"], root), runs))
    row("`builder build --help`", measure(lambda: run([BUILDER, "build", "--help"], root), runs))

    built = projects.make(root / "built", repository)
    run([BUILDER, "build", "chat"], built.root)
    row("`builder build`, nothing changed", measure(lambda: run([BUILDER, "build", "chat"], built.root), runs))
    directory = built.builds / repository / "1"
    args = json.loads((directory / "bake.json").read_text(encoding="utf-8"))["target"]["image"]["args"]
    plain = [*endpoint.buildx, "build", "--provenance=false", "-t", f"{repository}-plain:1", "."]
    plain += [f"--build-arg={name}={value}" for name, value in args.items()]
    cached = measure(lambda: run(plain, directory, environment(endpoint)), runs)
    row("`docker buildx build` of the same Dockerfile, cached", cached)
    projects.write(built.root / "mods/template/chat.jinja", "version two\n")
    run([BUILDER, "build", "chat"], built.root)
    row("`builder rollback`", measure(lambda: run([BUILDER, "rollback", "chat"], built.root), runs))
    row("`builder list`, 2 images", measure(lambda: run([BUILDER, "list"], built.root), runs))

    for name, distinct in (("all different", True), ("all the same", False)):
        other = f"{repository}-{'d' if distinct else 's'}"
        listed = projects.make(root / other, other)
        many_images(endpoint, listed, other, distinct)
        show = partial(run, [BUILDER, "list"], listed.root)
        row(f"`builder list`, {ENTRIES} images, {name}, the first time", [timed(show)])
        row(f"`builder list`, {ENTRIES} images, {name}", measure(show, runs))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
