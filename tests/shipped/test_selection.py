"""The files that a project gets, by what it is for."""

from __future__ import annotations

import pytest

from builder.definitions import image
from builder.definitions.mods import mod_reading
from builder.definitions.recipes import finding
from builder.lock import reading
from builder.shipped import selection, source
from builder.shipped.selection import Contents
from tests.projects import REPOSITORY_ROOT

SHIPPED = source.project()


def test_all_is_everything_that_comes_with_the_program() -> None:
    every = selection.select("all")
    assert every.definitions == image.names(SHIPPED)
    assert every.mods == mod_reading.names(SHIPPED)
    assert {finding.name_of(file) for file in every.recipes} == set(finding.names(SHIPPED))
    assert every.pins.pins == reading.read(SHIPPED.lock).pins


def test_the_cpu_and_the_spark_share_no_definition_and_have_all_of_them_together() -> None:
    cpu, spark = selection.select("cpu"), selection.select("spark")
    assert not set(cpu.definitions) & set(spark.definitions)
    assert {*cpu.definitions, *spark.definitions} == set(image.names(SHIPPED))
    assert "cpu" in cpu.definitions
    assert "node" in spark.definitions


@pytest.mark.parametrize("contents", selection.CONTENTS)
def test_a_selection_has_all_that_its_recipes_and_definitions_name(contents: Contents) -> None:
    selected = selection.select(contents)
    assert "dockerfiles/_parts/bake-mod.sh" in selected.files
    for name in selected.definitions:
        definition = image.load(SHIPPED, name, "linux/arm64")
        assert definition.parent is None or definition.parent in selected.definitions
        assert set(definition.mods) <= set(selected.mods)
    for mod in selected.mods:
        assert any(path.startswith(f"mods/{mod}/") for path in selected.files)


def test_minimal_has_neither_definitions_nor_recipes() -> None:
    selected = selection.select("minimal")
    assert (selected.definitions, selected.mods, selected.recipes) == ((), (), ())
    assert not any(path.startswith(("mods/", "recipes/", "scripts/")) for path in selected.files)


def test_images_that_were_built_in_the_checkout_stay_there() -> None:
    selected = selection.select("all").pins
    assert selected.models == {}
    assert not any(repository.numbers for repository in selected.images.values())


def test_what_takes_least_comes_first() -> None:
    assert selection.select("spark").recipes[0] == "recipes/qwen3.5-122b-node.yaml"


def test_git_treats_a_project_as_it_does_this_repository() -> None:
    own = (REPOSITORY_ROOT / ".gitattributes").read_bytes().splitlines()
    assert set(selection.select("minimal").files[".gitattributes"].content.splitlines()) <= set(own)
