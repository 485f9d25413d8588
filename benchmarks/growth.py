"""What takes longer as a project grows: with its numbered images, its mods, its recipes."""

from __future__ import annotations

import secrets
import statistics
from functools import partial
from itertools import cycle
from typing import TYPE_CHECKING

from benchmarks import everyday, many_images
from benchmarks.measuring import RATIO, Action, Grid, Row, Table, in_turn, once
from benchmarks.stage import BUILDER, DEBIAN, Stage
from builder.project import Project
from tests import projects

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

IMAGES, MODELS = (10, 100, 1000), 50
MODS = (1, 10, 50)
RECIPES = (1, 3, 10)
# What a compiler does, for the cache: it keeps a processor busy, and leaves something behind.
BASE_STEP = """\
RUN echo {{ args.greeting | sh }} > /greeting && head -c 2000000000 /dev/zero | sha256sum && \\
    head -c 20000000 /dev/urandom > /kernels
"""
RECIPE_MOD = 'head -c 300000000 /dev/zero | sha256sum\nhead -c 1000000 /dev/urandom > "$WORKSPACE_DIR/{name}"\n'


def tables(stage: Stage, runs: int) -> Iterator[Table | Grid]:
    """A growing lock, growing lists of mods, and several recipes in one command."""
    yield _grown_images(stage, runs)
    yield _grown_mods(stage, runs)
    yield from _grown_recipes(stage, runs)


def _grown_images(stage: Stage, runs: int) -> Grid:
    rows: dict[str, list[list[float]]] = {}
    for numbers in IMAGES:
        project = many_images.make(stage, f"grown{numbers}", numbers, min(MODELS, numbers - 1))
        rows.setdefault("`list`, the first time after the engine started", []).append(
            [once(partial(stage.builder, project, "list"))]
        )
        actions = _on_images(stage, project, f"{stage.prefix}-grown{numbers}", numbers)
        for what, taken in zip(actions, in_turn(runs, *actions.values()), strict=True):
            rows.setdefault(what, []).append(taken)
    how = (
        f"Every number has its build directory and an image of its own; up to {MODELS} models are paired. "
        "`diff` compares the first with the last, `verify` looks at every number and its build directory."
    )
    return Grid("A growing images.lock", how, [f"{numbers} images" for numbers in IMAGES], rows)


def _on_images(stage: Stage, project: Project, repository: str, numbers: int) -> dict[str, Action]:
    marks = cycle(("pin", "unpin"))
    commands = {
        "`list`": ["list"],
        "`list --models`": ["list", "--models"],
        "`show`": ["show", f"{repository}:{numbers // 2}"],
        "`diff`": ["diff", f"{repository}:1", f"{repository}:{numbers}"],
        "`verify`": ["verify"],
        "`rollback` of a model": ["rollback", "Org/Model-7"],
    }
    actions: dict[str, Action] = {what: partial(stage.builder, project, *argv) for what, argv in commands.items()}
    return {
        **actions,
        "`pin`: one write": lambda: stage.builder(project, next(marks), f"{repository}:{numbers // 2}"),
    }


def _grown_mods(stage: Stage, runs: int) -> Grid:
    rows: dict[str, list[list[float]]] = {}
    for mods in MODS:
        project = _with_mods(stage, f"mods{mods}", mods)
        stage.builder(project, "build", "chat")
        image = f"{stage.prefix}-mods{mods}:1"
        actions: dict[str, Action] = {
            "`builder build`, the first time that nothing changed": partial(stage.builder, project, "build", "chat"),
            "`builder build`, the last mod changed": everyday.changing(stage, project),
            "a container of the image, ready to serve": partial(_launch, stage, image, ()),
            "the same with the mods copied in and run at every launch": partial(
                _launch, stage, DEBIAN, sorted(project.mods.iterdir())
            ),
        }
        for what, taken in zip(actions, in_turn(runs, *actions.values()), strict=True):
            rows.setdefault(what, []).append(taken)
    how = (
        "Each mod copies one file. Launching is `docker create`, `start` and one `exec`, and where mods are run at "
        "launch a `docker cp` and a `docker exec` each."
    )
    return Grid("A growing list of mods", how, [f"{mods} mods" if mods > 1 else "1 mod" for mods in MODS], rows)


