"""A source of a checkpoint in the checkpoint's place: which one, at which commit, and where a container finds it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from builder.base.errors import ImageStateError, UsageError
from builder.definitions import recipe as recipes
from builder.lock import checkpoints_lock
from builder.lock.checkpoints_lock import CheckpointRecords
from builder.serving import checkpoint_weights, preparation
from builder.serving.preparation import ServeRequest
from builder.serving.selection import for_recipe
from tests import projects
from tests.checkpoints.made import FILE, Kitchen
from tests.serving.test_checkpoint_weights import COMMIT, MODEL, RECIPE, kitchen, lock

if TYPE_CHECKING:
    from builder.definitions.container import ContainerSettings
    from builder.serving.checkpoint_weights import SourceWeights


__all__ = ["kitchen"]

ON_THE_HUB = "int4: {{hf: Org/Model-int4@main}}"


def weights(kitchen: Kitchen, source: str = "", revision: str | None = None) -> SourceWeights:
    content = lock(revision)
    recipe = recipes.load_recipe(kitchen.project, kitchen.project.recipes / "hybrid.yaml")
    environ = kitchen.workspace().environment
    return checkpoint_weights.source_weights_of(kitchen.project, environ, content, for_recipe(content, recipe), source)


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
    assert refused.value.hint == "there are: int4, fp8"


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
    assert refused.value.hint == f"`hf download {MODEL} --revision {COMMIT}` fetches all of it"
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
    with pytest.raises(ImageStateError, match=f"{other.name} is not what the checkpoint was made from"):
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
    with pytest.raises(ImageStateError, match="the checkpoint hybrid was not made yet"):
        weights(kitchen)
