"""A fault in one commit of vLLM, found through the images of others: first the day, then the commit inside it."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from builder.engine import images, transfer
from tests import projects, registries
from tests.commands import bisect_trials, commit_wheels
from tests.commands.commit_wheels import PLANTED

if TYPE_CHECKING:
    from pathlib import Path

    from builder.engine.client import Endpoint
    from tests.commands.commit_wheels import WheelPlanting
    from tests.registries import Registry


NAME = "keeper/nightly"
# The commit of each day's image: the fault comes on the seventh day, which brings 39 commits.
DAYS = {f"202609{day:02}": 40 * day + 7 for day in (4, 5, 6, 7, 8)}
IMAGE = """\
repository: {repository}
description: an image of others
platform: host
base: {base}
sources: {{vllm: base}}
"""


def publish(planting: WheelPlanting, endpoint: Endpoint, registry: Registry, folder: Path) -> None:
    """Builds the image of each day, with the wheel of its commit, and gives it to the registry."""
    for day, place in DAYS.items():
        context = folder / day
        wheel = planting.wheel(place)
        projects.write(
            context / "Dockerfile",
            f"FROM {planting.repository}-base:1\nCOPY {wheel.name} /tmp/\n"
            f"RUN uv pip install --no-cache --system --break-system-packages --no-index /tmp/{wheel.name}\n"
            # What no label says is read in the image that was tried.
            + (
                f"LABEL org.keeper.vllm-hash={planting.commits[place][:12]}\n"
                if place < PLANTED
                else "RUN touch /new\n"
            ),
        )
        shutil.copy2(wheel, context)
        name = f"{registry.address}/{NAME}:{day}"
        subprocess.run(["docker", "build", "-q", "-t", name, context], check=True, capture_output=True)
        try:
            transfer.push_image(endpoint, name, {}, lambda _: None)
        finally:
            images.remove_image(endpoint, name)


DOCKERFILE = """\
{% import "_parts/metadata.j2" as parts_metadata %}
{% import "_parts/mods.j2" as parts_mods %}
FROM {{ base }} AS base
{{ parts_metadata.write(workspace) }}
{{ parts_mods.bake(mods, workspace, "base") }}
"""
ARGUMENTS = ("bisect", "trial", "--good", "1", "--bad", "2", "--json", "--run")


@pytest.mark.engine
@pytest.mark.long
def test_the_commit_inside_the_day(endpoint: Endpoint, bisect_base: str, tmp_path: Path) -> None:
    """Killed after each answer, on the days and on the commits."""
    with (
        commit_wheels.planting(endpoint, tmp_path, bisect_base) as planting,
        registries.registry(tmp_path / "theirs") as theirs,
    ):
        publish(planting, endpoint, theirs, tmp_path)
        folder = planting.project.root / "dockerfiles/trial"
        projects.write(folder / "Dockerfile.j2", DOCKERFILE)
        for day in (min(DAYS), max(DAYS)):
            base = f"{theirs.address}/{NAME}:{day}"
            projects.write(folder / "image.yaml", IMAGE.format(repository=planting.repository, base=base))
            planting.builder("build", "trial")
        arguments = [*ARGUMENTS, str(planting.judge)]
        answer, kills = bisect_trials.run_killed(planting.project, arguments, planting.environ, tmp_path)
        (culprit,) = answer["culprits"]
        assert (culprit["axis"], culprit["good"], culprit["bad"]) == (
            "base image", planting.commits[PLANTED - 1], planting.commits[PLANTED]
        )  # fmt: skip
        assert (culprit["title"], culprit["between"]) == ("[Core] Cache `answers`", [])
        assert "--update base=20260906` keeps the image before 20260907" in culprit["now"]
        assert answer["steps"] <= 1 + 2 + 6
        assert kills >= answer["steps"]

        # Something else that the same day brought: no commit of vLLM is blamed.
        projects.write(planting.judge, '#!/bin/sh\ndocker run --rm "$BUILDER_IMAGE" test ! -e /new\n')
        (culprit,) = json.loads(planting.builder(*arguments))["culprits"]
        assert (culprit["good"], culprit["bad"], culprit["title"]) == ("20260906", "20260907", None)
        assert "a candidate with the vLLM of 20260907 passes" in culprit["now"]
        assert bisect_trials.left_over(endpoint, planting.project) == []
        registries.forget(endpoint, theirs.address)
