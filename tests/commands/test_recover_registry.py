"""images.lock is lost, and what only the registry has comes back too."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest

from builder.engine import images
from builder.engine.client.endpoint import Endpoint
from builder.lock import reading
from builder.lock.model import ImageName, NumberedImage, Repository
from builder.lock.text import dump
from builder.project import Project
from tests import projects, registries
from tests.conftest import Command, remove_all
from tests.registries import Registry

pytestmark = pytest.mark.engine


@pytest.fixture
def pushed(small: Project, builder: Command, repository: str, registry: Registry) -> Project:
    """Three numbers, of which the registry has the first two, and the second as ``latest``."""
    registries.configure(small, registry=registry.address)
    for version in ("one", "two", "three"):
        projects.write(small.root / "mods/template/chat.jinja", f"version {version}\n")
        builder("build", "chat")
        if version != "three":
            builder("push", "small")
    return small


def held(project: Project, repository: str) -> Repository:
    return reading.read(project.lock).images[repository]


def lose(project: Project, *, builds: bool) -> Repository:
    """Removes images.lock, and the build directories too; returns what was recorded."""
    before = next(iter(reading.read(project.lock).images.values()))
    project.lock.unlink()
    if builds:
        shutil.rmtree(project.builds)
    return before


def document(builder: Command, code: int = 0) -> dict[str, list[str]]:
    found: dict[str, list[str]] = json.loads(builder("lock", "--recover", "--json", code=code).stdout)
    return found


def content(image: NumberedImage) -> NumberedImage:
    """A record without what no registry tells."""
    return replace(image, built="", size=0)


def test_numbers_that_only_the_registry_has_come_back(
    pushed: Project, builder: Command, endpoint: Endpoint, repository: str
) -> None:
    before = reading.read(pushed.lock)
    lose(pushed, builds=True)
    remove_all(endpoint, repository)
    result = document(builder)
    assert result["images"] == [f"{repository}:1", f"{repository}:2"]
    assert result["findings"] == []
    unknown = "\n".join(result["unknown"])
    assert f"{repository}:1 is in the registry alone: when it was built is not known" in unknown
    assert f"{repository}:latest is not in this engine: current is 2, as in the registry" in unknown
    assert "marks, notes and pins" in unknown
    after = reading.read(pushed.lock)
    assert (after.images[repository].current, after.images[repository].next) == (2, 3)
    for number in (1, 2):
        recorded = before.images[repository].numbers[number]
        assert recorded.digest
        assert content(after.images[repository].numbers[number]) == content(recorded)
        assert after.images[repository].numbers[number].size > 0
    assert after.pins == before.pins
    assert after.models["Org/Model-1B"].pairing.image == ImageName(repository, 2)
    # Nothing was pulled for it, and what was recovered can be.
    assert images.tags(endpoint, [repository]) == {}
    assert "in registry" in builder("list").stdout
    builder("pull", "small:2")
    assert f"{repository}:2 → {repository}:1" in builder("rollback", "chat").stdout


def test_what_both_have_is_one_number_with_its_digest(
    pushed: Project, builder: Command, endpoint: Endpoint, repository: str
) -> None:
    before = lose(pushed, builds=False)
    images.remove(endpoint, f"{repository}:1")
    assert document(builder)["images"] == [f"{repository}:{number}" for number in (1, 2, 3)]
    # Number 1 is not pruned: the registry has it. What was built and pushed is known whole.
    assert held(pushed, repository) == before
    lose(pushed, builds=True)
    result = document(builder)
    assert {n: image.digest for n, image in held(pushed, repository).numbers.items()} == {
        n: image.digest for n, image in before.numbers.items()
    }
    assert f"{repository}:latest is 3 in this engine and 2 in the registry: current is 3" in result["unknown"]
    assert held(pushed, repository).current == 3


@pytest.mark.parametrize("builds", [False, True])
def test_other_content_in_the_registry_is_said_and_not_recorded(
    pushed: Project, builder: Command, endpoint: Endpoint, repository: str, builds: bool
) -> None:
    """The engine has another image under number 2 than the registry."""
    fingerprint = held(pushed, repository).numbers[3].fingerprint
    lock = reading.read(pushed.lock)
    images.tag(endpoint, f"{repository}:3", f"{repository}:2")
    lose(pushed, builds=True)
    if not builds:  # a build directory which says the same as the engine
        numbers = {2: replace(lock.images[repository].numbers[3])}
        one = replace(lock.images[repository], numbers=numbers, current=2, previous=())
        projects.write(
            pushed.builds / repository / "2/images.lock", dump(replace(lock, images={repository: one}, models={}))
        )
    result = document(builder, code=1)
    assert len(result["findings"]) == 1
    assert f"/{repository}:2 holds other content than is recorded for {repository}:2" in result["findings"][0]
    recorded = held(pushed, repository).numbers[2]
    assert (recorded.fingerprint, recorded.digest) == (fingerprint, None)
    assert held(pushed, repository).numbers[1].digest
    # It is said again as long as it is so, also where nothing is left to recover.
    assert "images.lock counts" in builder("lock", "--recover", code=1).stderr


def test_a_good_lock_gets_the_numbers_of_the_registry_that_it_lacks(
    pushed: Project, builder: Command, endpoint: Endpoint, repository: str
) -> None:
    lock = reading.read(pushed.lock)
    repo = lock.images[repository]
    less = replace(repo, numbers={n: repo.numbers[n] for n in (2, 3)}, previous=(2,))
    models = {
        name: replace(model, previous=tuple(p for p in model.previous if p.image.number != 1))
        for name, model in lock.models.items()
    }
    pushed.lock.write_text(dump(replace(lock, images={repository: less}, models=models)), encoding="utf-8")
    shutil.rmtree(pushed.builds)
    images.remove(endpoint, f"{repository}:1")
    assert document(builder)["images"] == [f"{repository}:1"]
    after = held(pushed, repository)
    assert (after.current, after.previous) == (3, (2,))
    assert content(after.numbers[1]) == content(repo.numbers[1])
    assert {n: after.numbers[n] for n in (2, 3)} == less.numbers


def test_a_registry_that_does_not_answer_is_said_and_the_engine_alone_tells(
    pushed: Project, builder: Command, endpoint: Endpoint, repository: str, registry: Registry
) -> None:
    lose(pushed, builds=True)
    images.remove(endpoint, f"{repository}:1")
    registry.kill()
    done = builder("lock", "--recover", code=1).stdout
    assert f"records 2 images again: {repository}:2, {repository}:3\n" in done
    assert f"to look at:\n  {registry.address} could not be asked" in done
    registry.start()
    # When it is back, the same command brings the rest.
    assert document(builder)["images"] == [f"{repository}:1"]


def test_with_nothing_but_a_registry_that_does_not_answer_nothing_is_written(
    small: Project, builder: Command, registry: Registry
) -> None:
    registries.configure(small, registry=registry.address)
    registry.kill()
    output = builder("lock", "--recover", code=1).stderr
    assert "nothing to recover" in output
    assert f"{registry.address} could not be asked" in output
    assert not small.lock.exists()


def test_images_of_others_in_the_registry_are_left_alone(
    pushed: Project, builder: Command, endpoint: Endpoint, repository: str, registry: Registry
) -> None:
    from builder.engine.registry import transfer

    reference = f"{registry.address}/{repository}:7"
    images.tag(endpoint, "debian:bookworm-slim", reference)
    try:
        transfer.push(endpoint, reference, {}, lambda _: None)
    finally:
        images.remove_extra_tag(endpoint, reference)
    lose(pushed, builds=True)
    remove_all(endpoint, repository)
    result = document(builder)
    assert result["images"] == [f"{repository}:1", f"{repository}:2"]
    assert f"{reference} was not built by this program: left alone" in result["unknown"]
