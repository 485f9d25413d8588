"""A project made of a folder: whole or not at all, and brought up to date without losing anything."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from builder.base.errors import ConflictError, LockError, UsageError
from builder.base.project import Project
from builder.base.values import replace
from builder.base.words import sha256_of
from builder.commands import init
from builder.definitions import configuration, image
from builder.definitions.configuration import Configuration
from builder.lock import lock_file
from builder.moving import shipped
from tests import json_outputs, program
from tests.projects import write

if TYPE_CHECKING:
    from pathlib import Path

    from builder.moving.shipped import Contents


NO_PROC = "no such folder"


def make(folder: Path, contents: Contents | None = "cpu") -> Project:
    return init.init_project(folder, contents, {"HOME": "/nowhere"}, folder / NO_PROC).project


def cli(folder: Path, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "DOCKER_HOST": "unix:///nowhere/docker.sock"}
    argv = [sys.executable, "-m", "builder", *arguments]
    return program.run(argv, cwd=folder, env=environ, input=stdin)


def test_an_empty_folder_becomes_a_project(tmp_path: Path) -> None:
    project = make(tmp_path / "new")
    assert image.definition_names(project) == ("cpu",)
    assert lock_file.read_project_lock(project).pins == {
        "cpu": lock_file.read_lock(shipped.shipped_project().lock).pins["cpu"]
    }
    assert os.access(project.root / "scripts/engine", os.X_OK)
    scripts = {path.name for path in (project.root / "scripts").iterdir()}
    assert scripts == {"base-image", "emulation", "engine", "lib", "registry"}  # none of those that only tests use
    recorded = shipped.read_shipped_record(project)
    assert recorded
    assert recorded.contents == "cpu"
    for path in recorded.files:
        assert (project.root / path).is_file(), path


def test_its_settings_can_be_read_with_nothing_set(tmp_path: Path) -> None:
    project = make(tmp_path)
    assert "nodes:" in (project.root / "builder.yaml").read_text()
    assert configuration.load_configuration(project) == Configuration()


@pytest.mark.slow
def test_what_it_begins_with_is_something_that_this_machine_serves(tmp_path: Path) -> None:
    without_gpu, with_gpu = tmp_path / "without", tmp_path / "with"
    write(with_gpu / "driver/nvidia/gpus/0/information", "Model: a GPU\n")
    first = {
        proc.name: init.init_project(tmp_path / f"{proc.name}-project", "all", {"HOME": "/nowhere"}, proc).first
        for proc in (without_gpu, with_gpu)
    }
    assert first["without"] == "recipes/qwen3-0.6b-cpu.yaml"
    assert first["with"] == "recipes/qwen3.5-122b-node.yaml"


def test_what_suits_the_machine_is_taken(tmp_path: Path) -> None:
    assert init.suited(tmp_path)[0] == "cpu"
    write(tmp_path / "driver/nvidia/gpus/0/information", "Model: \t NVIDIA RTX\n")
    assert init.suited(tmp_path)[0] == "all"
    write(tmp_path / "driver/nvidia/gpus/0/information", "Model: \t NVIDIA GB10\n")
    assert init.suited(tmp_path)[0] == "spark"


def test_what_is_in_the_folder_stays(tmp_path: Path) -> None:
    write(tmp_path / "README.md", "mine\n")
    write(tmp_path / ".gitignore", "/mine\n")
    make(tmp_path)
    assert (tmp_path / "README.md").read_text() == "mine\n"
    assert (tmp_path / ".gitignore").read_text().startswith("/mine\n/.builder/\n")


def test_a_folder_with_other_files_of_these_names_is_left_as_it_is(tmp_path: Path) -> None:
    write(tmp_path / "recipes/qwen3-0.6b-cpu.yaml", "mine\n")
    with pytest.raises(ConflictError, match=r"recipes/qwen3-0\.6b-cpu\.yaml"):
        make(tmp_path)
    assert [path.name for path in tmp_path.rglob("*")] == ["recipes", "qwen3-0.6b-cpu.yaml"]


def test_a_project_is_not_made_twice_nor_in_another(tmp_path: Path) -> None:
    project = make(tmp_path)
    with pytest.raises(ConflictError, match="is already a project"):
        make(tmp_path)
    with pytest.raises(ConflictError, match="is inside the project"):
        make(project.root / "mods/inside")
    assert not (project.root / "mods/inside").exists()


def test_the_home_folder_is_no_project(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="contains all your other files"):
        init.init_project(tmp_path, None, {"HOME": str(tmp_path)})
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_one_that_was_killed_is_completed(tmp_path: Path) -> None:
    whole = make(tmp_path / "whole")
    part = tmp_path / "part"
    for path in ("mods/fix-qwen3.5-enhanced-chat-template/run.sh", "builder.yaml", ".builder-init.json"):
        write(part / path, (whole.root / path).read_text())
    write(part / ".builder/new-dockerfiles/cpu/image.yaml", "half a file")
    make(part)

    def contents(root: Path) -> dict[str, bytes]:
        files = (path for path in root.rglob("*") if path.is_file() and ".builder/" not in str(path))
        return {str(path.relative_to(root)): path.read_bytes() for path in files}

    assert contents(part) == contents(whole.root)


@pytest.mark.slow
def test_images_of_before_are_not_lost(tmp_path: Path) -> None:
    write(tmp_path / "kept/images.lock", "version: 3\n\n...\n")
    result = init.init_project(tmp_path / "kept", "cpu", {}, tmp_path / NO_PROC)
    assert result.kept == ("images.lock",)
    assert (tmp_path / "kept/images.lock").read_text() == "version: 3\n\n...\n"
    write(tmp_path / "lost/builds/small/1/bake.json", "{}")
    with pytest.raises(LockError):
        make(tmp_path / "lost")


@pytest.mark.slow
def test_an_update_brings_what_is_newer_and_keeps_what_was_edited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = make(tmp_path)
    edited = project.root / "dockerfiles/cpu/image.yaml"
    write(edited, edited.read_text() + "# mine\n")
    selected = shipped.select("cpu")
    newer = {path: replace(file, content=file.content + b"# newer\n") for path, file in selected.files.items()}
    newest = type(selected)(**{**vars(selected), "files": newer})
    monkeypatch.setattr(shipped, "select", lambda _contents: newest)

    update = init.plan_update(project, None)
    assert [each.path for each in update.edited] == ["dockerfiles/cpu/image.yaml"]
    assert "+# newer" in update.edited[0].difference()
    written = init.update_project(update, {})
    assert "recipes/qwen3-0.6b-cpu.yaml" in written
    assert edited.read_text().endswith("# mine\n")
    assert (project.root / "recipes/qwen3-0.6b-cpu.yaml").read_text().endswith("# newer\n")

    again = init.plan_update(project, None)
    assert (again.writable, [each.path for each in again.edited]) == ((), ["dockerfiles/cpu/image.yaml"])
    init.update_project(again, {}, force=True)
    assert edited.read_text().endswith("# newer\n")
    assert init.plan_update(project, None).edited == ()


def test_a_file_that_changed_since_it_was_shown_is_not_replaced(tmp_path: Path) -> None:
    project = make(tmp_path)
    recipe = project.recipes / "qwen3-0.6b-cpu.yaml"
    recorded = shipped.read_shipped_record(project)
    assert recorded
    write(recipe, "older\n")
    older = {**recorded.files, "recipes/qwen3-0.6b-cpu.yaml": sha256_of(b"older\n")}
    shipped.write_shipped_record(project, type(recorded)("0", "cpu", older))
    update = init.plan_update(project, None)
    write(recipe, "mine\n")
    with pytest.raises(ConflictError, match="changed after the differences were shown"):
        init.update_project(update, {})
    assert recipe.read_text() == "mine\n"


@pytest.mark.slow
def test_the_command_tells_what_it_made_and_what_it_sees(tmp_path: Path) -> None:
    done = cli(tmp_path, "init", "project", "--cpu", "--git")
    assert done.returncode == 0, done.stderr
    assert "definitions: cpu" in done.stdout
    assert "machine:" in done.stdout
    assert "engine:" in done.stdout
    assert "cd " in done.stdout
    assert (tmp_path / "project/.git").is_dir()
    document = json_outputs.parsed("init", cli(tmp_path, "init", "other", "--minimal", "--json").stdout)
    assert document["definitions"] == []
    assert {finding["subject"] for finding in document["findings"]} >= {"machine", "engine"}


@pytest.mark.slow
def test_an_update_is_shown_and_asks(tmp_path: Path) -> None:
    cli(tmp_path, "init", "--minimal")
    assert cli(tmp_path, "init", "--update").stdout.startswith("every file is the same as in ")
    planned = json_outputs.parsed("init", cli(tmp_path, "init", "--update", "--cpu", "--json").stdout)
    assert {"path": "dockerfiles/cpu/image.yaml", "state": "new"} in planned["files"]
    assert (planned["pins"], planned["written"]) == (["cpu"], [])
    shown = cli(tmp_path, "init", "--update", "--cpu")
    assert shown.returncode == 1
    assert "nothing was written" in shown.stdout
    assert not (tmp_path / "dockerfiles/cpu").exists()
    assert cli(tmp_path, "init", "--update", "--cpu", "--yes").returncode == 0
    assert (tmp_path / "dockerfiles/cpu/image.yaml").is_file()
    assert (
        lock_file.read_lock(tmp_path / "images.lock").pins["cpu"]
        == lock_file.read_lock(shipped.shipped_project().lock).pins["cpu"]
    )
    write(tmp_path / "dockerfiles/cpu/Dockerfile.j2", "mine\n")
    (tmp_path / shipped.FILE).unlink()
    refused = cli(tmp_path, "init", "--update", "--cpu", "--yes")
    assert refused.returncode == 1
    assert "nothing was written; --yes --force overwrites the edited files" in refused.stdout
    assert (tmp_path / "dockerfiles/cpu/Dockerfile.j2").read_text() == "mine\n"
    assert cli(tmp_path, "init", "--update", "--cpu", "--yes", "--force").returncode == 0
    assert (tmp_path / "dockerfiles/cpu/Dockerfile.j2").read_text() != "mine\n"
    shutil.rmtree(tmp_path / "dockerfiles/_parts")
    assert "\nevery file that you did not edit or delete is" in cli(tmp_path, "init", "--update").stdout
