"""This machine, as `init` tells of it: chip, memory, engine, and what was made here before."""

from __future__ import annotations

import platform
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from builder import humanize, proc_files
from builder.definitions.recipes import recipe as recipes
from builder.diagnosis import Diagnosis
from builder.engine.client import versions
from builder.errors import BuilderError
from builder.events import ignore
from builder.migration import checkout, images
from builder.nodes import spark_facts
from builder.workspace import open_workspace

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from builder.nodes.spark_facts import SparkFacts
    from builder.project import Project
    from builder.workspace import Workspace

_CHECKOUT = "spark-vllm-docker"
_TOTAL = "MemTotal"


def findings(project: Project, environ: Mapping[str, str], proc: Path) -> Iterator[Diagnosis]:
    """Tells what is here, one after the other as it is looked up."""
    spark = spark_facts.read(environ, proc)
    yield _machine(spark, proc)
    try:
        workspace = open_workspace(project, environ, ignore)
    except BuilderError as error:
        yield Diagnosis("engine", "warning", error.message, error.hint)
        return
    engine = _engine(workspace)
    yield engine
    yield from _checkouts(workspace)
    if engine.verdict == "ok":
        yield from _adoptable(workspace)


def _machine(spark: SparkFacts | None, proc: Path) -> Diagnosis:
    if spark is None:
        total = proc_files.sizes(proc_files.text(proc / proc_files.MEMORY)).get(_TOTAL)
        memory = f", {humanize.size(total)} of memory" if total else ""
        return Diagnosis("machine", "ok", f"no DGX Spark: {platform.machine()}{memory}")
    total = spark.sizes.get(_TOTAL)
    memory = f", {humanize.size(total)} of memory" if total else ""
    if not spark.compute_capability:
        silence = f"nvidia-smi does not tell its compute capability: {spark.silence}"
        return Diagnosis("machine", "warning", f"DGX Spark: GB10{memory}; {silence}", "`builder doctor` tells more")
    driver = f", driver {spark.driver}" if spark.driver else ""
    return Diagnosis(
        "machine", "ok", f"DGX Spark: GB10 (sm_{spark.compute_capability.replace('.', '')}){driver}{memory}"
    )


def _engine(workspace: Workspace) -> Diagnosis:
    try:
        engine = versions.require_supported(workspace.engine)
    except BuilderError as error:
        return Diagnosis("engine", "warning", error.message, error.hint)
    return Diagnosis("engine", "ok", f"Docker {engine.engine}, buildx {engine.buildx} at {workspace.engine.host}")


def _checkouts(workspace: Workspace) -> Iterator[Diagnosis]:
    """The checkouts where they usually are: in the user's home, and beside the project."""
    places = [Path(workspace.environment.get("HOME") or "/"), workspace.project.root.parent]
    for folder in dict.fromkeys((place / _CHECKOUT).resolve() for place in places):
        with suppress(BuilderError, OSError):
            there = checkout.find(folder)
            parts = f"{humanize.counted(len(there.recipes), 'recipe')}, {humanize.counted(len(there.mods), 'mod')}"
            yield Diagnosis(_CHECKOUT, "ok", f"{folder}: {parts}", f"`builder migrate {folder}` takes it over")


def _adoptable(workspace: Workspace) -> Iterator[Diagnosis]:
    every = [recipe for _, recipe in recipes.readable(workspace.project)]
    with suppress(BuilderError):
        for image in images.adoptable(workspace, every):
            message = f"{image.tag} ({humanize.size(image.size)}) has no number"
            yield Diagnosis("images", "ok", message, f"`builder adopt {image.tag}` gives it one, as it is")
        yield from images.untagged_findings(workspace, every)
