"""The weights of recipes that serve a checkpoint: which revision, and where a container finds it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from builder.base.errors import ConflictError, FileProblemsError, ImageStateError, UsageError
from builder.commands import checkpoints, transfers
from builder.definitions import recipe as recipes
from builder.definitions.command import render_command
from builder.lab.checkpoints import conversion
from builder.lock import checkpoints_lock, text
from builder.lock.checkpoints_lock import CheckpointRecords
from builder.lock.model import ImageName, Lock, Pairing, Repository
from builder.serving import model_weights, preparation
from builder.serving.preparation import ServeRequest, ServerSettings
from builder.serving.selection import for_recipe
from tests import locks, projects
from tests.lab.checkpoints import made
from tests.lab.checkpoints.made import FILE, Kitchen
from tests.safetensors_files import Dimensions

if TYPE_CHECKING:
    from pathlib import Path

    from builder.definitions.container import ContainerSettings
    from builder.serving.model_weights import ServedWeights


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
SMALL = ImageName("small", 2)
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
        ("{model}", "Org/Model-int4", "recipes/hybrid.yaml:5:1: the command does not serve the checkpoint"),
        ("checkpoint:hybrid", "checkpoint:../x", "recipes/hybrid.yaml:3:1: `model`:"),
    ],
)
def test_a_recipe_without_such_a_checkpoint(kitchen: Kitchen, old: str, new: str, problem: str) -> None:
    path = kitchen.project.recipes / "hybrid.yaml"
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(FileProblemsError) as refused:
        recipes.load_recipe(kitchen.project, path)
    assert refused.value.message.startswith(problem)


@pytest.mark.slow
def test_the_container_gets_the_folder_and_the_name(kitchen: Kitchen) -> None:
    built = kitchen.build()
    (container,) = settings(kitchen, lock()).containers
    snapshot = f"/root/.cache/huggingface/hub/models--checkpoint--hybrid/snapshots/{built.name.revision}"
    assert container.argv[:3] == ("vllm", "serve", snapshot)
    assert container.argv[-2:] == ("--served-model-name", MODEL)
    assert json.loads(container.labels["builder.serve.names"]) == [MODEL]
    assert container.labels["builder.serve.model"] == MODEL


@pytest.mark.slow
def test_a_name_that_the_command_gives_stays(kitchen: Kitchen) -> None:
    kitchen.build()
    projects.write(kitchen.project.recipes / "hybrid.yaml", RECIPE.format(more=" --served-model-name own"))
    (container,) = settings(kitchen, lock()).containers
    assert json.loads(container.labels["builder.serve.names"]) == ["own"]


@pytest.mark.slow
def test_a_result_in_a_folder_is_mounted(kitchen: Kitchen) -> None:
    kitchen.define(output=f"{{folder: {kitchen.folder}/out}}")
    built = kitchen.build()
    (container,) = settings(kitchen, lock()).containers
    assert container.argv[2] == "/checkpoints/hybrid"
    assert f"{built.folder}:/checkpoints/hybrid:ro" in map(str, container.mounts)


@pytest.mark.slow
def test_what_was_not_made_or_is_gone_is_said(kitchen: Kitchen) -> None:
    with pytest.raises(ImageStateError, match="serves the checkpoint hybrid, which has not been built yet"):
        settings(kitchen, lock())
    built = kitchen.build()
    built.folder.rename(kitchen.folder / "elsewhere")
    with pytest.raises(ImageStateError, match=rf"hybrid@{built.name.revision[:12]} is not on this machine"):
        settings(kitchen, lock())


@pytest.mark.slow
def test_an_image_without_the_mod_is_refused(kitchen: Kitchen) -> None:
    kitchen.build()
    with pytest.raises(ConflictError, match=rf"small:2 does not contain {MOD}, which hybrid@"):
        settings(kitchen, lock(mods=()))


@pytest.mark.slow
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
    warning = model_weights.weights_warning(kitchen.project, content, for_recipe(content, recipe))
    assert warning == (
        f"{MODEL} is paired with its own weights, not with the newest checkpoint; "
        f"to serve {built.name.short}: `builder pair {MODEL} small:2 --checkpoint hybrid`"
    )


def test_a_new_pairing_records_the_revision_that_was_made_last(kitchen: Kitchen) -> None:
    recipe = recipes.load_recipe(kitchen.project, kitchen.project.recipes / "hybrid.yaml")
    assert model_weights.to_record(kitchen.project, {}, MODEL, recipe) is None
    built = kitchen.build()
    assert model_weights.to_record(kitchen.project, {}, MODEL, recipe) == str(built.name)
    assert model_weights.to_record(kitchen.project, {"HOME": "/nowhere"}, MODEL, None) is None


@pytest.mark.parametrize(
    "command",
    [
        "vllm serve {model} --port 8000",
        "vllm serve Org/Model-int4 --port 8000",
        "vllm serve \\\n    'Org/Model-int4' --port 8000",
        "python3 -m vllm.entrypoints.openai.api_server --model=Org/Model-int4 --port 8000",
        "vllm serve Org/Model-int4-else --port 8000",
    ],
)
def test_a_checkpoint_replaces_the_weights_that_a_command_names(kitchen: Kitchen, command: str) -> None:
    built = kitchen.build()
    content = lock(COMMIT)
    plain = recipes.load_recipe(kitchen.project, kitchen.project.recipes / "hybrid.yaml")
    selection = for_recipe(content, replace(plain, checkpoint=None, defaults={}, command=command))
    environ = kitchen.workspace().environment
    if "else" in command:
        with pytest.raises(UsageError, match=r"cannot find the weights in the command of recipes/hybrid.yaml"):
            model_weights.weights_of_checkpoint(kitchen.project, environ, selection, "hybrid")
        return
    served = model_weights.weights_of_checkpoint(kitchen.project, environ, selection, "hybrid")
    words = render_command(served.recipe, {}).words
    assert sum(word.endswith(f"/snapshots/{built.name.revision}") for word in words) == 1
    assert not any("Org/Model-int4" in word for word in words)


def test_a_checkpoint_that_was_never_built_is_not_served(kitchen: Kitchen) -> None:
    with pytest.raises(UsageError, match="the checkpoint hybrid has not been built yet"):
        model_weights.named_weights(kitchen.project, "hybrid", MODEL, SMALL, lock().images["small"].numbers[2])


def test_pair_takes_a_checkpoint_by_the_beginning_of_its_revision(kitchen: Kitchen) -> None:
    built = kitchen.build()
    image = lock().images["small"].numbers[2]
    for name in ("hybrid", f"hybrid@{built.name.revision[:7]}", str(built.name)):
        assert model_weights.named_weights(kitchen.project, name, MODEL, SMALL, image) == built.name
    with pytest.raises(UsageError, match="no checkpoint is called `other`"):
        model_weights.named_weights(kitchen.project, "other", MODEL, SMALL, image)
    with pytest.raises(UsageError, match="is a checkpoint of Org/Model-int4, not of Org/Else"):
        model_weights.named_weights(kitchen.project, "hybrid", "Org/Else", SMALL, image)
    with pytest.raises(ConflictError, match=f"small:2 does not contain {MOD}, which hybrid@") as refused:
        model_weights.named_weights(kitchen.project, "hybrid", MODEL, SMALL, replace(image, mods={}))
    assert refused.value.hint == f"`builder build TARGET --mod {MOD}` builds an image with them"


def test_a_rollback_tells_that_the_weights_are_gone(kitchen: Kitchen) -> None:
    built = kitchen.build()
    environ = kitchen.workspace().environment
    assert model_weights.missing_weights(kitchen.project, environ, lock(str(built.name)), MODEL) == ""
    assert model_weights.missing_weights(kitchen.project, environ, lock(COMMIT), MODEL) == ""
    built.folder.rename(kitchen.folder / "elsewhere")
    line = model_weights.missing_weights(kitchen.project, environ, lock(str(built.name)), MODEL)
    missing = f"{MODEL} is paired with {built.name.short}, which is not on this machine"
    assert line == f"{missing}: `builder checkpoints build hybrid` builds it again"


@pytest.mark.slow
def test_prune_leaves_what_is_paired_and_what_was_made_last(kitchen: Kitchen) -> None:
    first = kitchen.build()
    kitchen.define(more="  - config: {changed: true}\n")
    second = kitchen.build()
    project, environ = kitchen.project, kitchen.workspace().environment
    assert conversion.find_leftovers(project, environ, {str(first.name)}) == ()
    (going,) = conversion.find_leftovers(project, environ, ())
    assert (going.name, going.revision) == ("hybrid", first.name.revision)
    assert 0 < going.size < 10_000  # the weights are the other's, too
    conversion.remove_leftovers(going.paths)
    assert not first.folder.exists()
    assert checkpoints.build_checkpoint(kitchen.workspace(), "hybrid").seconds is None
    assert all(path.exists() for path in second.folder.iterdir())
    assert conversion.find_leftovers(project, environ, ()) == ()


@pytest.mark.slow
def test_prune_knows_what_a_killed_build_left(kitchen: Kitchen) -> None:
    kitchen.build()
    left = kitchen.cache / ".unfinished-0123456789abcdef"
    left.mkdir()
    (left / "model.part").write_bytes(b"x" * 5000)
    (going,) = conversion.find_leftovers(kitchen.project, kitchen.workspace().environment, ())
    assert (going.revision, going.size, going.title) == ("", 5000, "the unfinished build of hybrid")
    conversion.remove_leftovers(going.paths)
    assert not left.exists()


@pytest.mark.slow
def test_download_has_nothing_to_fetch_of_a_checkpoint(kitchen: Kitchen) -> None:
    built = kitchen.build()
    projects.write(kitchen.project.lock, text.dump_lock(lock()))
    (result,) = transfers.download_model(kitchen.workspace(), "hybrid")
    assert (result.folder, result.fetched) == (built.folder, 0)


# A source of a checkpoint in the checkpoint's place: which one, at which commit, and where a container finds it.


ON_THE_HUB = "int4: {{hf: Org/Model-int4@main}}"


def weights(kitchen: Kitchen, source: str = "", revision: str | None = None) -> ServedWeights:
    content = lock(revision)
    recipe = recipes.load_recipe(kitchen.project, kitchen.project.recipes / "hybrid.yaml")
    environ = kitchen.workspace().environment
    return model_weights.source_weights_of(kitchen.project, environ, content, for_recipe(content, recipe), source)


def container(kitchen: Kitchen, source: str = "") -> ContainerSettings:
    """The container of the source's server, as it would be started."""
    content = lock()
    chosen = weights(kitchen, source)
    selection = replace(for_recipe(content, chosen.recipe), recipe=chosen.recipe)
    request = ServeRequest("hybrid", {}, chosen.extra)
    (planned,) = preparation.settings(kitchen.project, selection, request, kitchen.workspace().environment).containers
    return planned


