"""Two projects with one engine and one repository name: every number means one content, and neither moves or removes
what the other recorded."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from functools import partial
from typing import TYPE_CHECKING

import pytest

from builder.base.errors import ImageStateError
from builder.base.project import Project
from builder.commands import keeping
from builder.definitions import recipe
from builder.engine import client, images
from builder.engine.client import Endpoint
from builder.lock import lock_file
from builder.lock.model import ImageName
from builder.lock.text import dump_lock
from builder.moving import checkout
from builder.numbers import claims, images_lock
from tests import projects
from tests.commands.test_reliability import leftovers
from tests.conftest import Command, command, run_command
from tests.stock import load, record, stock
from tests.workspaces import workspace

if TYPE_CHECKING:
    from collections.abc import Callable

    from builder.numbers.workspace import Workspace


pytestmark = pytest.mark.engine

PROCESSES, NUMBERS = 4, 3


@pytest.fixture
def other(small: Project, repository: str, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A second clone, whose images differ."""
    project = projects.make(tmp_path_factory.mktemp("other"), repository)
    projects.with_own_steps(project, f"other {repository}")
    return project


def content(endpoint: Endpoint, tag: str) -> str:
    details = images.inspect_image(endpoint, tag)
    return images.fingerprint(details) if details else ""


def give(context: Workspace, repository: str, tag: str) -> None:
    """Gives an image of the engine the next number, and makes it current, as the last step of a build does."""
    details = images.inspect_image(context.engine, tag)
    assert details
    image = record(context.engine, tag, 1)
    work = context.project.state / "work" / tag.rpartition(":")[2]
    projects.write(work / "build/bake.json", "{}")
    with images_lock.transaction(context) as transaction:
        name = transaction.next_name(repository, image.fingerprint)
        transaction.place(name, tag, work / "build", details.id, image.fingerprint)
        transaction.commit(transaction.lock.with_image(name, image).with_current(name))


