"""Measures commands in a growing project: more numbered images, mods and recipes."""

from __future__ import annotations

import secrets
import statistics
from functools import partial
from itertools import cycle
from typing import TYPE_CHECKING

from benchmarks import everyday, many_images
from benchmarks.measuring import RATIO, Action, Grid, Row, Table, in_turn, once
from benchmarks.sandbox import BUILDER, DEBIAN, Sandbox
from builder.base.project import Project
from tests import projects

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path


IMAGES, MODELS = (10, 100, 1000), 50
MODS = (1, 10, 50)
RECIPES, RECIPE_RUNS = (1, 3, 10), 2  # a round takes a minute
FIRST_LIST = "`list`, with no tags remembered"
# A stand-in for a compiler: it keeps a processor busy and leaves files behind.
BASE_STEP = """\
RUN echo {{ args.greeting | sh }} > /greeting && head -c 2000000000 /dev/zero | sha256sum && \\
    head -c 20000000 /dev/urandom > /kernels
"""
RECIPE_MOD = 'head -c 300000000 /dev/zero | sha256sum\nhead -c 1000000 /dev/urandom > "$WORKSPACE_DIR/{name}"\n'


def tables(sandbox: Sandbox, runs: int) -> Iterator[Table | Grid]:
    """Measures a growing lock, growing lists of mods, and several recipes in one command."""
    images = _grown_images(sandbox, runs)
    yield images
    first = Row(f"{FIRST_LIST}: {IMAGES[-1]} images", images.rows[FIRST_LIST][-1], reach=1.0)
    how = (
        "The largest of these, beside its target. Nearly all of it is the engine's work: it computes the size of each "
        "image for its list, and describes the images one by one for their content. Parallel requests take as long."
    )
    yield Table("The first list", how, [first])
    yield _grown_mods(sandbox, runs)
    yield from _grown_recipes(sandbox, min(runs, RECIPE_RUNS))


def _grown_images(sandbox: Sandbox, runs: int) -> Grid:
    rows: dict[str, list[list[float]]] = {}
    for numbers in IMAGES:
        project = many_images.make(sandbox, f"grown{numbers}", numbers, min(MODELS, numbers - 1))
        rows.setdefault(FIRST_LIST, []).append([once(partial(sandbox.builder, project, "list"))])
        actions = _on_images(sandbox, project, f"{sandbox.prefix}-grown{numbers}", numbers)
        for what, taken in zip(actions, in_turn(runs, *actions.values()), strict=True):
            rows.setdefault(what, []).append(taken)
    how = (
        f"Every number has its own image; up to {MODELS} models are paired. `diff` compares the first with the last, "
        "`verify` checks every number."
    )
    return Grid("A growing images.lock", how, [f"{numbers} images" for numbers in IMAGES], rows)


def _on_images(sandbox: Sandbox, project: Project, repository: str, numbers: int) -> dict[str, Action]:
    marks = cycle(("keep", "release"))
    commands = {
        "`list`": ["list"],
        "`list --models`": ["list", "--models"],
        "`show`": ["show", f"{repository}:{numbers // 2}"],
        "`diff`": ["diff", f"{repository}:1", f"{repository}:{numbers}"],
        "`verify`": ["verify"],
        "`rollback` of a model": ["rollback", "Org/Model-7"],
    }
    actions: dict[str, Action] = {what: partial(sandbox.builder, project, *argv) for what, argv in commands.items()}
    return {
        **actions,
        "`keep`: one write": lambda: sandbox.builder(project, next(marks), f"{repository}:{numbers // 2}"),
    }


def _grown_mods(sandbox: Sandbox, runs: int) -> Grid:
    rows: dict[str, list[list[float]]] = {}
    for mods in MODS:
        project = _with_mods(sandbox, f"mods{mods}", mods)
        sandbox.builder(project, "build", "chat")
        image = f"{sandbox.prefix}-mods{mods}:1"
        actions: dict[str, Action] = {
            "`builder build`, the first time that nothing changed": partial(sandbox.builder, project, "build", "chat"),
            "`builder build`, the last mod changed": everyday.changing(sandbox, project),
            "a container of the image, ready to serve": partial(_launch, sandbox, image, ()),
            "the same with the mods copied in and run at every launch": partial(
                _launch, sandbox, DEBIAN, sorted(project.mods.iterdir())
            ),
        }
        for what, taken in zip(actions, in_turn(runs, *actions.values()), strict=True):
            rows.setdefault(what, []).append(taken)
    how = (
        "Each mod copies one file. A launch is `docker create`, `start` and one `exec`; a mod at launch is one more "
        "`docker cp` and `docker exec`."
    )
    return Grid("A growing list of mods", how, [f"{mods} mods" if mods > 1 else "1 mod" for mods in MODS], rows)


