"""``builder migrate``: a made-up checkout taken over, as a user does it."""

from __future__ import annotations

import json
import os
import subprocess
import time
from typing import TYPE_CHECKING, Any

import pytest

from builder.base.errors import ConflictError, UsageError
from builder.base.project import Project
from builder.base.words import sha256_of
from builder.commands import init
from builder.definitions import mod
from builder.lock import lock_file
from builder.moving import checkout, copies
from builder.moving.shipped import InitRecord, write_shipped_record
from tests import program, projects, shared
from tests.conftest import command, remove_all, run_command
from tests.moving.migration import checkouts
from tests.stock import BASE, load
from tests.workspaces import NO_ENGINE, workspace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from builder.engine.client import Endpoint


ENV = """\
CLUSTER_NODES=127.0.0.1,203.0.113.7
LOCAL_IP=127.0.0.1
ETH_IF=enp1s0f1np1
IB_IF=rocep1s0f1,roceP2p1s0f1
CONTAINER_NCCL_DEBUG=INFO
CONTAINER_HF_TOKEN=hf_geheimgeheim
CONTAINER_WEB_API_KEY=geheim
broken line
"""


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    folder = checkouts.cloned(tmp_path / "theirs")
    projects.write(folder / ".env", ENV)
    return folder


@pytest.fixture
def project(tmp_path: Path) -> Project:
    (tmp_path / "project/dockerfiles").mkdir(parents=True)
    return Project(tmp_path / "project")