def _with_mods(stage: Stage, name: str, mods: int) -> Project:
    """A project whose recipe bakes this many mods, ``template`` the last of them."""
    project = stage.project(name)
    others = [f"m{n:02}" for n in range(mods - 1)]
    for other in others:
        script = f'mkdir -p "$WORKSPACE_DIR"; cp chat.jinja "$WORKSPACE_DIR/{other}.jinja"\n'
        projects.add_mod(project.root, other, script, {"chat.jinja": f"of {other}\n"})
    template = 'mkdir -p "$WORKSPACE_DIR"; cp chat.jinja "$WORKSPACE_DIR/chat.jinja"\n'
    projects.add_mod(project.root, "template", template, {})
    asked = [f"mods/{mod}" for mod in (*others, "template")]
    projects.add_recipe(project.root, "chat", f"{stage.prefix}-{name}", "Org/Model-1B", asked)
    return project


def _launch(stage: Stage, image: str, mods: Sequence[Path]) -> None:
    """Starts a container and gets it to where it could serve, then removes it."""
    container = f"{stage.prefix}-launched"
    docker = [stage.docker, "-H", stage.endpoint.host]
    workspace = ["--env", "WORKSPACE_DIR=/workspace"]
    try:
        stage.do([*docker, "create", "--name", container, *workspace, image, "sleep", "600"])
        stage.do([*docker, "start", container])
        for mod in mods:
            stage.do([*docker, "cp", str(mod), f"{container}:/mnt/{mod.name}"])
            stage.do([*docker, "exec", "--workdir", f"/mnt/{mod.name}", container, "bash", "run.sh"])
        stage.do([*docker, "exec", container, "true"])
    finally:
        stage.do([*docker, "rm", "--force", container])


def _grown_recipes(stage: Stage, runs: int) -> Iterator[Table | Grid]:
    names = [f"r{n}" for n in range(max(RECIPES))]
    project = _with_recipes(stage, names)
    alone = [partial(_build_anew, stage, project, name) for name in names[1:3]]
    together = [partial(_build_anew, stage, project, *names[:recipes]) for recipes in RECIPES]
    *others, one, three, ten = in_turn(runs, *alone, *together)
    slowest = max((one, *others), key=statistics.median)
    how = "Nothing is in the cache: the base takes a few seconds of one processor, and each recipe's mod one more."
    rows = [Row("three recipes in one command", three, "the slowest of the three alone", slowest, 1.2, RATIO)]
    yield Table("Several recipes on one base", how, rows)
    sizes = [f"{recipes} recipes" if recipes > 1 else "1 recipe" for recipes in RECIPES]
    yield Grid("A growing list of recipes", how, sizes, {"`builder build RECIPE…`": [one, three, ten]})


def _with_recipes(stage: Stage, names: list[str]) -> Project:
    project = stage.project("recipes")
    template = projects.DOCKERFILE.replace("RUN echo {{ args.greeting | sh }} > /greeting\n", BASE_STEP)
    assert template != projects.DOCKERFILE
    projects.write(project.root / "dockerfiles/small/Dockerfile.j2", template)
    for name in names:
        projects.add_mod(project.root, name, RECIPE_MOD.format(name=name), {})
        projects.add_recipe(project.root, name, f"{stage.prefix}-recipes", f"Org/{name}", [f"mods/{name}"])
    return project


def _build_anew(stage: Stage, project: Project, *recipes: str) -> None:
    """Builds recipes in one command, on a base that no build before had."""
    stage.do([BUILDER, "build", "--set", f"greeting={secrets.token_hex(8)}", *recipes], project.root)