def in_child(work: Callable[[], object]) -> int:
    """The process id of a child that does it."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        work()
        status = 0
    finally:
        os._exit(status)


def test_a_number_of_another_project_is_no_image_without_a_number(
    small: Project, other: Project, endpoint: Endpoint, repository: str
) -> None:
    load(endpoint, f"{repository}:work", [{"file": b"mine"}])
    give(workspace(small, endpoint), repository, f"{repository}:work")
    load(endpoint, f"{repository}:free", [{"file": b"free"}])
    recipes = [recipe.load_recipe(other, path) for path in recipe.recipe_files(other.recipes)]
    (found,) = (each for each in checkout.adoptable(workspace(other, endpoint), recipes) if repository in each.tag)
    assert (found.tag, found.size) == (f"{repository}:free", images.disk_size(endpoint, f"{repository}:free"))


@pytest.mark.long
def test_many_that_give_numbers_at_once_never_give_the_same(
    small: Project, other: Project, endpoint: Endpoint, repository: str
) -> None:
    tags = [f"{repository}-work:{turn}" for turn in range(2 * PROCESSES * NUMBERS)]
    for tag in tags:
        load(endpoint, tag, [{"file": f"{tag}\n".encode()}])

    def work(project: Project, own_tags: list[str]) -> None:
        for tag in own_tags:
            give(workspace(project, endpoint), repository, tag)

    children = [
        in_child(partial(work, (small, other)[place % 2], tags[place :: 2 * PROCESSES]))
        for place in range(2 * PROCESSES)
    ]
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * len(children)
    given = [lock_file.read_lock(project.lock).images[repository] for project in (small, other)]
    assert [len(numbers.numbers) for numbers in given] == [PROCESSES * NUMBERS] * 2
    assert not given[0].numbers.keys() & given[1].numbers.keys()
    for numbers in given:
        for number, image in numbers.numbers.items():
            assert content(endpoint, f"{repository}:{number}") == image.fingerprint
    latest = content(endpoint, f"{repository}:latest")
    owner = claims.owner_of_latest(endpoint, "", repository)
    assert owner in {claims.project_identity(small), claims.project_identity(other)}
    owned = given[0 if owner == claims.project_identity(small) else 1]
    assert owned.current
    assert owned.numbers[owned.current].fingerprint == latest
    for tag in tags:
        images.remove_image(endpoint, tag)


@pytest.mark.long
def test_a_build_beside_another_project_takes_the_next_number_and_leaves_latest(
    small: Project, other: Project, builder: Command, endpoint: Endpoint, repository: str
) -> None:
    builder("build", "small")
    latest = content(endpoint, f"{repository}:latest")
    done = run_command(other, "build", "small")
    assert done.stdout.startswith(f"built {repository}:2 in ")
    assert f"it is number 2: the engine has {repository}:1, but images.lock does not" in done.stdout
    told = " ".join(done.stderr.split())
    assert f"{repository}:latest was not moved: it belongs to the project in {small.root} on " in told
    assert f"`docker volume rm {claims.volume_of_latest(repository)}`" in told
    assert content(endpoint, f"{repository}:latest") == latest
    verified = run_command(other, "verify").stdout
    assert verified.startswith(
        f"foreign  {repository}:latest: does not point to {repository}:2: it belongs to the project in "
    )
    assert run_command(small, "verify").stdout == "everything matches images.lock\n"
    assert run_command(small, "list").stderr == ""
    # Its first number was given by nobody here, and is none of this project's.
    run_command(other, "rebuild", f"{repository}:1", code=2)
    builder("rollback", repository, code=1)
    # The other clone is deleted, and cloned anew in the same place.
    root = small.root
    kept = root.with_name(f"{root.name}-kept")
    root.rename(kept)
    projects.make(root, repository)
    assert "latest was not moved" not in " ".join(run_command(other, "promote", f"{repository}:2").stderr.split())
    assert content(endpoint, f"{repository}:latest") == content(endpoint, f"{repository}:2")
    assert run_command(Project(root), "build", "small").stdout.startswith(f"built {repository}:3 in ")
    shutil.rmtree(kept)


@pytest.mark.long
def test_rollback_list_verify_and_build_agree_on_a_latest_of_another_project(
    small: Project, other: Project, builder: Command, endpoint: Endpoint, repository: str
) -> None:
    builder("build", "small")
    latest = content(endpoint, f"{repository}:latest")
    run_command(other, "build", "small")
    projects.write(other.mods / "template/chat.jinja", "another\n")
    assert " ".join(run_command(other, "build", "chat").stderr.split()).count("latest was not moved") == 1
    owner = f"the project in {small.root} on "
    rolled_back = run_command(other, "rollback", repository)
    assert rolled_back.stdout.startswith(f"{repository}, the current image here: {repository}:3 → {repository}:2\n")
    assert " ".join(rolled_back.stderr.split()).count("latest was not moved") == 1
    verified = " ".join(run_command(other, "verify").stdout.split())
    assert f"{repository}:latest: does not point to {repository}:2: it belongs to {owner}" in verified
    listed = " ".join(run_command(other, "list").stderr.split())
    assert f"{repository}:latest is not the current image of this project; it belongs to {owner}" in listed
    assert content(endpoint, f"{repository}:latest") == latest


def test_a_number_of_another_project_is_not_overwritten(
    small: Project, other: Project, endpoint: Endpoint, repository: str
) -> None:
    """A number that another gave and pruned: its tag is free, and it is not."""
    load(endpoint, f"{repository}-work:1", [{"file": b"one\n"}])
    give(workspace(small, endpoint), repository, f"{repository}-work:1")
    images.remove_image(endpoint, f"{repository}:latest")
    images.remove_image(endpoint, f"{repository}:1")
    load(endpoint, f"{repository}-work:2", [{"file": b"two\n"}])
    own = record(endpoint, f"{repository}-work:2", 1)
    name = ImageName(repository, 1)
    other.lock.write_text(dump_lock(lock_file.read_lock(small.lock).with_image(name, own)), encoding="utf-8")
    with pytest.raises(ImageStateError, match="gave it that number"):
        images_lock.restore_tag(workspace(other, endpoint), name, f"{repository}-work:2")
    assert images.inspect_image(endpoint, str(name)) is None
    give(workspace(other, endpoint), repository, f"{repository}-work:2")
    assert set(lock_file.read_lock(other.lock).images[repository].numbers) == {1, 2}
    images_lock.restore_tag(workspace(small, endpoint), name, f"{repository}-work:1")
    assert content(endpoint, str(name)) == lock_file.read_lock(small.lock).images[repository].numbers[1].fingerprint
    for number in (1, 2):
        images.remove_image(endpoint, f"{repository}-work:{number}")


@pytest.mark.long
@pytest.mark.alone
def test_what_two_projects_have_stays_until_both_pruned_it(
    small: Project, other: Project, builder: Command, endpoint: Endpoint, repository: str
) -> None:
    """The second clone has images.lock from the first by git."""
    stock(small, endpoint, repository, range(1, 4))
    shutil.copy(small.lock, other.lock)
    builder("promote", f"{repository}:3")
    run_command(other, "promote", f"{repository}:3")
    everything = ("prune", "--keep", "0", "--yes")
    plan = json.loads(run_command(other, "prune", "--keep", "0", "--json").stdout)
    assert {row["image"]: row["holder"] and row["frees"] for row in plan["going"]} == {
        f"{repository}:1": 0,
        f"{repository}:2": 0,
    }
    done = run_command(other, *everything)
    assert (
        f"{repository}:1 is recorded as pruned and stays in the engine, because the project in {small.root}"
        in done.stdout
    )
    assert "removed 0 images" in done.stdout
    assert {n for n, image in lock_file.read_lock(other.lock).images[repository].numbers.items() if image.pruned} == {
        1,
        2,
    }
    assert "nothing to remove" in run_command(other, *everything).stdout
    states = json.loads(builder("list", "--json").stdout)["images"]
    assert {row["state"] for row in states} == {"present"}
    assert "removed 2 images" in builder(*everything).stdout
    assert set(images.image_tags(endpoint, [repository])) == {f"{repository}:3", f"{repository}:latest"}


@pytest.mark.alone
def test_an_image_of_another_project_that_lost_its_name_is_no_orphan(
    small: Project, other: Project, endpoint: Endpoint, repository: str
) -> None:
    tag = f"{repository}-work:1"
    load(endpoint, tag, [{"file": b"one\n"}], {"org.opencontainers.image.title": repository, "builder.input-hash": "x"})
    give(workspace(small, endpoint), repository, tag)
    stock(other, endpoint, repository, [2])
    details = images.inspect_image(endpoint, tag)
    assert details
    body = {"Image": details.id, "Cmd": ["x"]}
    container = client.request(endpoint, "POST", "/containers/create", body=body)["Id"]
    for name in (tag, f"{repository}:1"):
        client.raw(endpoint, "DELETE", f"/images/{name}", query={"force": 1})
    client.request(endpoint, "DELETE", f"/containers/{container}", query={"force": 1})
    assert images.inspect_image(endpoint, details.id), "it has no name"
    run_command(other, "prune", "--keep", "0", "--yes")
    assert images.inspect_image(endpoint, details.id)
    images.tag_image(endpoint, details.id, f"{repository}:1")


def test_a_lost_lock_is_not_recovered_from_the_images_of_another_project(
    small: Project, other: Project, builder: Command, endpoint: Endpoint, repository: str
) -> None:
    stock(small, endpoint, repository, [1, 2])
    builder("promote", f"{repository}:2")
    done = run_command(other, "lock", "--recover", code=1)
    assert f"{repository}:1 is left out: it belongs to the project in {small.root}" in " ".join(done.stderr.split())
    assert not other.lock.exists()
    small.lock.unlink()
    builder("lock", "--recover")
    recovered = lock_file.read_lock(small.lock).images[repository]
    assert (sorted(recovered.numbers), recovered.current) == ([1, 2], 2)


def test_what_a_killed_process_claimed_is_free_after_the_next_command(
    small: Project, other: Project, endpoint: Endpoint, repository: str
) -> None:
    for number in (1, 2):
        load(endpoint, f"{repository}-work:{number}", [{"file": f"{number}\n".encode()}])

    def claim_and_die() -> None:
        with images_lock.transaction(workspace(small, endpoint)) as transaction:
            transaction.next_name(repository, "sha256:never")
            os._exit(0)

    os.waitpid(in_child(claim_and_die), 0)
    give(workspace(other, endpoint), repository, f"{repository}-work:1")
    assert set(lock_file.read_lock(other.lock).images[repository].numbers) == {2}
    images_lock.recover_transaction(workspace(small, endpoint))
    assert {claims.number_of(labels) for labels in claims.of_repository(endpoint, repository).values()} == {0, 2}
    give(workspace(small, endpoint), repository, f"{repository}-work:2")
    assert set(lock_file.read_lock(small.lock).images[repository].numbers) == {3}
    for number in (1, 2):
        images.remove_image(endpoint, f"{repository}-work:{number}")


def test_a_number_that_was_tagged_by_hand_meanwhile_is_not_given(
    small: Project, endpoint: Endpoint, repository: str
) -> None:
    for number in (1, 2):
        load(endpoint, f"{repository}-work:{number}", [{"file": f"{number}\n".encode()}])
    give(workspace(small, endpoint), repository, f"{repository}-work:1")
    images.tag_image(endpoint, f"{repository}-work:1", f"{repository}:8")
    give(workspace(small, endpoint), repository, f"{repository}-work:2")
    assert set(lock_file.read_lock(small.lock).images[repository].numbers) == {1, 9}
    for number in (1, 2):
        images.remove_image(endpoint, f"{repository}-work:{number}")


def test_a_container_that_comes_after_its_work_folder_is_gone_is_removed(
    small: Project, builder: Command, endpoint: Endpoint, repository: str
) -> None:
    """The engine makes it even if the process that asked for it was killed meanwhile, and another has cleaned up."""
    load(endpoint, f"{repository}:loaded", [{"file": b"x\n"}])
    own = claims.project_identity(small)
    for project_id in (own.id, "0" * 32):
        labels = {"builder.work": f"{repository}-{project_id}", claims.PROJECT: project_id}
        body = {"Image": f"{repository}:loaded", "Cmd": ["x"], "Labels": labels}
        client.request(endpoint, "POST", "/containers/create", body=body)
    keeping.adopt_image(workspace(small, endpoint), f"{repository}:loaded")
    left = [name for name in leftovers(endpoint, repository) if ":" not in name]
    assert left == [f"{repository}-{'0' * 32}"], "only that of another project is left"
    filters = json.dumps({"label": [f"builder.work={left[0]}"]})
    for container in client.listed(endpoint, "/containers/json", query={"all": 1, "filters": filters}):
        client.request(endpoint, "DELETE", f"/containers/{container['Id']}", query={"force": 1})


@pytest.mark.long
@pytest.mark.alone
def test_two_prunes_at_once_and_images_removed_by_hand_meanwhile(
    small: Project, builder: Command, endpoint: Endpoint, repository: str
) -> None:
    stock(small, endpoint, repository, range(1, 13))
    arguments = command(small, "prune", "--keep", "1", "--yes")
    processes = [
        subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(3)
    ]
    for number in range(11, 0, -1):
        images.remove_image(endpoint, f"{repository}:{number}")
    for process in processes:
        output, errors = process.communicate(timeout=120)
        assert process.returncode == 0, output + errors
    builder("prune", "--keep", "1", "--yes")
    assert set(images.image_tags(endpoint, [repository])) == {f"{repository}:12", f"{repository}:latest"}
