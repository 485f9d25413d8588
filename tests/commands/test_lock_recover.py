"""images.lock is lost, and comes back."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pytest

from builder.base.project import Project
from builder.engine import images
from builder.engine.client import Endpoint
from builder.lock import lock_file
from builder.lock.model import ImageName
from builder.lock.text import dump_lock
from tests import locks, projects, shared
from tests.conftest import Command, remove_all, run_command
from tests.evidence import runs
from tests.stock import labels, load, number

if TYPE_CHECKING:
    from collections.abc import Iterator


pytestmark = pytest.mark.engine

MODEL = "Org/Model-1B"


@pytest.fixture(scope="module")
def lived_once(endpoint: Endpoint, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Project, str]]:
    """Three builds for two models, and a rollback of `latest`; the repository, whose images are also at …-kept."""
    repository = shared.unique_name()
    project = projects.make(tmp_path_factory.mktemp("lived") / "project", repository)
    projects.with_own_steps(project, repository)
    run_command(project, "build", "chat")
    for version in ("two", "three"):
        projects.write(project.root / "mods/template/chat.jinja", f"version {version}\n")
        run_command(project, "build", "chat", "--model", "Org/Other")
    run_command(project, "rollback", "small")
    for tag in images.image_tags(endpoint, [repository]):
        images.tag_image(endpoint, tag, tag.replace(":", "-kept:"))
    yield project, repository
    for each in (f"{repository}-kept", repository):
        remove_all(endpoint, each)


@pytest.fixture
def lived(lived_once: tuple[Project, str], endpoint: Endpoint) -> Iterator[Project]:
    """The project of `lived_once`, which is put back when the test ends."""
    project, repository = lived_once
    kept = project.root.with_name("kept")
    shutil.copytree(project.root, kept, symlinks=True)
    yield project
    shutil.rmtree(project.root)
    kept.rename(project.root)
    for tag in images.image_tags(endpoint, [f"{repository}-kept"]):
        images.tag_image(endpoint, tag, tag.replace("-kept:", ":"))


@pytest.fixture
def run_lived(lived: Project) -> Command:
    return partial(run_command, lived)


@pytest.mark.long
def test_a_lost_lock_comes_back_as_it_was(lived: Project, lived_once: tuple[Project, str], run_lived: Command) -> None:
    _, repository = lived_once
    before = lived.lock.read_bytes()
    evidence = runs.keep(lived, ImageName(repository, 1), ImageName(repository, 3))
    lived.lock.unlink()
    for arguments in (["build", "chat"], ["build", "small", "--dry-run"], ["lock"], ["restart", "chat"]):
        assert "rebuild it with `builder lock --recover`" in " ".join(run_lived(*arguments, code=4).stderr.split())
    assert not lived.lock.exists()
    done = run_lived("lock", "--recover").stdout
    assert done.startswith(f"images.lock records 3 images again: {repository}:1, {repository}:2, {repository}:3\n")
    assert "marks, notes, kept images" in done
    assert lived.lock.read_bytes() == before
    assert runs.files(lived) == evidence
    assert "nothing to recover" in run_lived("lock", "--recover", code=1).stderr
    assert run_lived("build", "chat").stdout.startswith(f"already built as {repository}:3\n")


def test_a_new_project_begins_where_nothing_tells_of_the_old_one(
    small: Project, builder: Command, repository: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    projects.write(small.builds / "gone/1/bake.json", "{}")
    output = builder("lock", "--recover", code=1).stderr
    assert "move the folders in builds/ to another place" in output
    small.builds.rename(small.root / "away")
    builder("build", "chat")
    assert [*lock_file.read_lock(small.lock).images[repository].numbers] == [1]

    # A clone builds with its lock, and without its lock and builds/ as a new project.
    clone = Project(tmp_path_factory.mktemp("clone") / "clone")
    shutil.copytree(small.root, clone.root, ignore=shutil.ignore_patterns(".builder", ".images.lock*"))
    assert "already built as" in builder("--project", str(clone.root), "build", "chat").stdout
    shutil.rmtree(clone.builds)
    assert "already built as" in builder("--project", str(clone.root), "build", "chat").stdout
    clone.lock.unlink()
    assert "would build the next number" in builder("--project", str(clone.root), "build", "chat", "--dry-run").stdout


@pytest.mark.long
def test_a_damaged_lock_is_kept_aside(lived: Project, run_lived: Command) -> None:
    whole = lived.lock.read_bytes()
    damaged = whole[: len(whole) // 2]
    lived.lock.write_bytes(damaged)
    assert "--recover" in run_lived("list", code=4).stderr
    assert "the damaged file was kept as images.lock.damaged\n" in run_lived("lock", "--recover").stdout
    assert lived.lock.read_bytes() == whole
    assert (lived.root / "images.lock.damaged").read_bytes() == damaged
    lived.lock.write_bytes(whole[:20])
    assert "the damaged file was kept as images.lock.damaged.2\n" in run_lived("lock", "--recover").stdout
    assert (lived.root / "images.lock.damaged").read_bytes() == damaged
    assert (lived.root / "images.lock.damaged.2").read_bytes() == whole[:20]


@pytest.mark.long
def test_without_build_directories_the_labels_tell(
    lived: Project, lived_once: tuple[Project, str], run_lived: Command, endpoint: Endpoint
) -> None:
    _, repository = lived_once
    before = lock_file.read_lock(lived.lock)
    lived.lock.unlink()
    shutil.rmtree(lived.builds)
    unknown = json.loads(run_lived("lock", "--recover", "--json").stdout)["unknown"]
    assert [line for line in unknown if line.startswith(f"{repository}:2 has no build directory")]
    after = lock_file.read_lock(lived.lock)
    record = before.images[repository]
    numbers = {
        n: replace(image, built=record.numbers[n].built) for n, image in after.images[repository].numbers.items()
    }
    assert replace(after.images[repository], numbers=numbers) == record
    assert (locks.undated(after).models, after.pins) == (locks.undated(before).models, before.pins)
    for n, image in after.images[repository].numbers.items():
        assert abs(_seconds(image.built) - _seconds(record.numbers[n].built)) < 60


def _seconds(stamp: str) -> float:
    from datetime import datetime

    return datetime.fromisoformat(stamp).timestamp()


def test_of_several_models_the_first_has_the_revision_that_the_labels_tell(
    small: Project, builder: Command, endpoint: Endpoint, repository: str
) -> None:
    """A recipe names the revision of its own model; others that its image serves come after that one."""
    told = {"builder.models": '["Org/First", "Org/Second"]', "builder.revision": "c1" * 20}
    load(endpoint, f"{repository}:2", [{"own": b"two"}], {**labels(repository, 2), **told})
    builder("lock", "--recover")
    models = lock_file.read_lock(small.lock).models
    assert {name: model.pairing.image for name, model in models.items()} == dict.fromkeys(
        ("Org/First", "Org/Second"), ImageName(repository, 2)
    )
    assert [models[name].pairing.revision for name in ("Org/First", "Org/Second")] == ["c1" * 20, None]


@pytest.mark.long
def test_a_definition_that_cannot_be_read_keeps_nothing_from_being_recovered(
    lived: Project, lived_once: tuple[Project, str], run_lived: Command
) -> None:
    _, repository = lived_once
    before = lived.lock.read_bytes()
    lived.lock.unlink()
    projects.write(lived.root / "dockerfiles/broken/image.yaml", "repository: [\n")
    done = run_lived("lock", "--recover", code=1)
    assert f"records 3 images again: {repository}:1, {repository}:2, {repository}:3" in done.stdout
    assert (
        "the search did not include images of broken that have no build directory: dockerfiles/broken/image.yaml:"
        in " ".join((done.stdout + done.stderr).split())
    )
    assert lived.lock.read_bytes() == before


@pytest.mark.long
def test_what_the_engine_no_longer_has_is_recorded_as_pruned(
    lived: Project, lived_once: tuple[Project, str], run_lived: Command, endpoint: Endpoint
) -> None:
    _, repository = lived_once
    images.remove_image(endpoint, f"{repository}:1")
    images.tag_image(endpoint, "debian:bookworm-slim", f"{repository}:3")
    lived.lock.unlink()
    output = run_lived("lock", "--recover").stdout
    assert f"{repository}:1 is missing from this engine" in output
    assert f"{repository}:3 has different content in this engine than when it was built" in output
    record = lock_file.read_lock(lived.lock).images[repository]
    assert [number for number, image in record.numbers.items() if image.pruned] == [1]
    assert record.current == 2


@pytest.mark.long
def test_a_good_lock_gets_only_what_it_lacks(
    lived: Project, lived_once: tuple[Project, str], run_lived: Command
) -> None:
    _, repository = lived_once
    run_lived("mark", "small:1", "good", "--note", "kept")
    lock = lock_file.read_lock(lived.lock)
    record = lock.images[repository]
    less = replace(record, numbers={n: record.numbers[n] for n in (1, 2)}, previous=(1,))
    models = {
        name: replace(model, pairing=replace(model.pairing, image=ImageName(repository, 2)), previous=())
        for name, model in lock.models.items()
    }
    lived.lock.write_text(dump_lock(replace(lock, images={repository: less}, models=models)), encoding="utf-8")
    run_lived("lock", "--recover")
    after = lock_file.read_lock(lived.lock)
    assert after.images[repository] == replace(less, numbers=record.numbers)
    assert after.models == models
    assert after.pins == lock.pins


@pytest.mark.long
def test_what_must_not_be_written_over_is_not(lived: Project, run_lived: Command) -> None:
    text = lived.lock.read_text(encoding="utf-8")
    for damage in (text.replace("version: 3", "version: 4", 1), f"<<<<<<< ours\n{text}"):
        lived.lock.write_text(damage, encoding="utf-8")
        run_lived("lock", "--recover", code=4)
        assert lived.lock.read_text(encoding="utf-8") == damage


def test_images_of_others_are_not_recovered(
    small: Project, builder: Command, endpoint: Endpoint, repository: str
) -> None:
    other = f"{repository}-other"
    number(endpoint, other, 1)
    images.tag_image(endpoint, f"{other}:1", f"{repository}:5")
    try:
        assert "neither the engine nor builds/ holds an image" in builder("lock", "--recover", code=1).stderr
        assert not small.lock.exists()
    finally:
        images.remove_image(endpoint, f"{other}:1")
