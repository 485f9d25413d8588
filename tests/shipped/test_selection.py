"""The files that a project gets, by what it is for."""

from __future__ import annotations

import pytest

from builder.definitions import image, recipe
from builder.definitions.mod import mod_names
from builder.lock import lock_file
from builder.moving import shipped
from builder.moving.shipped import Contents
from tests.projects import REPOSITORY_ROOT

SHIPPED = shipped.shipped_project()


def test_all_is_everything_that_comes_with_the_program() -> None:
    every = shipped.select("all")
    assert every.definitions == image.definition_names(SHIPPED)
    assert every.mods == mod_names(SHIPPED)
    assert {recipe.name_of(file) for file in every.recipes} == set(recipe.recipe_names(SHIPPED))
    assert every.pins.pins == lock_file.read_lock(SHIPPED.lock).pins


def test_the_cpu_and_the_spark_share_no_definition_and_have_all_of_them_together() -> None:
    cpu, spark = shipped.select("cpu"), shipped.select("spark")
    assert not set(cpu.definitions) & set(spark.definitions)
    assert {*cpu.definitions, *spark.definitions} == set(image.definition_names(SHIPPED))
    assert "cpu" in cpu.definitions
    assert "node" in spark.definitions


@pytest.mark.parametrize("contents", shipped.CONTENTS)
def test_a_selection_has_all_that_its_recipes_and_definitions_name(contents: Contents) -> None:
    selected = shipped.select(contents)
    assert "dockerfiles/_parts/bake-mod.sh" in selected.files
    for name in selected.definitions:
        definition = image.load_image(SHIPPED, name, "linux/arm64")
        assert definition.parent is None or definition.parent in selected.definitions
        assert set(definition.mods) <= set(selected.mods)
    for mod in selected.mods:
        assert any(path.startswith(f"mods/{mod}/") for path in selected.files)


def test_minimal_has_neither_definitions_nor_recipes() -> None:
    selected = shipped.select("minimal")
    assert (selected.definitions, selected.mods, selected.recipes) == ((), (), ())
    assert not any(path.startswith(("mods/", "recipes/", "scripts/")) for path in selected.files)


def test_images_that_were_built_in_the_checkout_stay_there() -> None:
    selected = shipped.select("all").pins
    assert selected.models == {}
    assert not any(repository.numbers for repository in selected.images.values())


def test_what_takes_least_comes_first() -> None:
    assert shipped.select("spark").recipes[0] == "recipes/qwen3.5-122b-node.yaml"


def test_git_treats_a_project_as_it_does_this_repository() -> None:
    own = (REPOSITORY_ROOT / ".gitattributes").read_bytes().splitlines()
    assert set(shipped.select("minimal").files[".gitattributes"].content.splitlines()) <= set(own)
