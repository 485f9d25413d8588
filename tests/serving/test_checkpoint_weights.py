"""The weights of recipes that serve a checkpoint: which revision, and where a container finds it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from builder.base.errors import ConflictError, FileProblemsError, ImageStateError, UsageError
from builder.commands import checkpoints, transfers
from builder.definitions import recipe as recipes
from builder.lab.checkpoints import conversion
from builder.lock import text
from builder.lock.model import ImageName, Lock, Pairing, Repository
from builder.serving import checkpoint_weights, model_revision, preparation
from builder.serving.preparation import ServeRequest, ServerSettings
from builder.serving.selection import for_recipe
from tests import locks, projects
from tests.checkpoints import made
from tests.checkpoints.made import Kitchen
from tests.safetensors_files import Dimensions

if TYPE_CHECKING:
    from pathlib import Path


MODEL = "Org/Model-int4"
RECIPE = """\
recipe_version: "1"
name: hybrid
model: checkpoint:hybrid
container: small
command: |
  vllm serve {{model}} --port 8000{more}
"""
MOD = "enable-hybrid-int4fp8"
COMMIT = "1" * 40


@pytest.fixture
def kitchen(tmp_path: Path) -> Kitchen:
    kitchen = made.kitchen(tmp_path, Dimensions(layers=4, width=64, mtp_experts=8))
    projects.write(kitchen.project.recipes / "hybrid.yaml", RECIPE.format(more=""))
    return kitchen


def lock(revision: str | None = None, mods: tuple[str, ...] = (MOD,)) -> Lock:
    """images.lock with two numbers of the repository; the second one is the model's, at ``revision``."""
    image = locks.numbered(dict.fromkeys(mods, "sha256:0"))
    repository = Repository(next=3, current=2, previous=(1,), numbers={1: replace(image, mods={}), 2: image})
    return Lock(images={"small": repository}).with_pairing(
        MODEL, Pairing(ImageName("small", 2), "recipes/hybrid.yaml", revision)
    )


def settings(kitchen: Kitchen, content: Lock) -> ServerSettings:
    projects.write(kitchen.project.lock, text.dump_lock(content))
    workspace = kitchen.workspace()
    recipe = recipes.load_recipe(kitchen.project, kitchen.project.recipes / "hybrid.yaml")
    request = ServeRequest("hybrid", {})
    return preparation.settings(kitchen.project, for_recipe(content, recipe), request, workspace.environment)


def test_a_recipe_takes_model_and_mods_from_the_definition(kitchen: Kitchen) -> None:
    recipe = recipes.load_recipe(kitchen.project, kitchen.project.recipes / "hybrid.yaml")
    assert (recipe.model, recipe.checkpoint, recipe.mods) == (MODEL, "hybrid", (f"mods/{MOD}",))


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("checkpoint:hybrid", "checkpoint:hybird", "recipes/hybrid.yaml:3:1: no checkpoint is called `hybird`"),
        ("{model}", "Org/Model-int4", "recipes/hybrid.yaml:5:1: `{model}` has to stand where"),
        ("checkpoint:hybrid", "checkpoint:../x", "recipes/hybrid.yaml:3:1: `model`:"),
    ],
)
def test_a_recipe_without_such_a_checkpoint(kitchen: Kitchen, old: str, new: str, problem: str) -> None:
    path = kitchen.project.recipes / "hybrid.yaml"
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(FileProblemsError) as refused:
        recipes.load_recipe(kitchen.project, path)
    assert refused.value.message.startswith(problem)


def test_the_container_gets_the_folder_and_the_name(kitchen: Kitchen) -> None:
    built = kitchen.build()
    (container,) = settings(kitchen, lock()).containers
    snapshot = f"/root/.cache/huggingface/hub/models--checkpoint--hybrid/snapshots/{built.name.revision}"
    assert container.argv[:3] == ("vllm", "serve", snapshot)
    assert container.argv[-2:] == ("--served-model-name", MODEL)
    assert json.loads(container.labels["builder.serve.names"]) == [MODEL]
    assert container.labels["builder.serve.model"] == MODEL


def test_a_name_that_the_command_gives_stays(kitchen: Kitchen) -> None:
    kitchen.build()
    projects.write(kitchen.project.recipes / "hybrid.yaml", RECIPE.format(more=" --served-model-name own"))
    (container,) = settings(kitchen, lock()).containers
    assert json.loads(container.labels["builder.serve.names"]) == ["own"]


def test_a_result_in_a_folder_is_mounted(kitchen: Kitchen) -> None:
    kitchen.define(output=f"{{folder: {kitchen.folder}/out}}")
    built = kitchen.build()
    (container,) = settings(kitchen, lock()).containers
    assert container.argv[2] == "/checkpoints/hybrid"
    assert f"{built.folder}:/checkpoints/hybrid:ro" in map(str, container.mounts)


def test_what_was_not_made_or_is_gone_is_said(kitchen: Kitchen) -> None:
    with pytest.raises(ImageStateError, match="the checkpoint hybrid was not made yet"):
        settings(kitchen, lock())
    built = kitchen.build()
    built.folder.rename(kitchen.folder / "elsewhere")
    with pytest.raises(ImageStateError, match=rf"hybrid@{built.name.revision[:12]} is not on this machine"):
        settings(kitchen, lock())


def test_an_image_without_the_mod_is_refused(kitchen: Kitchen) -> None:
    kitchen.build()
    with pytest.raises(ConflictError, match=rf"small:2 does not carry {MOD}, and hybrid@"):
        settings(kitchen, lock(mods=()))


