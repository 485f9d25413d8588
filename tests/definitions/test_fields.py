from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from packaging.utils import canonicalize_name

from builder.base.errors import BuilderError, FileProblemsError, UsageError
from builder.definitions import configuration, image, mod, recipe
from builder.definitions.fields import LARGEST_TEXT, canonical, conflict_mark, read_text
from tests import projects

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from builder.base.project import Project


@pytest.mark.parametrize("name", ["vllm", "Flash_QLA", "apache.tvm--ffi", "a-_.b", "A"])
def test_a_name_is_spelled_as_packaging_does(name: str) -> None:
    assert canonical(name) == canonicalize_name(name)


# Links and devices that came with a project: what they lead to is neither built in nor quoted.

SECRET = "[default]\naws_secret_access_key = hunter2\n"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A project beside a file of the user's with a secret."""
    projects.write(tmp_path / "home/credentials", SECRET)
    return projects.make(tmp_path / "project")


def definition(project: Project) -> object:
    return image.load_image(project, "small", "linux/amd64")


@pytest.mark.parametrize(
    ("file", "read"),
    [
        ("dockerfiles/_parts/leak.j2", definition),
        ("dockerfiles/_parts/leak.sh", definition),
        ("dockerfiles/small/Dockerfile.j2", definition),
        ("dockerfiles/small/image.yaml", definition),
        ("dockerfiles/small/image.yaml", lambda project: image.serve_settings(project, "small")),
        ("dockerfiles/small/image.yaml", lambda project: image.of_repository(project, "small")),
        ("recipes/cred.yaml", lambda project: recipe.read_recipe(project, project.recipes / "cred.yaml")),
        ("mods/template/mod.yaml", lambda project: mod.load_mod(project, "template")),
        ("mods/template/run.sh", lambda project: mod.load_mod(project, "template")),
        ("builder.yaml", configuration.load_configuration),
    ],
)
@pytest.mark.parametrize("absolute", [True, False])
def test_a_link_that_leads_out_is_refused_unread(
    project: Project, file: str, read: Callable[[Project], object], absolute: bool
) -> None:
    link, victim = project.root / file, project.root.parent / "home/credentials"
    link.unlink(missing_ok=True)
    link.symlink_to(victim if absolute else os.path.relpath(victim, link.parent))
    with pytest.raises(FileProblemsError, match="a link (that )?leave|a link leads out") as caught:
        read(project)
    assert "hunter2" not in str(caught.value)
    assert "aws_secret" not in str(caught.value)


def test_a_folder_that_leads_out_is_refused(project: Project) -> None:
    elsewhere = project.root.parent / "elsewhere"
    (project.dockerfiles / "small").rename(elsewhere)
    (project.dockerfiles / "small").symlink_to(elsewhere)
    with pytest.raises(FileProblemsError, match="a link leads out"):
        definition(project)


def test_links_within_the_project_are_followed(project: Project) -> None:
    (project.dockerfiles / "_parts/same.j2").symlink_to("mods.j2")
    (project.dockerfiles / "twin").symlink_to("small")
    (project.recipes / "twin.yaml").symlink_to("chat.yaml")
    loaded = image.load_image(project, "twin", "linux/amd64")
    assert loaded.parts["_parts/same.j2"] == loaded.parts["_parts/mods.j2"]
    assert recipe.load_recipe(project, project.recipes / "twin.yaml").model == "Org/Model-1B"


def test_a_recipe_that_the_user_names_may_lie_anywhere(project: Project, tmp_path: Path) -> None:
    (project.recipes / "chat.yaml").rename(tmp_path / "home/mine.yaml")
    (tmp_path / "home/link.yaml").symlink_to("mine.yaml")
    assert recipe.load_recipe(project, tmp_path / "home/link.yaml").model == "Org/Model-1B"


@pytest.mark.parametrize("kind", ["device", "pipe", "too large"])
def test_what_has_no_end_is_not_read(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "image.yaml"
    if kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        with path.open("wb") as file:
            file.truncate(LARGEST_TEXT + 1)
    with pytest.raises(UsageError, match=r"image.yaml cannot be read: (not a regular file|larger than)"):
        read_text(path, "image.yaml")


def test_recipes_are_not_looked_for_on_the_whole_disk(project: Project) -> None:
    (project.recipes / "p").mkdir()
    (project.recipes / "p/root").symlink_to("/")
    (project.recipes / "p/up").symlink_to("..")
    projects.write(project.root / "shared/x.yaml", "name: x\n")
    (project.recipes / "shared").symlink_to("../shared")
    assert recipe.recipe_names(project) == ("chat", "shared/x")


@pytest.mark.parametrize("name", ["x;id #$(id)", "a`id`", "--x", "a\\b", "$HOME"])
def test_a_definition_has_a_name_that_messages_can_propose(project: Project, name: str) -> None:
    (project.dockerfiles / "small").rename(project.dockerfiles / name)
    assert image.definition_names(project) == ()


@pytest.mark.parametrize("name", ["a\x1b]0;x\x07", "a\\b", "a\nb"])
def test_a_recipe_has_a_name_that_the_lock_can_hold(project: Project, name: str) -> None:
    path = project.recipes / f"{name}.yaml"
    (project.recipes / "chat.yaml").rename(path)
    with pytest.raises(BuilderError, match="images.lock cannot hold a name"):
        recipe.load_recipe(project, path)


CONFLICT = "one\n<<<<<<< HEAD\nours\n||||||| base\nboth\n=======\ntheirs\n>>>>>>> branch\n"


@pytest.mark.parametrize(
    ("file", "read"),
    [
        ("dockerfiles/_parts/mods.j2", definition),
        ("dockerfiles/small/Dockerfile.j2", definition),
        ("dockerfiles/small/image.yaml", definition),
        ("recipes/chat.yaml", lambda project: recipe.load_recipe(project, project.recipes / "chat.yaml")),
        ("mods/template/chat.jinja", lambda project: mod.load_mod(project, "template")),
        ("mods/template/run.sh", lambda project: mod.load_mod(project, "template")),
        ("mods/template/fix.patch", lambda project: mod.load_mod(project, "template")),
    ],
)
def test_a_conflict_that_git_left_is_an_error_with_its_place(
    project: Project, file: str, read: Callable[[Project], object]
) -> None:
    for text in (CONFLICT, CONFLICT.replace("\n", "\r\n") if not file.endswith(".sh") else CONFLICT):
        (project.root / file).write_text(text, encoding="utf-8", newline="")
        with pytest.raises(FileProblemsError) as raised:
            read(project)
        (problem,) = [each for each in raised.value.problems if "git left a conflict" in each.message]
        assert (problem.location.file, problem.location.line) == (file, 2)


@pytest.mark.parametrize(
    "text",
    [
        "Title\n=======\n\ntext\n",
        "@@ -1,3 +1,3 @@\n <<<<<<< HEAD\n+=======\n->>>>>>> branch\n",
        ">>>>>>> a\n=======\n<<<<<<< b\n",
        "<<<<<<< a\ntext\n>>>>>>> b\n",
        "cat <<<<<<< x\n=======\n>>>>>>> y\n",
    ],
)
def test_what_only_looks_like_a_conflict_is_none(text: str) -> None:
    assert conflict_mark(text.encode(), "file") is None
