from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from builder.errors import ImageStateError, UsageError
from builder.lock import reading
from builder.lock.model import ImageName, Lock, Model, Pairing, Repository
from builder.project import Project
from builder.serving import image_selection
from tests import locks, projects

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return projects.make(tmp_path)


def find(project: Project, text: str = "chat") -> tuple[str, str]:
    selection = image_selection.select(project, reading.read(project.lock), text)
    return str(selection.image), selection.reason


@pytest.mark.parametrize("text", ["chat", locks.RECIPE, locks.MODEL])
def test_the_paired_image_serves_not_the_current_one(project: Project, text: str) -> None:
    locks.write(project, (1, 2, 3), current=3, paired=2)
    assert find(project, text) == ("small:2", "paired")


def test_without_a_pairing_the_current_one_does(project: Project) -> None:
    locks.write(project, (1, 2), current=1)
    assert find(project) == ("small:1", "current")


def test_a_recipe_may_name_a_number(project: Project) -> None:
    locks.write(project, (1, 2, 3), current=3, paired=2)
    projects.add_recipe(project.root, "chat", "small:1", locks.MODEL, [])
    assert find(project) == ("small:1", "numbered")
    projects.add_recipe(project.root, "chat", "small:9", locks.MODEL, [])
    with pytest.raises(ImageStateError, match=r"images\.lock has no image small:9"):
        find(project)


def test_a_pairing_by_another_recipe_from_another_repository_is_not_this_one_s(project: Project) -> None:
    locks.write(project, (1, 2), current=1, paired=2)
    lock = reading.read(project.lock)
    other = Repository(2, 1, numbers={1: locks.numbered()})
    pairing = Pairing(ImageName("other", 1), "recipes/other.yaml")
    lock = Lock(images={**lock.images, "other": other}, models={locks.MODEL: Model(pairing)})
    selection = image_selection.select(project, lock, "chat")
    assert (str(selection.image), selection.reason) == ("small:1", "current")
    by_this = replace(lock, models={locks.MODEL: Model(replace(pairing, recipe=locks.RECIPE))})
    assert str(image_selection.select(project, by_this, "chat").image) == "other:1"


def test_what_was_never_built_says_how_to(project: Project) -> None:
    with pytest.raises(ImageStateError, match="no image of small has been built yet") as caught:
        find(project)
    assert caught.value.hint == "`builder build recipes/chat.yaml`"


@pytest.mark.parametrize("recipe", [None, "recipes/gone.yaml"])
def test_a_model_whose_recipe_is_not_there_cannot_be_served(project: Project, recipe: str | None) -> None:
    lock = Lock(
        images={"small": Repository(2, 1, numbers={1: locks.numbered()})},
        models={locks.MODEL: Model(Pairing(ImageName("small", 1), recipe))},
    )
    with pytest.raises(UsageError, match="how to serve Org/Model-1B is not known"):
        image_selection.select(project, lock, locks.MODEL)


def test_a_definition_is_nothing_to_serve(project: Project) -> None:
    with pytest.raises(UsageError, match="`small` is an image definition"):
        find(project, "small")
