"""Compares the everyday commands with the commands that a user would type instead."""

from __future__ import annotations

import json
import sys
from itertools import count
from typing import TYPE_CHECKING

from benchmarks import many_images
from benchmarks.measuring import RATIO, Action, Row, Table, in_turn, run
from benchmarks.sandbox import BUILDER, DEBIAN, Sandbox
from builder.base.project import Project
from tests import projects

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


LISTED = 200


def tables(sandbox: Sandbox, runs: int) -> Iterator[Table]:
    """Measures start-up and listing; then a build, a changed mod and a rollback, on a small and a large image."""
    yield Table(
        "Starting up and listing",
        f"A new process each time. The list has {LISTED} numbered images.",
        [*_starting(sandbox, runs), *_listing(sandbox, runs)],
    )
    for name, base in (("a small image", DEBIAN), ("the cpu image (vLLM, 5 GB)", sandbox.cpu())):
        yield Table(
            f"Build, change and roll back {name}",
            "One mod on the base. A plain build is `docker buildx build` with the same Dockerfile and a full cache, or "
            "with two lines that copy the changed file and check nothing.",
            list(_builds(sandbox, sandbox.project("small" if base == DEBIAN else "large", base), runs)),
        )


def _starting(sandbox: Sandbox, runs: int) -> Iterator[Row]:
    def start(*argv: str) -> Action:
        return lambda: run(argv, sandbox.root)

    def python(code: str) -> Action:
        return start(sys.executable, "-c", code)

    top, command, click = in_turn(
        runs, start(BUILDER, "--help"), start(BUILDER, "build", "--help"), python("import click")
    )
    yield Row("`builder --help`", top, "`python -c 'import click'`", click, 1.4, RATIO)
    yield Row("`builder build --help`", command, "`python -c 'import click'`", click, reach=0.095)


def _listing(sandbox: Sandbox, runs: int) -> Iterator[Row]:
    project = many_images.make(sandbox, "listed", LISTED, models=20)
    repository = f"{sandbox.prefix}-listed"
    ours, bare, theirs = in_turn(
        runs,
        lambda: sandbox.builder(project, "list"),
        lambda: run([sys.executable, "-c", "pass"], sandbox.root),
        lambda: sandbox.run([sandbox.docker, "image", "ls", repository]),
    )
    # For example 80 ms if Python alone needs 10 ms: a slower machine needs more for both.
    yield Row("`builder list`", ours, "`python -c pass`", bare, 8, RATIO)
    yield Row("`builder list`", ours, "`docker image ls`", theirs)


def _builds(sandbox: Sandbox, project: Project, runs: int) -> Iterator[Row]:
    sandbox.builder(project, "build", "chat")
    repository = f"{sandbox.prefix}-{project.root.name}"
    directory = project.builds / repository / "1"
    plain = plain_build(sandbox, directory, f"{repository}-plain:1")

    ours, theirs = in_turn(runs, lambda: sandbox.builder(project, "build", "chat"), plain)
    yield Row("`builder build`, nothing changed", ours, "plain build, cached", theirs, 0.35, RATIO)

    ours, theirs = in_turn(runs, changing(sandbox, project), _copying(sandbox, repository))
    yield Row("`builder build`, one mod file changed", ours, "plain build that copies it", theirs, 2.5, RATIO)

    ours, theirs = in_turn(runs, lambda: sandbox.builder(project, "rollback", "chat"), plain)
    yield Row("`builder rollback`", ours, "building the old one again, cached", theirs, 0.120)


def plain_build(sandbox: Sandbox, directory: Path, tag: str) -> Action:
    """Returns an action that runs `docker buildx build` on a build directory, without ``builder``."""
    args = json.loads((directory / "bake.json").read_text(encoding="utf-8"))["target"]["image"]["args"]
    argv = [*sandbox.endpoint.buildx, "build", "--provenance=false", "-t", tag, "."]
    argv += [f"--build-arg={name}={value}" for name, value in args.items()]
    return lambda: sandbox.run(argv, directory)


def changing(sandbox: Sandbox, project: Project) -> Callable[[], None]:
    """Returns an action that changes the file of the project's mod and builds."""
    version = count(2)

    def change() -> None:
        projects.write(project.root / "mods/template/chat.jinja", f"version {next(version)}\n")
        sandbox.builder(project, "build", "chat")

    return change


def _copying(sandbox: Sandbox, repository: str) -> Callable[[], None]:
    version = count(2)
    folder = sandbox.root / f"{repository}-copying"

    def copy() -> None:
        projects.write(folder / "chat.jinja", f"plain version {next(version)}\n")
        projects.write(folder / "Dockerfile", f"FROM {repository}:1\nCOPY chat.jinja /workspace/chat.jinja\n")
        argv = [*sandbox.endpoint.buildx, "build", "--provenance=false", "-t", f"{repository}-plain:2", "."]
        sandbox.run(argv, folder)

    return copy
