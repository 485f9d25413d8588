"""The everyday commands beside what a person would type instead."""

from __future__ import annotations

import json
import sys
from itertools import count
from typing import TYPE_CHECKING

from benchmarks import many_images
from benchmarks.measuring import RATIO, Action, Row, Table, in_turn, run
from benchmarks.stage import BUILDER, DEBIAN, Stage
from builder.project import Project
from tests import projects

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

LISTED = 200


def tables(stage: Stage, runs: int) -> Iterator[Table]:
    """Starting up, listing, and on a small and a large image building, changing a mod and rolling back."""
    yield Table(
        "Starting up and listing",
        f"A new process each time. The list has {LISTED} numbered images, no two of the same content.",
        [*_starting(stage, runs), *_listing(stage, runs)],
    )
    for name, base in (("a small image", DEBIAN), ("the cpu image (vLLM, 5 GB)", stage.cpu())):
        yield Table(
            f"Build, change and roll back {name}",
            "One mod on the base. The plain builds are `docker buildx build` with the build directory's own "
            "Dockerfile, everything in the cache; and of two lines that copy the changed file onto the image before, "
            "and prove nothing.",
            list(_builds(stage, stage.project("small" if base == DEBIAN else "large", base), runs)),
        )


def _starting(stage: Stage, runs: int) -> Iterator[Row]:
    def start(*argv: str) -> Action:
        return lambda: run(argv, stage.root)

    top, command, bare = in_turn(
        runs, start(BUILDER, "--help"), start(BUILDER, "build", "--help"), start(sys.executable, "-c", "pass")
    )
    yield Row("`builder --help`", top, "`python -c pass`", bare, reach=0.070)
    yield Row("`builder build --help`", command, "`python -c pass`", bare, reach=0.095)


def _listing(stage: Stage, runs: int) -> Iterator[Row]:
    project = many_images.make(stage, "listed", LISTED, models=20)
    repository = f"{stage.prefix}-listed"
    ours, theirs = in_turn(
        runs,
        lambda: stage.builder(project, "list"),
        lambda: stage.do([stage.docker, "image", "ls", repository]),
    )
    yield Row("`builder list`", ours, "`docker image ls`", theirs, reach=0.150)


def _builds(stage: Stage, project: Project, runs: int) -> Iterator[Row]:
    stage.builder(project, "build", "chat")
    repository = f"{stage.prefix}-{project.root.name}"
    directory = project.builds / repository / "1"
    plain = plain_build(stage, directory, f"{repository}-plain:1")

    ours, theirs = in_turn(runs, lambda: stage.builder(project, "build", "chat"), plain)
    yield Row("`builder build`, nothing changed", ours, "plain build, cached", theirs, 0.6, RATIO)

    ours, theirs = in_turn(runs, changing(stage, project), _copying(stage, repository))
    yield Row("`builder build`, one mod file changed", ours, "plain build that copies it", theirs, 1.5, RATIO)

    ours, theirs = in_turn(runs, lambda: stage.builder(project, "rollback", "chat"), plain)
    yield Row("`builder rollback`", ours, "building the old one again, cached", theirs, 0.250)


def plain_build(stage: Stage, directory: Path, tag: str) -> Action:
    """`docker buildx build` of a build directory, without ``builder``."""
    args = json.loads((directory / "bake.json").read_text(encoding="utf-8"))["target"]["image"]["args"]
    argv = [*stage.endpoint.buildx, "build", "--provenance=false", "-t", tag, "."]
    argv += [f"--build-arg={name}={value}" for name, value in args.items()]
    return lambda: stage.do(argv, directory)


def changing(stage: Stage, project: Project) -> Callable[[], None]:
    """Changes the file of the project's mod, and builds."""
    version = count(2)

    def change() -> None:
        projects.write(project.root / "mods/template/chat.jinja", f"version {next(version)}\n")
        stage.builder(project, "build", "chat")

    return change


def _copying(stage: Stage, repository: str) -> Callable[[], None]:
    version = count(2)
    folder = stage.root / f"{repository}-copying"

    def copy() -> None:
        projects.write(folder / "chat.jinja", f"plain version {next(version)}\n")
        projects.write(folder / "Dockerfile", f"FROM {repository}:1\nCOPY chat.jinja /workspace/chat.jinja\n")
        argv = [*stage.endpoint.buildx, "build", "--provenance=false", "-t", f"{repository}-plain:2", "."]
        stage.do(argv, folder)

    return copy
