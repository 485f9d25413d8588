"""push, pull, and a rollback to what is no longer here: a real registry, and one that fails."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from builder.base.project import Project
from builder.commands import transfers
from builder.definitions import image as definitions
from builder.engine import images
from builder.engine import registry as engine_registry
from builder.engine.client import Endpoint, environment
from builder.lock import lock_file
from builder.lock.model import ImageName, Lock, NumberedImage, Pairing
from builder.lock.text import dump_lock
from builder.numbers import named_registry as image_registry
from tests import locks, program, projects, registries
from tests.conftest import Command, command, remove_all
from tests.registries import Front, Registry
from tests.stock import number, stock
from tests.workspaces import workspace

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


pytestmark = pytest.mark.engine

MODEL = "Org/Model-1B"


@pytest.fixture
def pushed(small: Project, builder: Command, repository: str, registry: Registry, endpoint: Endpoint) -> Registry:
    """A registry with number 1 of ``small``, which is current and paired."""
    registries.configure(small, registry=registry.address)
    stock(small, endpoint, repository, (1,), (MODEL,))
    builder("push", f"{repository}:1")
    return registry


@pytest.fixture
def built(small: Project, builder: Command, repository: str, registry: Registry) -> Registry:
    """The same by a build."""
    registries.configure(small, registry=registry.address)
    builder("build", "chat")
    builder("push", f"{repository}:1")
    return registry


def add_second(project: Project, endpoint: Endpoint, repository: str) -> None:
    """Gives number 2, which becomes current."""
    lock = lock_file.read_lock(project.lock)
    name = ImageName(repository, 2)
    lock = lock.with_image(name, number(endpoint, repository, 2)).with_pairing(MODEL, Pairing(name))
    project.lock.write_text(dump_lock(lock.with_current(name)), encoding="utf-8")
    images.tag_image(endpoint, str(name), f"{repository}:latest")


def recorded(project: Project, repository: str, number: int = 1) -> NumberedImage:
    record = lock_file.read_lock(project.lock).image(ImageName(repository, number))
    assert record
    return record


def row(builder: Command, number: int = 1) -> dict[str, object]:
    rows = json.loads(builder("list", "--json").stdout)["images"]
    found: dict[str, object] = next(row for row in rows if row["number"] == number)
    return found


@pytest.mark.parametrize("signals", [["tag_image"], ["push"], ["push", "remove_extra_tag"]])
def test_an_interrupted_push_leaves_no_name(
    endpoint: Endpoint, repository: str, monkeypatch: pytest.MonkeyPatch, signals: list[str]
) -> None:
    number(endpoint, repository, 1)
    target, name = image_registry.Registry("127.0.0.1:1", private=True), ImageName(repository, 1)

    left = list(signals)

    def interrupt(step: str) -> None:
        if step in left:
            left.remove(step)
            raise KeyboardInterrupt

    def tag_image(endpoint: Endpoint, image: str, reference: str, tag: Callable[..., None] = images.tag_image) -> None:
        tag(endpoint, image, reference)
        interrupt("tag_image")

    def remove_extra_tag(
        endpoint: Endpoint, reference: str, remove: Callable[..., bool] = images.remove_extra_tag
    ) -> bool:
        interrupt("remove_extra_tag")
        return remove(endpoint, reference)

    monkeypatch.setattr(images, "tag_image", tag_image)
    monkeypatch.setattr(images, "remove_extra_tag", remove_extra_tag)
    monkeypatch.setattr("builder.engine.transfer.push_image", lambda *_: interrupt("push"))
    with pytest.raises(KeyboardInterrupt):
        image_registry.push_for_copy(endpoint, target, name, lambda _: None)
    details = images.inspect_image(endpoint, str(name))
    assert (left, details and details.tags) == ([], (str(name),))


def test_the_next_push_removes_the_names_that_a_killed_one_left(
    builder: Command, repository: str, pushed: Registry, endpoint: Endpoint
) -> None:
    for tag in ("arriving", "1", "latest"):
        images.tag_image(endpoint, f"{repository}:1", f"{pushed.address}/{repository}:{tag}")
    assert "already exists" in builder("push", f"{repository}:1").stdout
    assert set(images.image_tags(endpoint, [f"{pushed.address}/{repository}"])) == set()


@pytest.mark.long
def test_push_gives_number_and_latest_and_records_the_digest(
    small: Project, builder: Command, repository: str, built: Registry, endpoint: Endpoint
) -> None:
    digest = recorded(small, repository).digest
    for tag in ("1", "latest"):
        assert engine_registry.manifest_digest(endpoint, f"{built.address}/{repository}:{tag}") == digest
    assert row(builder)["digest"] == digest
    assert "pushed" in builder("list").stdout
    # The engine calls the image by no further name than before.
    assert set(images.image_tags(endpoint, [f"{built.address}/{repository}"])) == set()

    before = small.lock.read_bytes()
    assert "already exists" in builder("push", f"{repository}:1").stdout
    assert small.lock.read_bytes() == before


@pytest.mark.long
def test_only_the_current_number_becomes_latest(
    small: Project, builder: Command, repository: str, pushed: Registry, endpoint: Endpoint
) -> None:
    add_second(small, endpoint, repository)
    builder("promote", f"{repository}:1")
    output = builder("push", f"{repository}:2", "small:1").stdout
    assert "2 pushed:" in output
    assert (
        engine_registry.manifest_digest(endpoint, f"{pushed.address}/{repository}:latest")
        == recorded(small, repository).digest
    )


@pytest.fixture
def other(small: Project, repository: str, tmp_path: Path, endpoint: Endpoint) -> Project:
    """Another project whose number 1 has the same name and other content; that of ``small`` is called MINE."""
    stock(small, endpoint, repository, (1,), (MODEL,))
    images.tag_image(endpoint, f"{repository}:1", f"{repository}:mine")
    name, made = ImageName(repository, 1), projects.make(tmp_path / "other", repository)
    lock = Lock().with_image(name, number(endpoint, repository, 1, [{"file": b"other"}]))
    made.lock.write_text(dump_lock(lock.with_current(name)), encoding="utf-8")
    images.tag_image(endpoint, str(name), f"{repository}:other")
    return made


def run(project: Project, *arguments: str) -> subprocess.CompletedProcess[str]:
    return program.run(command(project, *arguments))


@pytest.mark.long
def test_a_number_that_the_registry_has_with_other_content_is_not_overwritten(
    small: Project, builder: Command, repository: str, other: Project, registry: Registry, endpoint: Endpoint
) -> None:
    for project in (small, other):
        registries.configure(project, registry=registry.address)
    images.tag_image(endpoint, f"{repository}:mine", f"{repository}:1")
    builder("push", f"{repository}:1")
    images.tag_image(endpoint, f"{repository}:other", f"{repository}:1")
    before = other.lock.read_bytes()
    done = run(other, "push", f"{repository}:1")
    assert done.returncode == 1
    assert "not overwritten" in done.stderr
    digest = recorded(small, repository).digest
    assert engine_registry.manifest_digest(endpoint, f"{registry.address}/{repository}:1") == digest
    assert other.lock.read_bytes() == before
    image = recorded(other, repository)
    assert (
        image_registry.state(endpoint, image_registry.Registry(registry.address), ImageName(repository, 1), image)[0]
        == "moved"
    )


@pytest.mark.long
def test_a_number_that_somebody_pushes_while_its_layers_move_is_not_overwritten(
    small: Project, builder: Command, repository: str, other: Project, registry: Registry, endpoint: Endpoint
) -> None:
    winner: list[subprocess.CompletedProcess[str]] = []

    def push_the_other() -> None:
        images.tag_image(endpoint, f"{repository}:other", f"{repository}:1")
        winner.append(run(other, "push", f"{repository}:1"))
        images.tag_image(endpoint, f"{repository}:mine", f"{repository}:1")

    with registries.before(registry) as front:
        registries.configure(small, registry=front.address)
        registries.configure(other, registry=registry.address)
        images.tag_image(endpoint, f"{repository}:mine", f"{repository}:1")
        front.before_tag["arriving"] = push_the_other
        before = small.lock.read_bytes()
        assert "not overwritten" in builder("push", f"{repository}:1", code=1).stderr
    assert small.lock.read_bytes() == before
    assert [one.returncode for one in winner] == [0], winner
    there = engine_registry.manifest_digest(endpoint, f"{registry.address}/{repository}:1")
    assert there == recorded(other, repository).digest


@dataclass
class Race:
    """Two pushes of one number with different content, of which ``theirs`` has looked at it and waits to set it."""

    mine: Front
    theirs: subprocess.Popen[str]
    go: threading.Event

    def let_them(self) -> None:
        self.go.set()
        assert self.theirs.wait(120) == 0


@pytest.fixture
def race(small: Project, repository: str, other: Project, registry: Registry, endpoint: Endpoint) -> Iterator[Race]:
    looked, go = threading.Event(), threading.Event()

    def wait() -> None:
        looked.set()
        go.wait(600)

    with registries.before(registry) as mine, registries.before(registry) as theirs:
        registries.configure(small, registry=mine.address)
        registries.configure(other, registry=theirs.address)
        theirs.before_tag["1"] = wait
        images.tag_image(endpoint, f"{repository}:other", f"{repository}:1")
        process = subprocess.Popen(
            command(other, "push", f"{repository}:1"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        with process:
            try:
                assert looked.wait(120), process.communicate(timeout=120)
                images.tag_image(endpoint, f"{repository}:mine", f"{repository}:1")
                yield Race(mine, process, go)
            finally:
                go.set()
                process.communicate(timeout=120)


@pytest.mark.long
def test_whoever_is_overwritten_before_the_last_look_is_told(
    small: Project,
    builder: Command,
    repository: str,
    other: Project,
    race: Race,
    registry: Registry,
    endpoint: Endpoint,
) -> None:
    race.mine.after_tag["1"] = race.let_them
    before = small.lock.read_bytes()
    assert "but the registry now has" in builder("push", f"{repository}:1", code=1).stderr
    assert small.lock.read_bytes() == before
    there = engine_registry.manifest_digest(endpoint, f"{registry.address}/{repository}:1")
    assert there == recorded(other, repository).digest


@pytest.mark.long
def test_whoever_is_overwritten_after_it_is_told_by_verify(builder: Command, repository: str, race: Race) -> None:
    """A race that a registry cannot prevent: both looked before either had set the number."""
    builder("push", f"{repository}:1")
    race.let_them()
    assert f"{repository}:1: the registry has different content there" in builder("verify", "--registry", code=7).stdout


@pytest.mark.long
def test_a_registry_in_which_no_tag_can_be_moved_takes_numbers(
    small: Project, builder: Command, repository: str, registry: Registry, endpoint: Endpoint
) -> None:
    stock(small, endpoint, repository, (1,))
    with registries.before(registry) as front:
        registries.configure(small, registry=front.address)
        front.immutable = frozenset({"arriving"})
        builder("push", f"{repository}:1")
        assert (
            engine_registry.manifest_digest(endpoint, f"{front.address}/{repository}:1")
            == recorded(small, repository).digest
        )


@pytest.mark.long
def test_a_latest_that_the_registry_does_not_move_ends_no_push(
    small: Project, builder: Command, repository: str, registry: Registry, endpoint: Endpoint
) -> None:
    stock(small, endpoint, repository, (1, 2))
    with registries.before(registry) as front:
        registries.configure(small, registry=front.address)
        front.immutable = frozenset({"latest"})
        done = builder("push", f"{repository}:2", f"{repository}:1")
        assert f"{front.address}/{repository}:latest was left unchanged: tags are immutable" in " ".join(
            done.stderr.split()
        )
        assert [line.partition(" ")[0] for line in done.stdout.splitlines() if line.startswith(repository)] == [
            f"{repository}:2",
            f"{repository}:1",
        ]
        assert recorded(small, repository, 2).digest
        assert engine_registry.manifest_digest(endpoint, f"{front.address}/{repository}:latest") is None


@pytest.mark.long
def test_a_repository_that_exists_from_its_first_push_on_gets_the_first_push(
    small: Project, builder: Command, repository: str, registry: Registry, endpoint: Endpoint
) -> None:
    """Docker Hub and Quay deny access to a repository that does not exist yet."""
    stock(small, endpoint, repository, (1,))
    with registries.before(registry) as front:
        registries.configure(small, registry=front.address)
        front.hides_missing = True
        front.after_tag["arriving"] = lambda: setattr(front, "hides_missing", False)
        builder("push", f"{repository}:1")
        there = engine_registry.manifest_digest(endpoint, f"{front.address}/{repository}:1")
        assert there == recorded(small, repository).digest


@pytest.mark.long
def test_what_was_pushed_is_told_even_if_a_later_push_fails(
    small: Project, builder: Command, repository: str, registry: Registry, endpoint: Endpoint
) -> None:
    stock(small, endpoint, repository, (1, 2))
    images.remove_image(endpoint, f"{repository}:1")
    registries.configure(small, registry=registry.address)
    done = builder("push", f"{repository}:2", f"{repository}:1", code=7)
    assert done.stdout.startswith(f"{repository}:2 pushed, now latest")
    assert f"{repository}:1 is missing from this engine" in done.stderr


@pytest.mark.long
def test_the_same_content_packed_differently_is_the_same(
    small: Project, builder: Command, repository: str, built: Registry, endpoint: Endpoint, tmp_path: Path
) -> None:
    name, image = ImageName(repository, 1), recorded(small, repository)
    reference = f"{built.address}/{repository}:1"
    output = f"type=image,name={reference},push=true,compression=gzip,force-compression=true"
    projects.write(tmp_path / "repack/Dockerfile", f"FROM {name}\n")
    argv = [*endpoint.buildx, "build", "--provenance=false", "--output", output, str(tmp_path / "repack")]
    import os

    subprocess.run(argv, check=True, capture_output=True, env={**os.environ, **environment(endpoint)})
    images.remove_image(endpoint, reference)
    found = engine_registry.manifest_digest(endpoint, reference)
    assert found not in {None, image.digest}
    assert image_registry.state(endpoint, image_registry.Registry(built.address), name, image)[0] == "present"
    builder("push", str(name))
    assert recorded(small, repository).digest == found


@pytest.mark.long
def test_what_was_deleted_comes_back_by_its_digest(
    small: Project, builder: Command, repository: str, pushed: Registry, endpoint: Endpoint
) -> None:
    fingerprint = recorded(small, repository).fingerprint
    add_second(small, endpoint, repository)
    images.remove_image(endpoint, f"{repository}:1")
    assert row(builder)["state"] == "missing"
    assert "in registry" in builder("list").stdout
    # The digest counts: what the number's tag means by now does not.
    builder("push", f"{repository}:2")
    assert f"{repository}:2 → {repository}:1" in builder("rollback", "chat").stdout
    details = images.inspect_image(endpoint, f"{repository}:1")
    assert details
    assert images.fingerprint(details) == fingerprint
    assert set(details.tags) == {f"{repository}:1", f"{repository}:latest"}
    assert row(builder)["state"] == "present"


@pytest.mark.long
def test_without_the_registry_a_rollback_builds_the_number_again(
    small: Project, builder: Command, repository: str, built: Registry, endpoint: Endpoint
) -> None:
    registries.grow(small, 1, "two")
    builder("build", "chat")
    images.remove_image(endpoint, f"{repository}:1")
    before = small.lock.read_bytes()
    built.kill()
    failed = builder("rollback", "chat", code=1).stderr
    assert "not pulled" in failed
    assert f"without a transfer, `builder rebuild {repository}:1` builds the image again" in failed
    assert small.lock.read_bytes() == before
    (small.root / "builder.yaml").unlink()
    assert f"building {repository}:1 again" in builder("rollback", "chat").stderr
    assert images.inspect_image(endpoint, f"{repository}:1") is not None


@pytest.mark.long
def test_pull_takes_a_recipe_and_leaves_what_is_here(
    builder: Command, repository: str, pushed: Registry, endpoint: Endpoint
) -> None:
    assert "is already here" in builder("pull", "chat").stdout
    for tag in ("1", "latest"):
        images.remove_image(endpoint, f"{repository}:{tag}")
    assert f"{repository}:1 pulled" in builder("pull", "recipes/chat.yaml").stdout
    # The current number is latest again.
    assert images.inspect_image(endpoint, f"{repository}:latest") == images.inspect_image(endpoint, f"{repository}:1")


@pytest.mark.long
def test_what_is_not_what_was_recorded_gets_no_number(
    small: Project, builder: Command, repository: str, pushed: Registry, endpoint: Endpoint
) -> None:
    image = recorded(small, repository)
    for tag in ("1", "latest"):
        images.remove_image(endpoint, f"{repository}:{tag}")
    text = small.lock.read_text(encoding="utf-8")
    content = locks.content(image.fingerprint)
    assert content in text
    small.lock.write_text(text.replace(content, locks.content(f"sha256:{'1' * 64}")), encoding="utf-8")
    assert "not the image that images.lock records" in builder("pull", "small:1", code=7).stderr
    assert images.image_tags(endpoint, [repository, f"{pushed.address}/{repository}"]) == {}
    assert images.inspect_image(endpoint, f"{pushed.address}/{repository}@{image.digest}") is None


def test_a_registry_that_wants_a_login_gets_dockers_own(
    small: Project, builder: Command, repository: str, tmp_path: Path, endpoint: Endpoint
) -> None:
    builder("build", "chat")
    with registries.registry(tmp_path / "registry", users=registries.HTPASSWD) as closed:
        registries.configure(small, registry=closed.address)
        config = tmp_path / "docker/config.json"
        projects.write(config, "{}")
        environ = {"DOCKER_CONFIG": str(config.parent)}
        assert "docker login" in builder("push", "small:1", code=1, environ=environ).stderr
        login = {"auths": {closed.address: {"auth": "dGVzdGVyOnNlY3JldA=="}}}
        projects.write(config, json.dumps(login))
        builder("push", "small:1", environ=environ)
        assert recorded(small, repository).digest


def test_push_needs_a_registry_and_an_image_that_is_here(
    small: Project, builder: Command, repository: str, registry: Registry, endpoint: Endpoint
) -> None:
    builder("build", "chat")
    assert "no registry is set" in builder("push", "small:1", code=2).stderr
    registries.configure(small, registry=registry.address)
    assert "has no number 7" in builder("push", "small:7", code=2).stderr
    images.remove_image(endpoint, f"{repository}:1")
    assert "is missing" in builder("push", "small:1", code=7).stderr
    assert definitions.repository_of(small, "small") == repository
    remove_all(endpoint, repository)


@pytest.mark.long
@pytest.mark.parametrize("fault", ["500", "cut"])
def test_a_push_that_broke_off_leaves_no_tag_and_goes_on_later(
    small: Project, builder: Command, repository: str, registry: Registry, endpoint: Endpoint, fault: str
) -> None:
    registries.grow(small, 3000, "one")
    builder("build", "chat")
    with registries.before(registry) as front:
        registries.configure(small, registry=front.address)
        if fault == "500":
            front.fault = fault
        else:
            registry.kill()
        assert "error: " in builder("push", "small:1", code=1).stderr
        assert recorded(small, repository).digest is None
        front.heal()
        if fault != "500":
            registry.start()
        assert engine_registry.manifest_digest(endpoint, f"{front.address}/{repository}:1") is None
        builder("push", "small:1")


@pytest.mark.long
def test_verify_asks_the_registry_where_it_is_told_to(
    small: Project, builder: Command, repository: str, built: Registry, tmp_path: Path
) -> None:
    assert "everything matches images.lock" in builder("verify", "--registry").stdout
    registries.configure(small, registry=f"{built.address}/elsewhere")
    missing = builder("verify", "--registry", code=7).stdout
    assert f"missing  {built.address}/elsewhere/{repository}:1: the registry does not have it" in missing
    assert f"builder push {repository}:1" in missing
    registries.configure(small, registry="127.0.0.1:9")
    assert builder("verify", "--registry", code=5).stdout.startswith("unknown  127.0.0.1:9: ")
    assert builder("verify").stdout == "everything matches images.lock\n"


def test_a_rollback_during_a_push_keeps_latest_from_the_number_that_was_current(
    small: Project, builder: Command, repository: str, pushed: Registry, endpoint: Endpoint
) -> None:
    add_second(small, endpoint, repository)
    pushes = transfers.push_images(workspace(small, endpoint), (f"{repository}:1", f"{repository}:2"))
    assert not next(pushes).latest
    builder("rollback", repository)
    assert not next(pushes).latest
    latest = engine_registry.manifest_digest(endpoint, f"{pushed.address}/{repository}:latest")
    assert latest == recorded(small, repository).digest