def test_a_folder_is_mounted_and_served_under_the_name_of_the_model(kitchen: Kitchen) -> None:
    built = kitchen.build()
    planned = container(kitchen)
    assert planned.argv[:3] == ("vllm", "serve", "/checkpoint-source")
    assert planned.argv[-2:] == ("--served-model-name", MODEL)
    assert f"{kitchen.folder}/int4:/checkpoint-source:ro" in map(str, planned.mounts)
    assert built.name.revision not in " ".join(planned.argv)
    chosen = weights(kitchen)
    assert chosen.requested == f"folder: {kitchen.folder}/int4"
    assert chosen.checkpoint == built.name


def test_another_source_is_taken_by_its_name(kitchen: Kitchen) -> None:
    kitchen.build()
    assert f"{kitchen.folder}/fp8:/checkpoint-source:ro" in map(str, container(kitchen, "fp8").mounts)
    with pytest.raises(UsageError, match="hybrid has no source `fp9`; did you mean `fp8`") as refused:
        weights(kitchen, "fp9")
    assert refused.value.hint == "its sources: int4, fp8"


def test_a_source_of_the_hub_is_served_at_the_commit_that_was_taken(kitchen: Kitchen) -> None:
    built = kitchen.build()
    definition = kitchen.project.root / FILE
    text = definition.read_text()
    definition.write_text(text.replace(f"int4: {{folder: {kitchen.folder}/int4}}", ON_THE_HUB.format()))
    record = checkpoints_lock.read_checkpoints_lock(kitchen.project).checkpoints["hybrid"][built.name.revision]
    taken = replace(record.sources["int4"], requested=f"hf: {MODEL}@main", commit=COMMIT)
    changed = replace(record, sources={**record.sources, "int4": taken})
    records = CheckpointRecords({"hybrid": {built.name.revision: changed}})
    (kitchen.project.root / "checkpoints.lock").write_bytes(checkpoints_lock.written(records))

    with pytest.raises(ImageStateError, match="files are missing, such as config.json") as refused:
        weights(kitchen)
    assert refused.value.hint == f"`builder download {MODEL} --revision {COMMIT}` fetches all files"
    model = kitchen.folder / "home/.cache/huggingface/hub/models--Org--Model-int4"
    (model / "snapshots").mkdir(parents=True)
    (kitchen.folder / "int4").rename(model / "snapshots" / COMMIT)
    planned = container(kitchen)
    assert planned.argv[2] == f"/checkpoint-source/snapshots/{COMMIT}"
    assert f"{model}:/checkpoint-source:ro" in map(str, planned.mounts)
    assert weights(kitchen).requested == f"{MODEL}@{COMMIT}"


