"""The revision that a pairing records, and models that are served at another one."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.base.project import Project
from builder.definitions import recipe as recipes
from builder.definitions.recipe import Recipe
from builder.engine.client import Endpoint
from builder.lock import lock_file
from builder.lock.model import ImageName, Lock, Model, Pairing
from builder.serving import model_weights
from tests import hubcache, locks, projects
from tests.conftest import Command
from tests.hubcache import COMMIT, OTHER
from tests.stock import stock
from tests.workspaces import NO_ENGINE, workspace

MODEL = locks.MODEL
PROJECT = Project(Path("/nowhere"))  # only of a checkpoint is anything read there


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"HF_HOME": str(tmp_path / "hf")}


def recipe(tmp_path: Path, revision: str | None = None) -> Recipe:
    project = projects.make(tmp_path / "project")
    path = project.recipes / "chat.yaml"
    if revision:
        path.write_text(path.read_text() + f"model_revision: '{revision}'\n")
    return recipes.load_recipe(project, path)


def changed(environ: dict[str, str], recipe: Recipe, paired: str | None) -> str:
    lock = Lock(models={MODEL: Model(Pairing(ImageName("small", 1), locks.RECIPE, paired))})
    return model_weights.revision_warning(PROJECT, environ, lock, recipe)


def test_what_is_recorded_without_a_cache(tmp_path: Path, environ: dict[str, str]) -> None:
    assert model_weights.to_record(PROJECT, environ, MODEL, recipe(tmp_path / "a")) is None
    assert model_weights.to_record(PROJECT, environ, MODEL, recipe(tmp_path / "b", "v1")) == "v1"


def test_what_is_recorded_of_a_cached_model(tmp_path: Path, environ: dict[str, str]) -> None:
    hubcache.add(tmp_path / "hf", MODEL)
    hubcache.add(tmp_path / "hf", MODEL, OTHER, ref="v1")
    hubcache.add(tmp_path / "hf", "Org/Further")
    plain, tagged, other = (recipe(tmp_path / str(n), word) for n, word in enumerate((None, "v1", "v2")))
    assert model_weights.to_record(PROJECT, environ, MODEL, plain) == COMMIT
    assert model_weights.to_record(PROJECT, environ, MODEL, None) == COMMIT
    assert model_weights.to_record(PROJECT, environ, MODEL, tagged) == OTHER
    assert model_weights.to_record(PROJECT, environ, MODEL, other) == "v2"
    # A further model of a build is not the one whose revision the recipe names.
    assert model_weights.to_record(PROJECT, environ, "Org/Further", tagged) == COMMIT


@pytest.mark.parametrize(
    ("paired", "requested", "now"),
    [
        (COMMIT, None, None),
        (OTHER, None, COMMIT),
        (None, None, None),
        ("v1", None, COMMIT),
        ("v1", "v1", None),
        (OTHER, "v1", None),
        (COMMIT, "v1", OTHER),
        # Served at what the recipe names, whatever `main` is; and what it names is not here.
        (OTHER, OTHER, None),
        (COMMIT, "v9", "v9"),
    ],
)
def test_a_changed_revision(
    tmp_path: Path, environ: dict[str, str], paired: str | None, requested: str | None, now: str | None
) -> None:
    hubcache.add(tmp_path / "hf", MODEL)
    hubcache.add(tmp_path / "hf", MODEL, OTHER, ref="v1")
    change = changed(environ, recipe(tmp_path, requested), paired)
    assert change.startswith(f"{MODEL} is now at revision {now[:7]}; it was paired at ") if now else change == ""


def test_nothing_has_changed_that_is_not_here(tmp_path: Path, environ: dict[str, str]) -> None:
    assert changed(environ, recipe(tmp_path), COMMIT) == ""


def test_a_change_in_words(tmp_path: Path, environ: dict[str, str]) -> None:
    hubcache.add(tmp_path / "hf", MODEL, OTHER)
    change = changed(environ, recipe(tmp_path), COMMIT)
    assert change == "Org/Model-1B is now at revision 2222222; it was paired at 1111111"


def test_record_fills_in_once(tmp_path: Path, environ: dict[str, str]) -> None:
    project = projects.make(tmp_path / "project")
    assert model_weights.record_revision(workspace(project, NO_ENGINE, environ), MODEL) is None
    locks.write(project, (1,), current=1, paired=1)
    assert model_weights.record_revision(workspace(project, NO_ENGINE, environ), MODEL) is None
    hubcache.add(tmp_path / "hf", MODEL)
    assert model_weights.record_revision(workspace(project, NO_ENGINE, environ), MODEL) == COMMIT
    hubcache.add(tmp_path / "hf", MODEL, OTHER)
    assert model_weights.record_revision(workspace(project, NO_ENGINE, environ), MODEL) is None
    assert lock_file.read_lock(project.lock).models[MODEL].pairing.revision == COMMIT


def test_held_names_the_paired_revision(tmp_path: Path, environ: dict[str, str]) -> None:
    project = projects.make(tmp_path / "project")
    locks.write(project, (1,), current=1, paired=1)
    hubcache.add(tmp_path / "hf", MODEL)
    model_weights.record_revision(workspace(project, NO_ENGINE, environ), MODEL)
    hubcache.add(tmp_path / "hf", MODEL, OTHER)
    (cached,) = model_weights.cached_models(environ, lock_file.read_lock(project.lock)).values()
    assert (cached.revision, cached.size) == (COMMIT, 14)


@pytest.mark.engine
def test_build_records_what_the_cache_holds(small: Project, tmp_path: Path, builder: Command) -> None:
    hubcache.add(tmp_path / "hf", MODEL)
    builder("build", "chat", environ={"HF_HOME": str(tmp_path / "hf")})
    assert lock_file.read_lock(small.lock).models[MODEL].pairing.revision == COMMIT
    # A further model, of an image that is already built.
    hubcache.add(tmp_path / "hf", "Org/Further", OTHER)
    builder("build", "chat", "--model", "Org/Further", environ={"HF_HOME": str(tmp_path / "hf")})
    assert lock_file.read_lock(small.lock).models["Org/Further"].pairing.revision == OTHER


@pytest.mark.engine
def test_pair_records_what_the_cache_holds_as_a_build_does(
    small: Project, endpoint: Endpoint, repository: str, tmp_path: Path, builder: Command
) -> None:
    environ = {"HF_HOME": str(tmp_path / "hf")}
    stock(small, endpoint, repository, (1, 2, 3), ())

    def paired() -> list[str | None]:
        """The revisions of the pairings, the latest first."""
        model = lock_file.read_lock(small.lock).models[MODEL]
        return [entry.revision for entry in (model.pairing, *model.previous)]

    builder("pair", MODEL, "small:1", environ=environ)
    assert paired() == [None]
    hubcache.add(tmp_path / "hf", MODEL)
    builder("pair", MODEL, "small:1", environ=environ)
    assert paired() == [COMMIT]
    hubcache.add(tmp_path / "hf", MODEL, OTHER)
    builder("pair", MODEL, "small:2", environ=environ)
    assert paired() == [OTHER, COMMIT]
    # What is taken up again was tested at its own revision.
    builder("pair", MODEL, "small:1", environ=environ)
    assert paired() == [COMMIT, OTHER]
    # The commit that the recipe's word leads to; the word itself where it leads nowhere here.
    chat = small.recipes / "chat.yaml"
    projects.write(chat, chat.read_text(encoding="utf-8") + "model_revision: v1\n")
    hubcache.add(tmp_path / "hf", MODEL, "3" * 40, ref="v1")
    builder("pair", MODEL, "small:3", environ=environ)
    assert paired() == ["3" * 40, COMMIT, OTHER]


@pytest.mark.engine
def test_pair_keeps_a_revision_where_the_cache_has_none(
    small: Project, endpoint: Endpoint, repository: str, tmp_path: Path, builder: Command
) -> None:
    stock(small, endpoint, repository, (1, 2), ())
    chat = small.recipes / "chat.yaml"
    projects.write(chat, chat.read_text(encoding="utf-8") + "model_revision: v1\n")
    environ = {"HF_HOME": str(tmp_path / "hf")}
    builder("pair", MODEL, "small:1", environ=environ)
    assert lock_file.read_lock(small.lock).models[MODEL].pairing.revision == "v1"
    chat.unlink()
    builder("pair", MODEL, "small:2", environ=environ)
    assert lock_file.read_lock(small.lock).models[MODEL].pairing.revision == "v1"
