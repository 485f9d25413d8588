from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from builder.base.errors import ImageStateError, UnsafePathError, UsageError
from builder.base.project import Project
from builder.lock import lock_file
from builder.lock.model import Adoption, ImageName, Lock, Model, NumberedImage, Pairing, Repository, Version
from builder.serving.selection import (
    SelectedImage,
    mods_warning,
    select_any,
    select_image,
    selection_warning,
    serve_settings,
)
from tests import locks, projects
from tests.conftest import WITHOUT_ENGINE, run_command

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return projects.make(tmp_path)


def find(project: Project, text: str = "chat") -> tuple[str, str]:
    selection = select_image(project, lock_file.read_lock(project.lock), text)
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
    lock = lock_file.read_lock(project.lock)
    other = Repository(2, 1, numbers={1: locks.numbered()})
    pairing = Pairing(ImageName("other", 1), "recipes/other.yaml")
    lock = Lock(images={**lock.images, "other": other}, models={locks.MODEL: Model(pairing)})
    selection = select_image(project, lock, "chat")
    assert (str(selection.image), selection.reason) == ("small:1", "current")
    by_this = replace(lock, models={locks.MODEL: Model(replace(pairing, recipe=locks.RECIPE))})
    assert str(select_image(project, by_this, "chat").image) == "other:1"


@pytest.mark.parametrize(
    "file", ["../outside/evil.yaml", "outside.yaml", "builds/small/1/evil.yaml", "mods/evil.yaml", "recipes/link.yaml"]
)
@pytest.mark.parametrize("absolute", [False, True])
def test_a_lock_serves_no_file_but_a_recipe_of_the_project(tmp_path: Path, file: str, absolute: bool) -> None:
    """The lock came with an archive, or by git; the file is a recipe that mounts the whole machine."""
    project = projects.make(tmp_path / "project")
    path = project.root / file
    if file == "recipes/link.yaml":
        path.symlink_to("../../outside/evil.yaml")
        path = tmp_path / "outside/evil.yaml"
    projects.write(path, (project.recipes / "chat.yaml").read_text() + "volumes: ['/:/host']\n")
    recorded = str(project.root / file) if absolute else file
    pairing = Pairing(ImageName("small", 1), recorded)
    lock = Lock(images={"small": Repository(2, 1, numbers={1: locks.numbered()})}, models={"Org/M": Model(pairing)})
    with pytest.raises(UnsafePathError, match=r"is not a file in recipes/"):
        select_image(project, lock, "Org/M")


def test_what_was_never_built_says_how_to(project: Project) -> None:
    with pytest.raises(ImageStateError, match="no image of small has been built yet") as caught:
        find(project)
    adopts = "`builder adopt small` gives a number to an existing image"
    assert caught.value.hint == f"`builder build recipes/chat.yaml`; {adopts}"


def test_a_recipe_s_file_is_one_word_of_a_command(project: Project) -> None:
    (project.root / locks.RECIPE).rename(project.recipes / "my chat.yaml")
    with pytest.raises(ImageStateError) as caught:
        find(project, "my chat")
    assert caught.value.hint.startswith("`builder build 'recipes/my chat.yaml'`; ")
    missing = mods_warning(project, select_any(project, Lock(), "my chat"))
    assert missing.endswith("`builder build 'recipes/my chat.yaml'` builds an image with them")


def test_numbers_of_which_none_is_current_need_no_build(project: Project) -> None:
    lock = Lock(images={"small": Repository(3, None, numbers={1: locks.numbered(), 2: locks.numbered()})})
    with pytest.raises(ImageStateError, match="no image of small is current") as caught:
        select_any(project, lock, "chat")
    assert caught.value.hint == "to use the newest one: `builder promote small:2`"


def served(project: Project, container: str, lock: Lock) -> str:
    """The image that serves a recipe of this container, with the reason where it has a number."""
    projects.add_recipe(project.root, "other", container, "Org/Other", [])
    selection = select_any(project, lock, "other")
    return f"{selection.name} {selection.reason if isinstance(selection, SelectedImage) else 'unnumbered'}"


@pytest.mark.parametrize("container", ["small", "small:latest", "host/vllm", "host/vllm:v1", "host/vllm:7"])
def test_without_any_number_the_engine_s_own_image_of_that_name_serves(project: Project, container: str) -> None:
    assert served(project, container, Lock()) == f"{container} unnumbered"


def test_a_number_that_is_gone_is_no_image_of_others(project: Project) -> None:
    with pytest.raises(ImageStateError, match=r"images\.lock has no image small:7"):
        served(project, "small:7", Lock())