def test_a_source_that_lacks_files_is_refused(kitchen: Kitchen) -> None:
    kitchen.build()
    gone = next((kitchen.folder / "int4").glob("model-*.safetensors"))
    gone.unlink()
    with pytest.raises(ImageStateError, match=f"1 file is missing, such as {gone.name}"):
        weights(kitchen)


def test_a_source_that_is_another_by_now_is_refused(kitchen: Kitchen) -> None:
    kitchen.build()
    other = next((kitchen.folder / "int4").glob("model-*.safetensors"))
    other.write_bytes(other.read_bytes() + b" ")
    with pytest.raises(ImageStateError, match=f"{other.name} has changed size since"):
        weights(kitchen)


def test_a_model_that_is_no_checkpoint_has_no_source(kitchen: Kitchen) -> None:
    plain = RECIPE.format(more="").replace("model: checkpoint:hybrid", f"model: {MODEL}").replace("{model}", MODEL)
    projects.write(kitchen.project.recipes / "hybrid.yaml", plain)
    with pytest.raises(UsageError, match="recipes/hybrid.yaml serves no checkpoint of this project"):
        weights(kitchen)
    projects.write(kitchen.project.recipes / "hybrid.yaml", RECIPE.format(more=""))
    with pytest.raises(UsageError, match="serves no checkpoint"):
        weights(kitchen, revision=COMMIT)  # paired with the model's own weights, from before


def test_a_checkpoint_that_was_not_made_is_told(kitchen: Kitchen) -> None:
    with pytest.raises(ImageStateError, match="serves the checkpoint hybrid, which has not been built yet"):
        weights(kitchen)
    kitchen.build()
    with pytest.raises(ImageStateError, match="serves hybrid@1{12}, which checkpoints.lock does not have") as lost:
        weights(kitchen, revision=f"hybrid@{'1' * 40}")
    assert "`builder pair Org/Model-int4 small:2 --checkpoint hybrid`" in lost.value.hint