def test_image_and_weights_go_back_together(kitchen: Kitchen) -> None:
    first = kitchen.build()
    kitchen.define(more="  - config: {changed: true}\n")
    second = kitchen.build()
    assert first.name != second.name
    content = lock(str(second.name)).with_pairing(
        MODEL, Pairing(ImageName("small", 1), "recipes/hybrid.yaml", str(first.name))
    )
    image = locks.numbered({MOD: "sha256:0"})
    content = content.with_image(ImageName("small", 1), image)
    model = content.models[MODEL]
    for pairing, expected in ((model.pairing, first), (model.stepped_back_to(ImageName("small", 2)).pairing, second)):
        (container,) = settings(kitchen, content.with_pairing(MODEL, pairing)).containers
        assert expected.name.revision in container.argv[2]
        assert container.image == str(pairing.image)


def test_a_pairing_from_before_serves_the_models_own_weights(kitchen: Kitchen) -> None:
    built = kitchen.build()
    content = lock(COMMIT, mods=())
    (container,) = settings(kitchen, content).containers
    assert container.argv[2] == MODEL
    assert container.argv[-2:] == ("--revision", COMMIT)
    recipe = recipes.load_recipe(kitchen.project, kitchen.project.recipes / "hybrid.yaml")
    warning = checkpoint_weights.weights_warning(kitchen.project, content, for_recipe(content, recipe))
    assert warning == (
        f"{MODEL} is paired with its own weights: "
        f"`builder pair {MODEL} small:2 --checkpoint hybrid` serves {built.name.short}"
    )


def test_a_new_pairing_records_the_revision_that_was_made_last(kitchen: Kitchen) -> None:
    recipe = recipes.load_recipe(kitchen.project, kitchen.project.recipes / "hybrid.yaml")
    assert model_revision.to_record(kitchen.project, {}, MODEL, recipe) is None
    built = kitchen.build()
    assert model_revision.to_record(kitchen.project, {}, MODEL, recipe) == str(built.name)
    assert model_revision.to_record(kitchen.project, {"HOME": "/nowhere"}, MODEL, None) is None


def test_pair_takes_a_checkpoint_by_the_beginning_of_its_revision(kitchen: Kitchen) -> None:
    built = kitchen.build()
    image = lock().images["small"].numbers[2]
    for name in ("hybrid", f"hybrid@{built.name.revision[:7]}", str(built.name)):
        assert checkpoint_weights.named_weights(kitchen.project, name, MODEL, image) == built.name
    with pytest.raises(UsageError, match="has no `other`"):
        checkpoint_weights.named_weights(kitchen.project, "other", MODEL, image)
    with pytest.raises(UsageError, match="is a form of Org/Model-int4, and not of Org/Else"):
        checkpoint_weights.named_weights(kitchen.project, "hybrid", "Org/Else", image)
    with pytest.raises(ConflictError, match="does not carry"):
        checkpoint_weights.named_weights(kitchen.project, "hybrid", MODEL, replace(image, mods={}))


def test_a_rollback_tells_that_the_weights_are_gone(kitchen: Kitchen) -> None:
    built = kitchen.build()
    environ = kitchen.workspace().environment
    assert checkpoint_weights.missing_weights(kitchen.project, environ, lock(str(built.name)), MODEL) == ""
    assert checkpoint_weights.missing_weights(kitchen.project, environ, lock(COMMIT), MODEL) == ""
    built.folder.rename(kitchen.folder / "elsewhere")
    line = checkpoint_weights.missing_weights(kitchen.project, environ, lock(str(built.name)), MODEL)
    assert line == f"{MODEL} is paired with {built.name.short}, which is not on this machine: it has to be made again"


def test_prune_leaves_what_is_paired_and_what_was_made_last(kitchen: Kitchen) -> None:
    first = kitchen.build()
    kitchen.define(more="  - config: {changed: true}\n")
    second = kitchen.build()
    project, environ = kitchen.project, kitchen.workspace().environment
    assert conversion.find_leftovers(project, environ, {str(first.name)}) == ()
    (going,) = conversion.find_leftovers(project, environ, ())
    assert (going.name, going.revision) == ("hybrid", first.name.revision)
    assert 0 < going.size < 10_000  # the weights are the other's, too
    conversion.remove_leftovers(going)
    assert not first.folder.exists()
    assert checkpoints.build_checkpoint(kitchen.workspace(), "hybrid").seconds is None
    assert all(path.exists() for path in second.folder.iterdir())
    assert conversion.find_leftovers(project, environ, ()) == ()


def test_prune_knows_what_a_killed_build_left(kitchen: Kitchen) -> None:
    kitchen.build()
    left = kitchen.cache / ".unfinished-0123456789abcdef"
    left.mkdir()
    (left / "model.part").write_bytes(b"x" * 5000)
    (going,) = conversion.find_leftovers(kitchen.project, kitchen.workspace().environment, ())
    assert (going.revision, going.size, going.title) == ("", 5000, "what an unfinished hybrid left")
    conversion.remove_leftovers(going)
    assert not left.exists()


def test_download_has_nothing_to_fetch_of_a_checkpoint(kitchen: Kitchen) -> None:
    built = kitchen.build()
    projects.write(kitchen.project.lock, text.dump_lock(lock()))
    (result,) = transfers.download_model(kitchen.workspace(), transfers.DownloadRequest("hybrid"))
    assert (result.folder, result.fetched) == (built.folder, 0)
