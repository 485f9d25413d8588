"""Which mods are baked, and where the files say so."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from builder.base.errors import FileProblemsError, UsageError
from builder.base.project import Project
from builder.building import mod_choice
from builder.definitions import image, recipe
from builder.definitions.image import ImageDefinition
from builder.definitions.recipe import Recipe
from tests import projects

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def project(tmp_path: Path) -> Project:
    project = projects.make(tmp_path)
    projects.add_mod(tmp_path, "other", "true\n", {})
    return project


def define(project: Project, name: str, mods: str) -> ImageDefinition:
    text = f"{projects.IMAGE.format(repository=name)}mods: {mods}\n"
    projects.write(project.dockerfiles / name / "image.yaml", text)
    projects.write(project.dockerfiles / name / "Dockerfile.j2", projects.DOCKERFILE)
    return image.load_image(project, name, "linux/arm64")


def asking(project: Project, *mods: str) -> Recipe:
    projects.add_recipe(project.root, "r", "small", "Org/M", list(mods))
    return recipe.load_recipe(project, project.recipes / "r.yaml")


def test_each_is_baked_once_on_the_lowest_image_that_asks_for_it(project: Project) -> None:
    chain = (define(project, "low", "[mods/other]"), define(project, "high", "[]"))
    loaded = mod_choice.load_mods(project, chain, asking(project, "mods/other", "mods/template"), ("template",))
    assert [[mod.name for mod in mods] for mods in loaded] == [["other"], ["template"]]


def test_unknown_ones_are_told_with_their_places_in_all_files(project: Project) -> None:
    chain = (define(project, "low", "[template, mods/tmplate]"), define(project, "high", "\n  - nothing"))
    with pytest.raises(FileProblemsError) as caught:
        mod_choice.load_mods(project, chain, asking(project, "mods/othr"), ("typed",))
    assert caught.value.message.splitlines() == [
        "dockerfiles/high/image.yaml:7:5: no mod `nothing` in mods/; there are: other, template",
        "dockerfiles/low/image.yaml:6:18: no mod `tmplate` in mods/; did you mean template?",
        "recipes/r.yaml:5:8: no mod `othr` in mods/; did you mean other?",
    ]


def test_one_that_was_typed_has_no_place(project: Project) -> None:
    with pytest.raises(UsageError) as caught:
        mod_choice.load_mods(project, (define(project, "low", "[other]"),), None, ("templat",))
    assert caught.value.message == (
        f"no mod `templat` in {project.mods} (a mod is a folder with a run.sh or a mod.yaml, or a zip of one)"
    )
    assert caught.value.hint == "did you mean template?"


LOOP = "nohup sh -c 'while sleep 60; do sync; echo 3 > /proc/sys/vm/drop_caches; done' > /dev/null 2>&1 &\n"


def test_one_of_a_recipe_that_an_image_cannot_keep_is_left_out_with_a_word(project: Project) -> None:
    projects.add_mod(project.root, "loop", LOOP, {})
    projects.add_mod(project.root, "words", "echo 'nothing to do any more'\n", {})
    chain, wanted = (define(project, "low", "[other]"),), asking(project, "mods/loop", "mods/words", "template")
    loaded = mod_choice.load_mods(project, chain, wanted)
    assert [[mod.name for mod in mods] for mods in loaded] == [["other", "template"]]
    loop, words = mod_choice.left_out(project, wanted, loaded)
    assert loop.startswith("mod loop is left out: run.sh writes /proc/sys/vm/drop_caches and starts a process")
    assert words == (
        "mod words is left out: run.sh only prints text, which no image keeps. "
        "In its place: leave the mod out, as it changes nothing"
    )


def test_only_a_bare_script_of_a_recipe_is_left_out(project: Project) -> None:
    projects.add_mod(project.root, "loop", LOOP, {})
    projects.add_mod(project.root, "more", f"{LOOP}cp chat.jinja $WORKSPACE_DIR\n", {"chat.jinja": "x"})
    projects.add_mod(project.root, "said", LOOP, {}, "description: x\nrun: run.sh\n")
    wanted = asking(project, "mods/loop", "mods/more", "mods/said")
    chain = (define(project, "low", "[]"),)
    loaded = mod_choice.load_mods(project, chain, wanted, ("loop",))
    assert [[mod.name for mod in mods] for mods in loaded] == [["loop", "more", "said"]]
    assert list(mod_choice.left_out(project, wanted, loaded)) == []
