"""Measures three recipes on one base, built in one command, beside each of them built alone.

    .venv/bin/python benchmarks/together.py [RUNS]

The base is a step of some seconds; each recipe bakes a mod of its own on it. Every build starts without a cache: the
base takes in a number that no build before had. Prints a Markdown table of medians and ranges, in seconds. The images
are gone afterwards; of BuildKit's cache, some hundred megabytes stay until BuildKit cleans it.
"""

from __future__ import annotations

import os
import secrets
import statistics
import sys
import tempfile
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.everyday import BUILDER, run, timed
from builder.engine import endpoint as endpoints
from builder.engine import images
from builder.project import Project
from tests import projects

RECIPES = ("chat", "code", "agent")
# What a compiler does, for the cache: it keeps a processor busy, and leaves something behind.
BASE_STEP = """\
RUN echo {{ args.greeting | sh }} > /greeting && head -c 2000000000 /dev/zero | sha256sum && \\
    head -c 20000000 /dev/urandom > /kernels
"""
MOD = 'head -c 300000000 /dev/zero | sha256sum\nhead -c 1000000 /dev/urandom > "$WORKSPACE_DIR/{name}"\n'


def make(root: Path, repository: str) -> Project:
    """A project with the three recipes."""
    project = projects.make(root, repository)
    template = projects.DOCKERFILE.replace("RUN echo {{ args.greeting | sh }} > /greeting\n", BASE_STEP)
    assert template != projects.DOCKERFILE
    projects.write(project.root / "dockerfiles/small/Dockerfile.j2", template)
    for name in RECIPES:
        projects.add_mod(root, name, MOD.format(name=name), {})
        projects.add_recipe(root, name, repository, f"Org/{name}", [f"mods/{name}"])
    return project


def build(project: Project, *recipes: str) -> None:
    """Builds recipes in one command, with nothing in the cache."""
    run([BUILDER, "build", "--set", f"greeting={secrets.token_hex(8)}", *recipes], project.root)


def main(runs: int) -> None:
    endpoint = endpoints.find(os.environ)
    repository = f"builder-bench-{secrets.token_hex(4)}"
    with tempfile.TemporaryDirectory() as folder:
        try:
            measure_all(make(Path(folder), repository), runs)
        finally:
            for tag in images.tags(endpoint, [repository]):
                images.remove(endpoint, tag)


def measure_all(project: Project, runs: int) -> None:
    taken: dict[tuple[str, ...], list[float]] = {(name,): [] for name in RECIPES} | {RECIPES: []}
    build(project, *RECIPES)  # does not count
    for _ in range(runs):
        # In turn, so that a busy minute of the machine is shared by all.
        for recipes, seconds in taken.items():
            seconds.append(timed(partial(build, project, *recipes)) / 1000)
    print("| what | median s | range |\n|---|---|---|")
    for recipes, seconds in taken.items():
        what = f"`builder build {' '.join(recipes)}`, nothing cached"
        print(f"| {what} | {statistics.median(seconds):.1f} | {min(seconds):.1f} to {max(seconds):.1f} |")
    slowest = max(statistics.median(taken[name,]) for name in RECIPES)
    print(f"\nThe three in one command take {statistics.median(taken[RECIPES]) / slowest:.2f} times the slowest alone.")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
