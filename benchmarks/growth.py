"""Measures a project that has grown: 1,000 numbered images with their build directories, and 50 models.

    .venv/bin/python benchmarks/growth.py [RUNS]

The build directories are those of the shipped cpu definition; the images are one tiny image with 1,000 names. Prints a
Markdown table of medians and ranges, in milliseconds. Everything it makes in the engine is gone afterwards.
"""

from __future__ import annotations

import os
import secrets
import sys
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.everyday import BUILDER, import_tiny_image, measure, row, run, timed
from builder.definitions import image
from builder.engine import endpoint as endpoints
from builder.engine import images
from builder.engine.endpoint import Endpoint
from builder.lock import reading, text
from builder.lock.model import ImageName, Lock, Model, Pairing, Repository
from builder.lock.pins import BasePin, Pins
from builder.plan.make import Ingredients, make
from builder.plan.model import Plan
from builder.project import Project
from tests import projects
from tests.verbs import kept

NUMBERS = 1000
MODELS = 50
SHIPPED = Project(projects.REPOSITORY_ROOT)


def plan(repository: str, number: int) -> Plan:
    """A plan of the cpu definition with the packages that are locked for it and a mod of this number's own."""
    definition = replace(image.load(SHIPPED, "cpu", "linux/amd64"), repository=repository)
    locked = reading.read(SHIPPED.lock).pins_of("cpu", "linux/amd64")
    pins = Pins(BasePin("debian:bookworm-slim", f"sha256:{'b' * 64}"), locked.sources, locked.python)
    own = kept.baked("template", {"run.sh": "true\n", "chat.jinja": f"version {number}\n" * 200})
    return make(Ingredients(definition, pins, {}, (own,)))


def grown(endpoint: Endpoint, root: Path, repository: str) -> Project:
    """The project, and its images in the engine."""
    import_tiny_image(endpoint, f"{repository}:1")
    found = images.inspect(endpoint, f"{repository}:1")
    assert found is not None
    numbers = {}
    for number in range(1, NUMBERS + 1):
        images.tag(endpoint, f"{repository}:1", f"{repository}:{number}")
        made = plan(repository, number)
        kept.write(root / "builds" / repository / str(number), made)
        numbers[number] = kept.image(made, fingerprint=images.fingerprint(found), platform="linux/amd64")
    images.tag(endpoint, f"{repository}:1", f"{repository}:latest")
    held = Repository(NUMBERS + 1, NUMBERS, tuple(range(NUMBERS - 1, 0, -1)), numbers)
    paired = {
        f"Org/Model-{n}": Model(Pairing(ImageName(repository, NUMBERS - n)), (Pairing(ImageName(repository, 1)),))
        for n in range(MODELS)
    }
    project = projects.make(root, repository)
    project.lock.write_text(text.dump(Lock(images={repository: held}, models=paired)), encoding="utf-8")
    return project


def main(runs: int) -> None:
    endpoint = endpoints.find(os.environ)
    repository = f"builder-bench-{secrets.token_hex(4)}"
    with tempfile.TemporaryDirectory() as folder:
        try:
            project = grown(endpoint, Path(folder), repository)
            print(f"images.lock is {project.lock.stat().st_size / 1e6:.1f} MB")
            print("| what | median ms | range |\n|---|---|---|", flush=True)
            for command in (
                ["list"],
                ["list", "--models"],
                ["show", f"{repository}:500"],
                ["diff", f"{repository}:1", f"{repository}:{NUMBERS}"],
                ["verify"],
                ["pin", f"{repository}:500"],
                ["rollback", "Org/Model-7", "--dry-run"],
            ):
                name = f"`builder {' '.join(command).replace(repository, 'cpu')}`"
                action = partial(run, [BUILDER, *command], project.root)
                row(f"{name}, the first time", [timed(action)])
                row(name, measure(action, runs))
        finally:
            for tag in images.tags(endpoint, [repository]):
                images.remove(endpoint, tag)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10)
