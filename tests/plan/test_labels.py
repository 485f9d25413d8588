"""What an image says of itself is read back as it was."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from builder.base.project import Project
from builder.definitions import recipe as recipes
from builder.definitions.image import ImageDefinition
from builder.definitions.mod import Mod
from builder.definitions.recipe import Recipe
from builder.lock.model import BasePin, GitPin, LockedPackage, Pins, PullPin, PythonPin, Version, WheelPin
from builder.plan import making
from builder.plan.making import ImageLabels
from tests import projects

if TYPE_CHECKING:
    from pathlib import Path


PULL = PullPin(7, "c" * 40, "d" * 64)
PINS = {
    "tf5": Pins(
        base=BasePin("nvidia/cuda:13", "sha256:" + "a" * 64),
        sources={
            "vllm": GitPin("https://x/v.git", "main", "b" * 40, "0.19.1", "2026-11-20T12:00:00Z", (PULL,)),
            "flashinfer": WheelPin("flashinfer==0.6.7", "0.6.7", "e" * 40),
        },
        python=PythonPin(("ray",), "", (LockedPackage("ray", "2", ("f" * 64,)),)),
    ),
    "dflash": Pins(),
}


def definition() -> ImageDefinition:
    return ImageDefinition("dflash", "vllm-node-dflash", "x", "linux/arm64", None, "tf5", {}, None, {}, (), "", {})


def write(recipe: Recipe | None, models: tuple[str, ...], mods: tuple[Mod, ...] = ()) -> dict[str, str]:
    versions = {"vllm": Version("0.19.1", "b" * 40), "flashinfer": Version("0.6.7")}
    return making.write_labels(
        definition(), "sha256:1", mods, versions, "base", "2026-11-20T12:00:00Z", recipe, models, PINS
    )


def test_all_of_it_comes_back_but_the_packages(tmp_path: Path) -> None:
    text = "name: q\nmodel: Org/M\nmodel_revision: r1\ncontainer: vllm-node-dflash\ncommand: vllm serve\n"
    projects.write(tmp_path / "recipes/q.yaml", text)
    recipe = recipes.load_recipe(Project(tmp_path), tmp_path / "recipes/q.yaml")
    message = making.read_labels(write(recipe, ("Org/M", "Org/N")))
    tf5 = PINS["tf5"]
    assert message == ImageLabels(
        repository="vllm-node-dflash",
        definition="dflash",
        input_hash="sha256:1",
        mods={},
        versions={"vllm": Version("0.19.1", "b" * 40), "flashinfer": Version("0.6.7")},
        recipe="recipes/q.yaml",
        revision="r1",
        models=("Org/M", "Org/N"),
        pins={"tf5": Pins(tf5.base, tf5.sources), "dflash": Pins()},
    )


def test_without_a_recipe() -> None:
    message = making.read_labels(write(None, ()))
    assert message
    assert (message.recipe, message.revision, message.models) == (None, None, ())


@pytest.mark.parametrize("label", ["builder.sources", "builder.mods", "builder.pins"])
@pytest.mark.parametrize("value", ["", "{", "7", '["x"]', '{"x": 7'])
def test_other_labels_are_nobodys(label: str, value: str) -> None:
    assert making.read_labels({**write(None, ()), label: value}) is None
    assert making.read_labels({}) is None