def _with_mods(sandbox: Sandbox, name: str, mods: int) -> Project:
    """Makes a project with a recipe that bakes this many mods; the last mod is ``template``."""
    project = sandbox.project(name)
    others = [f"m{n:02}" for n in range(mods - 1)]
    for other in others:
        script = f'mkdir -p "$WORKSPACE_DIR"; cp chat.jinja "$WORKSPACE_DIR/{other}.jinja"\n'
        projects.add_mod(project.root, other, script, {"chat.jinja": f"of {other}\n"})
    template = 'mkdir -p "$WORKSPACE_DIR"; cp chat.jinja "$WORKSPACE_DIR/chat.jinja"\n'
    projects.add_mod(project.root, "template", template, {})
    listed = [f"mods/{mod}" for mod in (*others, "template")]
    projects.add_recipe(project.root, "chat", f"{sandbox.prefix}-{name}", "Org/Model-1B", listed)
    return project


def _launch(sandbox: Sandbox, image: str, mods: Sequence[Path]) -> None:
    """Starts a container, prepares it for serving, and removes it."""
    container = f"{sandbox.prefix}-launched"
    docker = [sandbox.docker, "-H", sandbox.endpoint.host]
    workspace = ["--env", "WORKSPACE_DIR=/workspace"]
    try:
        sandbox.run([*docker, "create", "--name", container, *workspace, image, "sleep", "600"])
        sandbox.run([*docker, "start", container])
        for mod in mods:
            sandbox.run([*docker, "cp", str(mod), f"{container}:/mnt/{mod.name}"])
            sandbox.run([*docker, "exec", "--workdir", f"/mnt/{mod.name}", container, "bash", "run.sh"])
        sandbox.run([*docker, "exec", container, "true"])
    finally:
        sandbox.run([*docker, "rm", "--force", container])


def _grown_recipes(sandbox: Sandbox, runs: int) -> Iterator[Table | Grid]:
    names = [f"r{n}" for n in range(max(RECIPES))]
    project = _with_recipes(sandbox, names)
    alone = [partial(_build_anew, sandbox, project, name) for name in names[1:3]]
    together = [partial(_build_anew, sandbox, project, *names[:recipes]) for recipes in RECIPES]
    *others, first, three, ten = in_turn(runs, *alone, *together)
    slowest = max((first, *others), key=statistics.median)
    how = "The cache is empty. The base takes a few seconds of one processor, each recipe's mod one more."
    rows = [Row("three recipes in one command", three, "the slowest of the three alone", slowest, 1.2, RATIO)]
    yield Table("Several recipes on one base", how, rows)
    sizes = [f"{recipes} recipes" if recipes > 1 else "1 recipe" for recipes in RECIPES]
    yield Grid("A growing list of recipes", how, sizes, {"`builder build RECIPE…`": [first, three, ten]})


def _with_recipes(sandbox: Sandbox, names: list[str]) -> Project:
    project = sandbox.project("recipes")
    template = projects.DOCKERFILE.replace("RUN echo {{ args.greeting | sh }} > /greeting\n", BASE_STEP)
    assert template != projects.DOCKERFILE
    projects.write(project.root / "dockerfiles/small/Dockerfile.j2", template)
    for name in names:
        projects.add_mod(project.root, name, RECIPE_MOD.format(name=name), {})
        projects.add_recipe(project.root, name, f"{sandbox.prefix}-recipes", f"Org/{name}", [f"mods/{name}"])
    return project


def _build_anew(sandbox: Sandbox, project: Project, *recipes: str) -> None:
    """Builds recipes in one command, on a base that no cache contains."""
    sandbox.run([BUILDER, "build", "--set", f"greeting={secrets.token_hex(8)}", *recipes], project.root)