def test_numbers_that_were_adopted_serve_by_repository_and_by_the_name_that_they_had(project: Project) -> None:
    def adopted(source: str, built: str) -> NumberedImage:
        return replace(locks.numbered(), definition="", input_hash="", built=built, adopted=Adoption(source))

    old, new = adopted("host/vllm:v1", "2026-11-20T22:00:00Z"), adopted("host/vllm:v1", "2026-11-21T22:00:00Z")
    lock = Lock(images={"host/vllm": Repository(4, 3, (2,), {1: old, 2: new, 3: adopted("host/vllm:v2", new.built)})})
    assert served(project, "host/vllm", lock) == "host/vllm:3 current"
    assert served(project, "host/vllm:latest", lock) == "host/vllm:3 current"
    assert served(project, "host/vllm:v1", lock) == "host/vllm:2 adopted"
    assert served(project, "host/vllm:v2", lock) == "host/vllm:3 adopted"
    assert served(project, "host/vllm:v9", lock) == "host/vllm:v9 unnumbered"
    assert served(project, "host/vllm:1", lock) == "host/vllm:1 numbered"
    under_another = Lock(images={"vllm-node": Repository(2, 1, (), {1: adopted("host/vllm:latest", new.built)})})
    assert served(project, "host/vllm", under_another) == "vllm-node:1 adopted"
    paired = replace(lock, models={"Org/Other": Model(Pairing(ImageName("host/vllm", 1), None))})
    assert served(project, "host/vllm:v1", paired) == "host/vllm:1 paired"


@pytest.mark.parametrize(
    ("version", "gpus"), [("0.32.0+cpu", "none"), ("0.32.0", "all"), ("0.32.0+cu130", "all"), ("0.32.0+cpu.x", "none")]
)
def test_an_adopted_image_whose_vllm_is_for_the_cpu_gets_no_gpu(project: Project, version: str, gpus: str) -> None:
    record = replace(locks.numbered(), definition="", input_hash="", adopted=Adoption("host/vllm:v1"))
    record = replace(record, versions={"vllm": Version(version)})
    lock = Lock(images={"host/vllm": Repository(2, 1, (), {1: record})})
    projects.add_recipe(project.root, "chat", "host/vllm:1", locks.MODEL, [])
    selection = select_image(project, lock, "chat")
    assert serve_settings(project, selection).gpus == gpus


def test_what_an_image_lacks_or_cannot_promise_is_told(project: Project) -> None:
    lock = Lock(images={"small": Repository(2, 1, numbers={1: locks.numbered()})})
    selection = select_any(project, lock, "chat")
    assert mods_warning(project, selection) == (
        "small:1 does not contain mods/template: `builder build recipes/chat.yaml` builds an image with them"
    )
    whole = Lock(images={"small": Repository(2, 1, numbers={1: locks.numbered({"template": "sha256:0"})})})
    assert mods_warning(project, select_any(project, whole, "chat")) == ""
    unnumbered = select_any(project, Lock(), "chat")
    assert "small has no number" in selection_warning(unnumbered)
    assert "`builder build recipes/chat.yaml` builds an image with them" in mods_warning(project, unnumbered)
    projects.write(project.recipes / "my $chat.yaml", (project.recipes / "chat.yaml").read_text())
    odd = select_any(project, Lock(), "recipes/my $chat.yaml")
    assert "`builder build 'recipes/my $chat.yaml'` builds an image with them" in mods_warning(project, odd)
    projects.write(project.dockerfiles / "small" / "image.yaml", "base: [\n")
    assert "`builder build recipes/chat.yaml` builds an image with them" in mods_warning(project, selection)


@pytest.mark.parametrize(
    "numbers", [{}, {1: replace(locks.numbered(), definition="", adopted=Adoption("host/vllm:v1"))}]
)
def test_no_build_adds_mods_to_an_image_without_a_definition(
    project: Project, numbers: dict[int, NumberedImage]
) -> None:
    projects.add_recipe(project.root, "other", "host/vllm", "Org/Other", ["mods/template"])
    lock = Lock(images={"host/vllm": Repository(2, 1, numbers=numbers)} if numbers else {})
    assert mods_warning(project, select_any(project, lock, "other")).endswith(
        " is not known to contain mods/template: a definition with `base: host/vllm` can add them"
    )


@pytest.mark.parametrize("recipe", [None, "recipes/gone.yaml"])
def test_a_model_whose_recipe_is_not_there_cannot_be_served(project: Project, recipe: str | None) -> None:
    lock = Lock(
        images={"small": Repository(2, 1, numbers={1: locks.numbered()})},
        models={locks.MODEL: Model(Pairing(ImageName("small", 1), recipe))},
    )
    with pytest.raises(UsageError, match="no recipe says how to serve Org/Model-1B: ") as caught:
        select_image(project, lock, locks.MODEL)
    assert caught.value.hint == "name a recipe instead of the model: chat"


@pytest.mark.parametrize("command", ["build", "run", "up", "upgrade"])
def test_every_command_names_the_new_name_of_a_renamed_recipe(project: Project, command: str) -> None:
    locks.write(project, (1,), current=1, paired=1)
    (project.root / locks.RECIPE).rename(project.recipes / "talk.yaml")
    printed = run_command(project, command, locks.MODEL, code=2, environ=WITHOUT_ENGINE).stderr
    assert f"no recipe says how to serve {locks.MODEL}: its recipe {locks.RECIPE} no longer exists" in printed
    assert "name a recipe instead of the model: talk\n" in printed


def test_a_definition_is_nothing_to_serve(project: Project) -> None:
    with pytest.raises(UsageError, match="`small` is an image definition"):
        find(project, "small")
