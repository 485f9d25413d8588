"""The span of two numbers from their build directories, also where somebody has edited one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from builder.base.events import Message
from builder.base.project import Project
from builder.building import work_folder
from builder.engine.client import Endpoint
from builder.lab.bisect import mixtures, points
from builder.lab.bisect.search import ListPoints, mixed
from builder.numbers.workspace import Workspace
from tests import projects
from tests.lab.bisect.test_search import wheel_plan
from tests.plan.test_making import MAKE_PINS as PINS
from tests.plan.test_making import cpu_plan
from tests.sources import wheelhouse
from tests.sources.git_server import Vllm, served_vllm

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from builder.lab.bisect.mixtures import NumberSpan


PLATFORM = "linux/amd64"


def project(root: Path) -> Project:
    """Two numbers, of which the second one has another version of a package."""
    assert PINS.python
    packages = tuple(
        replace(each, version="5.20.0") if each.name == "transformers" else each for each in PINS.python.packages
    )
    new = cpu_plan(pins=replace(PINS, python=replace(PINS.python, packages=packages)))
    for number, plan in ((1, cpu_plan()), (2, new)):
        work_folder.write_work_folder(root / f"builds/cpu/{number}", plan.files)
    return Project(root)


def test_the_axes_are_read_from_the_build_directories(tmp_path: Path) -> None:
    span = mixtures.span_reader(project(tmp_path), "cpu", PLATFORM)(1, 2)
    assert [(axis.name, axis.units) for axis in span.axes] == [("Python packages", ("package transformers",))]
    change = mixtures.change_of(span, "package transformers").splitlines()
    assert change[:2] == ["--- cpu:1/python/packages.txt", "+++ cpu:2/python/packages.txt"]
    assert [line.split()[0] for line in change if "==" in line] == ["-transformers==5.19.0", "+transformers==5.20.0"]


def test_a_build_directory_that_was_edited_or_is_gone_leaves_the_whole_image(tmp_path: Path) -> None:
    own = project(tmp_path)
    (tmp_path / "builds/cpu/2/python/packages.txt").write_text("transformers>=5\n", encoding="utf-8")
    assert [axis.name for axis in mixtures.span_reader(own, "cpu", PLATFORM)(1, 2).axes] == [mixtures.WHOLE]
    (tmp_path / "builds/cpu/1/plan.json").unlink()
    assert [axis.name for axis in mixtures.span_reader(own, "cpu", PLATFORM)(1, 2).axes] == [mixtures.WHOLE]


def test_a_recipe_that_changed_is_the_cheapest_axis_of_the_first_number(tmp_path: Path) -> None:
    before = "name: a\ncommand: vllm serve\n"
    after = "name: a\ncommand: vllm serve --x\n"
    span = mixtures.span_reader(project(tmp_path), "cpu", PLATFORM, after, (1, before))(1, 2)
    assert [axis.name for axis in span.axes] == ["recipe", "Python packages"]


def test_the_flags_of_a_command_are_units_whatever_lines_they_are_on(tmp_path: Path) -> None:
    before = "name: a\ncommand: |\n  vllm serve m --port 1 \\\n    --first\nenv: {}\n"
    after = "name: a\ncommand: |\n  vllm serve m --port 2 \\\n    --first \\\n    --lossy -x 1\nenv: {A: b}\n"
    span = mixtures.span_reader(project(tmp_path), "cpu", PLATFORM, after, (1, before))(1, 2)
    assert span.axes[0].units == ("recipe, --port", "recipe, --lossy", "recipe, -x", "recipe, env")
    text = span.recipe_text(mixed(1, 2, frozenset({"recipe, --lossy"})))
    assert text == "name: a\ncommand: |\n  vllm serve m --port 1 --first --lossy\nenv: {}\n"


# The points of vLLM as a wheel: releases first, then the commits between two of them, in the order of a real git
# server.

SOURCE = """\
repository: other
description: another
platform: host
base: x:1
sources: {{vllm: {{git: "{}", ref: main}}}}
"""
INDEX = "https://example.org/{}/cu130"


@pytest.fixture
def vllm(tmp_path: Path) -> Iterator[Vllm]:
    with served_vllm(tmp_path) as served:
        yield served


def span_of(root: Path, old: tuple[str, str, str], new: tuple[str, str, str]) -> NumberSpan:
    """Two numbers with these wheels: version, commit, index."""
    for number, wheel in enumerate((old, new), start=1):
        work_folder.write_work_folder(root / f"builds/cpu/{number}", wheel_plan(*wheel).files)
    return mixtures.span_reader(Project(root), "cpu", PLATFORM)(1, 2)


def workspace(root: Path, url: str, index: str = "") -> tuple[Workspace, list[str]]:
    """A project with a definition that takes vLLM from ``url``, and what is said."""
    projects.write(root / "dockerfiles/other/image.yaml", SOURCE.format(url))
    projects.write(root / "dockerfiles/other/Dockerfile.j2", "FROM {{ base }}\n")
    said: list[str] = []

    def report(event: object) -> None:
        said.extend([event.text] if isinstance(event, Message) else [])

    environ = {"PIP_INDEX_URL": index}
    return Workspace(Project(root), Endpoint("unix:///nowhere", (), "a test"), environ, report), said


def listed(made: Workspace, span: NumberSpan, after: str = "", before: str = "") -> tuple[str, ...]:
    return points.row(made, span, ListPoints(1, 2, "vllm", after, before)).points


@pytest.mark.slow
def test_between_two_neighbouring_releases_are_the_commits(tmp_path: Path, vllm: Vllm) -> None:
    wheelhouse.make_wheel(tmp_path / "files", "vllm", "0.19.1")
    wheelhouse.make_simple_index(tmp_path / "files")
    history = vllm.history
    history.repository.git("tag", "v0.20.0", history.main)
    span = span_of(tmp_path, ("0.19.0", history.v0_19_0, ""), ("0.20.0", history.main, ""))
    with wheelhouse.serving(tmp_path / "files") as served:
        made, said = workspace(tmp_path, vllm.url, f"{served.url}/simple")
        assert listed(made, span) == ("0.19.1",)
        assert listed(made, span, before="0.19.1") == ()
        commits = listed(made, span, after="0.19.1")
    assert len(commits) == 5
    assert listed(made, span, after=commits[0], before=commits[2]) == (commits[1],)
    assert listed(made, span, after=commits[0], before=commits[1]) == ()
    assert not any("not known" in each for each in said)


@pytest.mark.slow
def test_between_two_commits_no_release_is_asked_for(tmp_path: Path, vllm: Vllm) -> None:
    first, last = vllm.history.v0_19_0, vllm.history.main
    old = (f"0.19.1.dev1+g{first[:9]}.cu130", first, INDEX.format(first))
    span = span_of(tmp_path, old, (f"0.19.2.dev6+g{last[:9]}.cu130", last, INDEX.format(last)))
    made, _ = workspace(tmp_path, vllm.url, "http://127.0.0.1:9/simple")
    assert listed(made, span)[0] == vllm.history.v0_19_1
    assert points.index(made.project, span) == INDEX.format("COMMIT")
    hint = points.to_stay_on(made.project, span, "trial", first)
    assert f'{{wheel: vllm, index: "{INDEX.format(first)}"}}` under `sources`' in hint


@pytest.mark.slow
def test_without_the_repository_a_fault_lies_between_two_releases(tmp_path: Path, vllm: Vllm) -> None:
    span = span_of(tmp_path, ("0.19.0", "ab" * 20, ""), ("0.20.0", "cd" * 20, ""))
    wheelhouse.make_wheel(tmp_path / "files", "vllm", "0.19.0")
    wheelhouse.make_simple_index(tmp_path / "files")
    with wheelhouse.serving(tmp_path / "files") as served:
        made, said = workspace(tmp_path, vllm.url.replace("vllm.git", "gone.git"), f"{served.url}/simple")
        assert listed(made, span) == ()
    assert [each.partition(":")[0] for each in said] == ["vllm"]
    hint = points.to_stay_on(made.project, span, "trial", "0.19.0")
    assert hint == "`builder lock trial --update vllm=0.19.0` stays on that release"


@pytest.mark.slow
def test_index_and_repository_are_the_projects_own_where_it_names_some(tmp_path: Path) -> None:
    span = span_of(tmp_path, ("0.19.0", "ab" * 20, ""), ("0.20.0", "cd" * 20, ""))
    project = Project(tmp_path)
    assert points.repository(project) == "https://github.com/vllm-project/vllm.git"
    assert points.index(project, span) == "https://wheels.vllm.ai/COMMIT"
    projects.write(tmp_path / "builder.yaml", "commit_wheels: https://mirror.example/COMMIT/cu129\n")
    assert points.index(project, span) == "https://mirror.example/COMMIT/cu129"
    made, _ = workspace(tmp_path, "https://example.org/vllm.git")
    assert points.repository(made.project) == "https://example.org/vllm.git"