@pytest.fixture
def builder(project: Project) -> Callable[..., subprocess.CompletedProcess[str]]:
    """The command, where no engine answers."""

    def run(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = run_command(project, *arguments, code=code, environ={"DOCKER_HOST": NO_ENGINE.host, "COLUMNS": "80"})
        assert "geheim" not in done.stdout + done.stderr
        return done

    return run


def files(project: Project) -> dict[str, str]:
    return {
        str(path.relative_to(project.root)): path.read_text()
        for path in project.root.rglob("*")
        if path.is_file() and ".builder" not in path.parts
    }


@pytest.mark.slow
def test_a_plan_writes_nothing(project: Project, theirs: Path, builder: Callable[..., Any]) -> None:
    done = builder("migrate", str(theirs))
    assert "nothing was written; to write without asking: --yes" in done.stdout
    assert "+    address: 203.0.113.7" in done.stdout
    assert ".env:8:1: not an assignment NAME=VALUE: left out" in done.stderr
    assert "no Docker engine answers" in done.stderr
    assert files(project) == {}


@pytest.mark.slow
def test_on_agreement_everything_is_there_and_a_second_time_nothing_is_left_to_do(
    project: Project, theirs: Path, builder: Callable[..., Any]
) -> None:
    before = {path: path.read_bytes() for path in theirs.rglob("*") if path.is_file()}
    checkouts.add_recipe(theirs, "own")
    builder("migrate", str(theirs), "--yes")
    written = files(project)
    for path in ("recipes/chat.yaml", "recipes/4x/large.yaml", "recipes/own.yaml", "mods/template/chat.jinja"):
        assert written[path] == (theirs / path).read_text()
    assert "NCCL_DEBUG: INFO" in written["builder.yaml"]
    assert "WEB_API_KEY: null" in written["builder.yaml"]
    assert "geheim" not in "".join(written.values())
    copied = copies.read_origin(project, "mod", "template")
    assert copied is not None
    assert copied.url == str(theirs.parent / "upstream")
    assert copies.read_origin(project, "recipe", "own") is None
    assert all(path.read_bytes() == content for path, content in before.items())

    assert "there is nothing to do" in builder("migrate", str(theirs), "--yes").stdout
    assert files(project) == written
    assert "unchanged" in builder("mods", "update", "template").stdout


@pytest.mark.slow
def test_only_a_recipe_and_the_mods_that_it_names(project: Project, theirs: Path, builder: Callable[..., Any]) -> None:
    document = json.loads(builder("migrate", str(theirs), "chat", "--yes", "--json").stdout)
    assert document["written"] == ["mods/template", "recipes/chat"]
    assert not (project.recipes / "4x").exists()
    assert not (project.mods / "unused").exists()


@pytest.mark.slow
def test_what_is_here_and_differs_stays_unless_it_is_to_be_replaced(
    project: Project, theirs: Path, builder: Callable[..., Any]
) -> None:
    projects.write(project.recipes / "chat.yaml", "mine\n")
    projects.write(project.mods / "template/run.sh", "mine\n")
    done = builder("migrate", str(theirs), "--yes")
    assert done.stdout.count("differs from the present files, which stay") == 2
    assert (project.recipes / "chat.yaml").read_text() == "mine\n"
    assert (project.mods / "template/run.sh").read_text() == "mine\n"

    done = builder("migrate", str(theirs), "--replace")
    assert "-mine" in done.stdout
    assert (project.recipes / "chat.yaml").read_text() == "mine\n"
    builder("migrate", str(theirs), "--replace", "--yes")
    assert (project.recipes / "chat.yaml").read_text() == (theirs / "recipes/chat.yaml").read_text()
    assert (project.mods / "template/chat.jinja").read_text() == "one\n"


@pytest.mark.slow
def test_whoever_is_killed_leaves_each_part_whole_and_the_next_time_does_the_rest(
    project: Project, theirs: Path
) -> None:
    argv = command(project, "migrate", str(theirs), "--yes")
    environ = {**os.environ, "DOCKER_HOST": NO_ENGINE.host}
    whole = {
        path.relative_to(theirs).as_posix(): path.read_text()
        for folder in ("recipes", "mods")
        for path in (theirs / folder).rglob("*")
        if path.is_file()
    }
    for tenths in range(3, 13, 2):
        process = subprocess.Popen(argv, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(tenths / 10)
        process.kill()
        process.wait()
        for path, text in files(project).items():
            parts = path.split("/")
            assert (
                path == "builder.yaml"
                or parts[-1].endswith(".source")
                or any(part.startswith(".") for part in parts)
                or text == whole[path]
            )
        mods = [path for path in project.mods.glob("[!.]*") if path.is_dir()]
        assert all((path / "run.sh").exists() for path in mods)
        assert (project.mods / "template/chat.jinja").exists() == (project.mods / "template").exists()
    program.run(argv, env=environ, check=True)
    assert whole.items() <= files(project).items()
    assert not list(project.root.rglob("*.new"))
    assert set(copies.copy_names(project, "mod")) == {"template", "unused"}


def planned(project: Project, folder: Path, **options: Any) -> init.Migration:
    return init.plan_migration(workspace(project, NO_ENGINE), folder, **options)


@pytest.mark.slow
def test_what_cannot_be_served_or_taken_is_told_and_keeps_nothing_from_coming(
    project: Project, theirs: Path, tmp_path: Path
) -> None:
    projects.write(theirs / "recipes/broken.yaml", "name: [\n")
    projects.write(theirs / "recipes/portless.yaml", 'recipe_version: "1"\nname: a\ncontainer: b\ncommand: x {port}\n')
    checkouts.add_recipe(theirs, "lacking", mods="[mods/nowhere, extra/second, ./mods/template]")
    projects.write(theirs / "extra/second/run.sh", "pip install other==1\n")
    projects.add_mod(theirs, "loop", "while sleep 60; do echo 3 > /proc/sys/vm/drop_caches; done &\n", {})
    (theirs / "mods/template/away").symlink_to(tmp_path)
    (theirs / "recipes/linked.yaml").symlink_to(tmp_path / "other.yaml")
    projects.write(tmp_path / "other.yaml", "elsewhere\n")
    plan = planned(project, theirs)
    assert set(plan.problems) == {"broken", "portless"}
    assert plan.missing == {"nowhere": ""}
    (renamed,) = (note for note in plan.notes if "names the mod" in note)
    assert renamed.startswith("a recipe names the mod extra/second, which is called mods/second here")
    assert "drop_caches" in plan.run_time["loop"]
    unfit = {part.name: part.reason for part in plan.parts if part.state == "unfit"}
    assert set(unfit) == {"template", "linked"}
    assert unfit["linked"] == "a link that leads outside the checkout"
    result = init.migrate(workspace(project, NO_ENGINE), plan)
    assert not result.errors
    assert {part.name for part in result.written} == {
        "unused",
        "loop",
        "broken",
        "portless",
        "second",
        "lacking",
        "chat",
        "4x/large",
    }


def test_a_change_since_the_plan_is_an_error_of_that_part_alone(project: Project, theirs: Path) -> None:
    plan = planned(project, theirs)
    projects.write(project.recipes / "chat.yaml", "meanwhile\n")
    projects.write(project.root / "builder.yaml", "registry: lan:5000\n")
    result = init.migrate(workspace(project, NO_ENGINE), plan)
    assert [what for what, _ in result.errors] == ["recipe chat", "builder.yaml"]
    assert isinstance(result.errors[0][1], ConflictError)
    assert (project.recipes / "chat.yaml").read_text() == "meanwhile\n"
    assert (project.root / "builder.yaml").read_text() == "registry: lan:5000\n"
    assert copies.read_copy_files(project, "mod", "template") is not None


def test_where_it_came_from_is_written_down_of_what_is_here_already(project: Project, theirs: Path) -> None:
    here = workspace(project, NO_ENGINE)
    init.migrate(here, planned(project, theirs))
    (project.mods / "template.source").unlink()
    (project.recipes / "chat.yaml").write_text("mine\n")
    (project.recipes / "chat.source").unlink()
    plan = planned(project, theirs)
    assert {part.name: part.state for part in plan.parts if part.state != "same"} == {
        "template": "unrecorded",
        "chat": "differs",
    }
    init.migrate(here, plan)
    assert copies.read_origin(project, "mod", "template") is not None
    assert copies.read_origin(project, "recipe", "chat") is None


def test_what_is_brought_replaces_what_came_with_this_program_unless_it_was_edited(
    project: Project, theirs: Path
) -> None:
    for name in ("template", "unused"):
        projects.add_mod(project.root, name, "true\n", {})
    projects.write(project.recipes / "chat.yaml", "ours\n")
    shipped = ("mods/template/run.sh", "mods/unused/run.sh", "recipes/chat.yaml")
    digests = {path: sha256_of((project.root / path).read_bytes()) for path in shipped}
    write_shipped_record(project, InitRecord("0.1.0", "all", digests))
    projects.write(project.mods / "unused/run.sh", "mine\n")
    plan = planned(project, theirs)
    states = {part.name: part.state for part in plan.parts}
    assert (states["template"], states["unused"], states["chat"]) == ("shipped", "differs", "shipped")
    assert not init.migrate(workspace(project, NO_ENGINE), plan).errors
    assert (project.mods / "template/chat.jinja").read_text() == "one\n"
    assert (project.recipes / "chat.yaml").read_text() == (theirs / "recipes/chat.yaml").read_text()
    assert (project.mods / "unused/run.sh").read_text() == "mine\n"
    assert copies.read_origin(project, "mod", "template") is not None


def test_a_mod_that_is_nowhere_comes_with_the_command_where_one_is_known(project: Project, theirs: Path) -> None:
    checkouts.add_recipe(theirs, "lost", mods="[mods/drop-caches, mods/nowhere]")
    missing = planned(project, theirs).missing
    assert missing == {"drop-caches": mod.remedy(project, "drop-caches"), "nowhere": ""}
    assert missing["drop-caches"].startswith("`builder mods add https://")


def test_another_file_of_settings(project: Project, theirs: Path, tmp_path: Path) -> None:
    projects.write(tmp_path / "lab.env", "CONTAINER_ONE=two\n")
    plan = planned(project, theirs, env_file=tmp_path / "lab.env")
    assert plan.settings is not None
    assert plan.settings.after == "env:\n  ONE: two\n"


def test_the_project_itself_is_no_checkout(project: Project) -> None:
    project.recipes.mkdir()
    with pytest.raises(UsageError, match="is this project itself"):
        planned(project, project.root)


@pytest.fixture
def repository(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A repository of this test, in place of the names that the checkout's scripts give their images."""
    name = shared.unique_name()
    monkeypatch.setattr(checkout, "DEFAULT_NAMES", (name,))
    yield name
    remove_all(endpoint, name)
    remove_all(endpoint, f"{name}/served")


@pytest.mark.long
@pytest.mark.engine
def test_images_of_the_engine_get_numbers_the_latest_first(
    project: Project, tmp_path: Path, endpoint: Endpoint, repository: str
) -> None:
    folder = tmp_path / "theirs"
    checkouts.add_recipe(folder, "chat", container=repository)
    load(endpoint, f"{repository}:latest", [BASE, {"version": b"two"}])
    load(endpoint, f"{repository}:backup", [BASE, {"version": b"one"}])
    here = workspace(project, endpoint)
    plan = init.plan_migration(here, folder)
    assert [image.tag for image in plan.images] == [f"{repository}:latest", f"{repository}:backup"]
    assert not lock_file.read_project_lock(project).images

    result = init.migrate(here, plan)
    assert [str(image.image) for image in result.adopted] == [f"{repository}:1", f"{repository}:2"]
    assert not result.errors
    recorded = lock_file.read_project_lock(project).images[repository]
    assert recorded.current == 1
    adoptions = [record.adopted.image for record in recorded.numbers.values() if record.adopted]
    assert adoptions == [f"{repository}:latest", f"{repository}:backup"]

    again = init.plan_migration(here, folder)
    assert not again.changes_something
    load(endpoint, f"{repository}:trial", [BASE, {"version": b"three"}])
    third = init.migrate(here, init.plan_migration(here, folder))
    assert [str(image.image) for image in third.adopted] == [f"{repository}:3"]
    assert lock_file.read_project_lock(project).images[repository].current == 1
    assert not init.plan_migration(here, folder, with_images=False).images


@pytest.mark.engine
def test_of_a_registrys_images_only_those_that_recipes_name(
    project: Project, tmp_path: Path, endpoint: Endpoint, repository: str
) -> None:
    folder = tmp_path / "theirs"
    container = f"{repository}/served:v1"
    checkouts.add_recipe(folder, "chat", container=container)
    checkouts.add_recipe(folder, "odd", container="nowhere/at-all")
    load(endpoint, container, [BASE, {"version": b"v1"}])
    load(endpoint, f"{repository}/served:v2", [BASE, {"version": b"v2"}])
    here = workspace(project, endpoint)
    plan = init.plan_migration(here, folder)
    assert [image.tag for image in plan.images] == [container]
    assert [str(each.image) for each in init.migrate(here, plan).adopted] == [f"{repository}/served:1"]
