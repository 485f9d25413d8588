"""A checkout's recipes and mods, as they lie in its folder; nothing outside of it is read."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from builder.base.errors import FileProblemsError, UsageError
from builder.moving import checkout
from tests import projects
from tests.migration import checkouts


def test_everything_in_it_has_its_name(tmp_path: Path) -> None:
    read = checkout.find_checkout(checkouts.make(tmp_path / "theirs"))
    assert set(read.recipes) == {"chat", "4x/large"}
    assert set(read.mods) == {"template", "unused"}


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no checkout of spark-vllm-docker"):
        checkout.find_checkout(tmp_path)
    with pytest.raises(UsageError, match="is no folder"):
        checkout.find_checkout(tmp_path / "missing")


@pytest.mark.parametrize("text", ["4x/large", "large", "recipes/4x/large.yaml", "large.yaml"])
def test_a_recipe_is_named_as_the_launcher_takes_it(tmp_path: Path, text: str) -> None:
    assert checkout.choose_checkout(checkout.find_checkout(checkouts.make(tmp_path)), [text]) == ("4x/large",)


def test_a_name_that_is_not_there_or_that_two_have(tmp_path: Path) -> None:
    folder = checkouts.make(tmp_path)
    checkouts.add_recipe(folder, "8x/large")
    read = checkout.find_checkout(folder)
    with pytest.raises(UsageError, match="names several recipes: 4x/large, 8x/large"):
        checkout.choose_checkout(read, ["large"])
    with pytest.raises(UsageError, match="has no recipe `chta`") as raised:
        checkout.choose_checkout(read, ["chta"])
    assert raised.value.hint == "did you mean chat?"


def test_mods_are_found_as_recipes_name_them(tmp_path: Path) -> None:
    folder = checkouts.make(tmp_path / "theirs")
    projects.write(folder / "extra/second/run.sh", "true\n")
    projects.write(tmp_path / "outside/run.sh", "true\n")
    read = checkout.find_checkout(folder)
    for entry in ("mods/template", "./mods/template/", "template"):
        path = checkout.mod_at(read, entry)
        assert path is not None
        assert path.name == "template"
    assert checkout.mod_at(read, "extra/second") == folder / "extra/second"
    assert checkout.mod_at(read, "../outside") is None
    assert checkout.mod_at(read, "mods/nowhere") is None


def test_a_zip_of_a_mod_is_read_as_its_files(tmp_path: Path) -> None:
    folder = checkouts.make(tmp_path)
    with zipfile.ZipFile(folder / "mods/packed.zip", "w") as archive:
        archive.writestr("packed/run.sh", "true\n")
        archive.writestr("packed/mod.yaml", "run: run.sh\n")
    read = checkout.find_checkout(folder)
    assert [file.path for file in checkout.read_mod(read, read.mods["packed"])] == ["mod.yaml", "run.sh"]


def test_a_link_out_of_a_mod_is_not_followed(tmp_path: Path) -> None:
    folder = checkouts.make(tmp_path / "theirs")
    projects.write(tmp_path / "secret", "geheim\n")
    (folder / "mods/template/key").symlink_to(tmp_path / "secret")
    (folder / "mods/template/same").symlink_to("chat.jinja")
    read = checkout.find_checkout(folder)
    with pytest.raises(FileProblemsError, match="key:1:1: a link that leaves the mod's folder") as raised:
        checkout.read_mod(read, read.mods["template"])
    assert len(raised.value.problems) == 1
