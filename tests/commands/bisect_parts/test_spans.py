"""The span of two numbers from their build directories, also where somebody has edited one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from builder.base.project import Project
from builder.building import work_folder
from builder.lab.bisect import points
from builder.lab.bisect.search import mixed
from builder.lab.bisect.session import Bisection, Judge
from tests.plan.test_make import PINS, cpu_plan

if TYPE_CHECKING:
    from pathlib import Path


BISECTION = Bisection(
    "cpu", "cpu", "linux/amd64", (1, 2), Judge("script", "/judge", serves=False), "2026-11-20T22:00:00Z"
)


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
    span = points.span_reader(project(tmp_path), BISECTION, "")(1, 2)
    assert [(axis.name, axis.units) for axis in span.axes] == [("Python packages", ("package transformers",))]
    change = points.change_of(span, "package transformers").splitlines()
    assert change[:2] == ["--- cpu:1/python/packages.txt", "+++ cpu:2/python/packages.txt"]
    assert [line.split()[0] for line in change if "==" in line] == ["-transformers==5.19.0", "+transformers==5.20.0"]


def test_a_build_directory_that_was_edited_or_is_gone_leaves_the_whole_image(tmp_path: Path) -> None:
    own = project(tmp_path)
    (tmp_path / "builds/cpu/2/python/packages.txt").write_text("transformers>=5\n", encoding="utf-8")
    assert [axis.name for axis in points.span_reader(own, BISECTION, "")(1, 2).axes] == [points.WHOLE]
    (tmp_path / "builds/cpu/1/plan.json").unlink()
    assert [axis.name for axis in points.span_reader(own, BISECTION, "")(1, 2).axes] == [points.WHOLE]


def test_a_recipe_that_changed_is_the_cheapest_axis_of_the_first_number(tmp_path: Path) -> None:
    before = "name: a\ncommand: vllm serve\n"
    changed = replace(BISECTION, recipe="recipes/a.yaml", recipe_before=before)
    span = points.span_reader(project(tmp_path), changed, "name: a\ncommand: vllm serve --x\n")(1, 2)
    assert [axis.name for axis in span.axes] == ["recipe", "Python packages"]


def test_the_flags_of_a_command_are_units_whatever_lines_they_are_on(tmp_path: Path) -> None:
    before = "name: a\ncommand: |\n  vllm serve m --port 1 \\\n    --first\nenv: {}\n"
    after = "name: a\ncommand: |\n  vllm serve m --port 2 \\\n    --first \\\n    --lossy -x 1\nenv: {A: b}\n"
    changed = replace(BISECTION, recipe="recipes/a.yaml", recipe_before=before)
    span = points.span_reader(project(tmp_path), changed, after)(1, 2)
    assert span.axes[0].units == ("recipe, --port", "recipe, --lossy", "recipe, -x", "recipe, env")
    text = span.recipe_text(mixed(1, 2, frozenset({"recipe, --lossy"}), {}))
    assert text == "name: a\ncommand: |\n  vllm serve m --port 1 --first --lossy\nenv: {}\n"
