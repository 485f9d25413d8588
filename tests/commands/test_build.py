"""Builds on the real engine, from a recipe to a number, by the command that the user runs."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest

from builder.base.project import Project
from builder.building.request import BuildRequest
from builder.commands import build
from builder.engine import images
from builder.engine.client import Endpoint
from builder.lock import lock_file
from builder.lock.model import ImageName
from tests import json_outputs, locks, projects
from tests.conftest import Command
from tests.workspaces import workspace

pytestmark = pytest.mark.engine


def read_file(endpoint: Endpoint, image: str, path: str) -> str:
    from builder.engine import containers

    with containers.running(endpoint, image, labels={"builder.test": "1"}) as container:
        result = container.run(["cat", path], timeout=120)
    assert result.exit_code == 0, result.output
    return result.output


def test_a_recipe_becomes_a_numbered_image_that_serves_its_model(
    small: Project, builder: Command, endpoint: Endpoint, repository: str
) -> None:
    projects.settle(small)
    planned = builder("build", "chat", "--dry-run").stdout
    assert [line.split()[:4] for line in planned.splitlines()[1:5]] == [
        ["to", "build", "base", "image"],
        ["to", "build", "Dockerfile", "text"],
        ["to", "build", "build-metadata.yaml", "text"],
        ["to", "build", "mod", "template"],
    ]
    assert "it is the first image of this repository" in planned
    assert not small.lock.exists()
    assert not small.state.exists()
    assert not small.builds.exists()

    done = builder("build", "recipes/chat.yaml")
    assert done.stdout.splitlines()[0].startswith(f"built {repository}:1 in ")
    assert "  paired with Org/Model-1B" in done.stdout.splitlines()
    assert (done.stdout + done.stderr).count("it is the first image of this repository") == 1

    lock = lock_file.read_lock(small.lock)
    assert (lock.images[repository].current, lock.images[repository].next) == (1, 2)
    built = lock.images[repository].numbers[1]
    assert (built.definition, built.recipe, list(built.mods)) == ("small", "recipes/chat.yaml", ["template"])
    assert lock.models["Org/Model-1B"].pairing.image == ImageName(repository, 1)

    details = images.inspect_image(endpoint, f"{repository}:1")
    assert details is not None
    assert images.fingerprint(details) == built.fingerprint
    assert details.labels["builder.input-hash"] == built.input_hash
    assert set(details.tags) == {f"{repository}:1", f"{repository}:latest"}
    assert read_file(endpoint, f"{repository}:latest", "/workspace/vllm/chat.jinja") == "version one\n"
    assert (small.builds / repository / "1" / "Dockerfile").is_file()
    assert not list((small.state / "work").iterdir())

    # If nothing changed, nothing is built, and other models are paired with the image.
    before = small.lock.read_bytes()
    assert builder("build", "chat").stdout == f"already built as {repository}:1\n"
    assert small.lock.read_bytes() == before
    assert len(list((small.state / "logs").iterdir())) == 1
    done = builder("build", "chat", "--model", "Org/Late")
    assert done.stdout.splitlines() == [
        f"already built as {repository}:1",
        f"Org/Late is now paired with {repository}:1",
    ]
    assert lock_file.read_lock(small.lock).models["Org/Late"].pairing.image == ImageName(repository, 1)

    # A change is named, and becomes the next number.
    projects.write(small.root / "mods/template/chat.jinja", "version two\n")
    lines = builder("build", "chat", "--dry-run").stdout.splitlines()
    assert [line.split()[0] for line in lines[1:5]] == ["built", "built", "built", "to"]
    assert lines[-1] == "  mod template: changed"
    done = builder("build", "chat", "--model", "Org/Draft")
    assert done.stdout.startswith(f"built {repository}:2 in ")
    assert "  mod template: changed" in done.stdout.splitlines()
    first, second = (images.inspect_image(endpoint, f"{repository}:{number}") for number in (1, 2))
    assert first is not None
    assert second is not None
    assert len(second.layers) == len(first.layers)
    assert [a == b for a, b in zip(first.layers, second.layers, strict=True)] == [True] * (len(first.layers) - 1) + [
        False
    ]
    lock = lock_file.read_lock(small.lock)
    assert {model: lock.models[model].pairing.image.number for model in lock.models} == {
        "Org/Model-1B": 2,
        "Org/Draft": 2,
        "Org/Late": 1,
    }


@pytest.mark.long
def test_for_programs(small: Project, builder: Command, repository: str) -> None:
    def build(*arguments: str) -> dict[str, Any]:
        return json_outputs.parsed("build", builder("build", "chat", "--json", *arguments).stdout)

    (planned,) = build("--dry-run")["planned"]
    assert (planned["repository"], planned["existing"]) == (repository, None)
    assert not any(step["kept"] for step in planned["steps"])
    (built,) = build()["images"]
    assert (built["image"], built["outcome"], built["current"]) == (f"{repository}:1", "built", f"{repository}:1")
    paired = {"model": "Org/Model-1B", "state": "paired", "image": f"{repository}:1", "taken_from": None}
    assert built["models"] == [paired]
    (again,) = build()["images"]
    assert (again["outcome"], again["current"], again["models"]) == ("existing", f"{repository}:1", [])
    (kept_back,) = build("--force", "--no-promote")["images"]
    assert (kept_back["image"], kept_back["current"]) == (f"{repository}:2", f"{repository}:1")
    projects.write(small.mods / "template/run.sh", "exit 4\n")
    failed = builder("build", "chat", "--json", code=6)
    assert (failed.stdout, "run.sh ended with exit code 4" in failed.stderr) == ("", True)


@pytest.mark.long
def test_the_state_folder_may_lie_on_another_disk(
    small: Project, builder: Command, repository: str, endpoint: Endpoint
) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        assert Path(folder).stat().st_dev != small.root.stat().st_dev
        small.state.symlink_to(folder)
        builder("build", "chat")
        images.remove_image(endpoint, f"{repository}:1")
        assert "the same content" in builder("rebuild", f"{repository}:1").stdout
        assert not list((small.state / "work").iterdir())
    assert sorted(path.name for path in (small.builds / repository).iterdir()) == ["1"]
    assert builder("verify").stdout == "everything matches images.lock\n"


@pytest.mark.long
def test_rolling_a_recipe_back_moves_latest_and_its_model_and_is_its_own_undo(
    small: Project, builder: Command, endpoint: Endpoint, repository: str
) -> None:
    builder("build", "chat")
    projects.write(small.root / "mods/template/chat.jinja", "version two\n")
    builder("build", "chat")
    after_builds = locks.undated(lock_file.read_lock(small.lock))

    done = builder("rollback", "chat")
    assert done.stdout == (
        f"{repository}:latest: {repository}:2 → {repository}:1\nOrg/Model-1B: {repository}:2 → {repository}:1\n"
        "  mod template: changed\n"
    )
    assert read_file(endpoint, f"{repository}:latest", "/workspace/vllm/chat.jinja") == "version one\n"
    lock = lock_file.read_lock(small.lock)
    assert lock.images[repository].current == 1
    assert lock.models["Org/Model-1B"].pairing.image.number == 1

    builder("rollback", "chat")
    assert locks.undated(lock_file.read_lock(small.lock)) == after_builds
    assert read_file(endpoint, f"{repository}:latest", "/workspace/vllm/chat.jinja") == "version two\n"


@pytest.mark.long
def test_building_again_after_a_rollback_does_not_undo_it(small: Project, builder: Command, repository: str) -> None:
    builder("build", "chat")
    projects.write(small.root / "mods/template/chat.jinja", "version two\n")
    builder("build", "chat")
    builder("rollback", "chat")
    before = small.lock.read_bytes()
    done = builder("build", "chat")
    assert done.stdout.splitlines() == [
        f"already built as {repository}:2",
        f"the current image is {repository}:1; to use this one: `builder rollback {repository} --to 2`",
        f"Org/Model-1B stays paired with {repository}:1; to move it: `builder rollback Org/Model-1B --to 2`",
    ]
    assert small.lock.read_bytes() == before


def content(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Each file below a folder, with its permissions."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): (path.read_bytes(), path.stat().st_mode & 0o777) for path in files}


@pytest.mark.long
def test_a_dry_run_writes_the_build_directory_as_the_build_has_it(
    small: Project, builder: Command, repository: str, tmp_path: Path
) -> None:
    folder = tmp_path / "new/preview"
    (tmp_path / "empty").mkdir()
    builder("build", "chat", "--dry-run", "--write", str(tmp_path / "empty"))
    done = builder("build", "chat", "--dry-run", "--write", str(folder))
    assert f"the build directory is in {folder}" in " ".join(done.stdout.split())
    assert not small.builds.exists()
    assert not small.lock.exists()
    assert [path.name for path in folder.parent.iterdir()] == ["preview"]
    written = content(folder)
    assert content(tmp_path / "empty") == written
    assert b"FROM" in written["Dockerfile"][0]
    done = builder("build", "chat", "--dry-run", "--write", str(folder), code=1)
    assert f"{folder} already exists: nothing was written" in " ".join(done.stderr.split())
    assert content(folder) == written
    builder("build", "chat")
    built = content(small.builds / repository / "1")
    del built["images.lock"], built["layers.txt"]  # what only the finished image tells
    assert written == built
    # Of what is there already, too.
    document = json_outputs.parsed(
        "build", builder("build", "chat", "--dry-run", "--json", "--write", str(tmp_path / "again")).stdout
    )
    assert document["written"] == str(tmp_path / "again")
    assert content(tmp_path / "again") == written


def test_a_build_directory_is_written_by_a_dry_run_of_one_target_alone(
    small: Project, builder: Command, repository: str, tmp_path: Path
) -> None:
    folder = str(tmp_path / "preview")
    assert "--write is allowed only with --dry-run" in builder("build", "chat", "--write", folder, code=2).stderr
    done = builder("build", "chat", "small", "--dry-run", "--write", folder, code=2)
    assert "--write takes only one TARGET" in done.stderr
    inside = str(small.builds / repository / "1")
    assert "is in builds/" in " ".join(builder("build", "chat", "--dry-run", "--write", inside, code=2).stderr.split())
    projects.write(tmp_path / "file", "x")
    assert "already exists" in builder("build", "chat", "--dry-run", "--write", str(tmp_path / "file"), code=1).stderr
    assert not (tmp_path / "preview").exists()
    assert not small.builds.exists()


@pytest.mark.long
def test_no_promote_leaves_latest_where_it_is_and_force_builds_the_same_content_again(
    small: Project, builder: Command, endpoint: Endpoint, repository: str
) -> None:
    builder("build", "small")
    builder("build", "chat", "--no-promote")
    builder("build", "chat", "--no-promote", "--force")
    record = lock_file.read_lock(small.lock).images[repository]
    assert record.current == 1
    assert record.numbers[2].input_hash == record.numbers[3].input_hash != record.numbers[1].input_hash
    assert record.numbers[2].fingerprint == record.numbers[3].fingerprint
    first, latest = (images.inspect_image(endpoint, f"{repository}:{tag}") for tag in ("1", "latest"))
    assert first is not None
    assert latest is not None
    assert first.id == latest.id


@pytest.mark.long
def test_an_image_that_was_deleted_is_built_anew_under_the_next_number(
    small: Project, builder: Command, endpoint: Endpoint, repository: str
) -> None:
    builder("build", "chat")
    for tag in ("1", "latest"):
        images.remove_image(endpoint, f"{repository}:{tag}")
    done = builder("build", "chat")
    assert f"{repository}:1 was built from the same inputs, but this engine does not have it" in done.stderr
    assert lock_file.read_lock(small.lock).images[repository].current == 2


def test_a_number_that_only_the_engine_knows_is_not_taken_again(
    small: Project, builder: Command, endpoint: Endpoint, repository: str
) -> None:
    images.tag_image(endpoint, "debian:bookworm-slim", f"{repository}:6")
    done = builder("build", "chat")
    assert done.stdout.startswith(f"built {repository}:7 in ")


@pytest.mark.long
def test_locked_refuses_to_resolve_anything(small: Project, builder: Command) -> None:
    done = builder("build", "chat", "--locked", code=4)
    assert "images.lock does not cover base of small" in done.stderr
    builder("build", "chat")
    projects.write(small.root / "mods/template/chat.jinja", "version two\n")
    builder("build", "chat", "--locked")


def test_a_check_that_does_not_hold_fails_the_build(small: Project, builder: Command) -> None:
    yaml = "description: x\nrun: run.sh\ncheck: [{file: chat.jinja, contains: version nine}]\n"
    projects.write(small.root / "mods/template/mod.yaml", yaml)
    done = builder("build", "chat", code=6)
    assert "check of mod template: chat.jinja lacks 'version nine'" in done.stderr
    assert not small.lock.exists()


@pytest.mark.long
def test_a_check_that_is_wrong_on_this_machine_is_left_out_recorded_and_shown(
    small: Project, builder: Command, repository: str
) -> None:
    yaml = "description: x\nrun: run.sh\ncheck: [{file: chat.jinja, contains: version nine}]\n"
    projects.write(small.root / "mods/template/mod.yaml", yaml)
    done = builder("build", "chat", code=6)
    told = " ".join(done.stderr.split())
    assert "check of mod template: chat.jinja lacks 'version nine'" in told
    assert told.endswith("build with `--without-check template --note WHY`")
    done = builder("build", "chat", "--without-check", "templat", "--note", "x", code=2)
    assert "`--without-check templat`: the image has no check with this name" in done.stderr
    assert "its checks are vllm-version, vllm-import, chat-template, gpu, template" in " ".join(done.stderr.split())
    done = builder("build", "chat", "--dry-run", "--without-check", "templat", "--note", "x", code=2)
    assert "no check with this name" in done.stderr
    for lone in (("--without-check", "template"), ("--note", "x")):
        assert (
            "--note is allowed only with --promote-anyway or --without-check"
            in builder("build", "chat", *lone, code=2).stderr
        )
    assert not small.lock.exists()
    done = builder("build", "chat", "--without-check", "template", "--note", "version nine comes by a volume")
    shown = "not checked: template: version nine comes by a volume"
    assert f"  {shown}" in done.stdout
    assert lock_file.read_lock(small.lock).images[repository].numbers[1].unchecked == {
        "template": "version nine comes by a volume"
    }
    assert shown in builder("list").stdout
    assert "not checked template: version nine comes by a volume" in " ".join(
        builder("show", f"{repository}:1").stdout.split()
    )
    document = json_outputs.parsed("list", builder("list", "--json").stdout)
    assert document["images"][0]["unchecked"] == {"template": "version nine comes by a volume"}
    # The number is there: the next build has nothing to do, with the option or without.
    assert builder("build", "chat").stdout.startswith(f"already built as {repository}:1")
    again = json_outputs.parsed("build", builder("build", "chat", "--json").stdout)
    assert again["images"][0]["unchecked"] == {"template": "version nine comes by a volume"}


@pytest.mark.long
def test_a_check_script_runs_in_the_image(small: Project, builder: Command) -> None:
    yaml = "description: x\nrun: run.sh\ncheck: [{run: look.sh}]\n"
    projects.add_mod(small.root, "looked", "touch /looked\n", {"look.sh": "echo looked in vain; exit 3\n"}, yaml)
    done = builder("build", "small", "--mod", "looked", code=6)
    assert "check of mod looked: look.sh fails" in done.stderr
    assert "looked in vain" in done.stderr


@pytest.mark.long
def test_what_the_list_shows_is_what_was_built(small: Project, builder: Command, repository: str) -> None:
    builder("build", "chat")
    builder("keep", f"{repository}:1")
    document = json.loads(builder("list", "--json").stdout)
    assert document["schema_version"] == 1
    assert [(row["image"], row["state"], row["current"], row["pinned"]) for row in document["images"]] == [
        (f"{repository}:1", "present", True, True)
    ]
    assert document["models"][0]["image"] == f"{repository}:1"
    heading, row = builder("list").stdout.splitlines()
    assert heading.split() == ["IMAGE", "BUILT", "SIZE", "VLLM", "STATE", "MODELS"]
    assert row.startswith(f"{repository}:1  just now")
    assert row.endswith("current, unmarked, kept  Org/Model-1B")


@pytest.mark.long
def test_several_targets_are_one_bake_that_builds_what_they_share_once(
    small: Project, builder: Command, endpoint: Endpoint, repository: str
) -> None:
    projects.write(
        small.root / "dockerfiles/small/Dockerfile.j2",
        projects.DOCKERFILE.replace(
            "FROM {{ base }} AS base\n", "FROM {{ base }} AS base\nRUN head -c 8 /dev/urandom > /random\n"
        ),
    )
    for name in ("a", "b", "c"):
        projects.add_mod(small.root, name, f"touch /{name}\n", {})
        projects.add_recipe(small.root, name, repository, f"Org/{name}", [f"mods/{name}"])
    done = builder("build", "a", "b", "c")
    assert [line.split()[1] for line in done.stdout.splitlines() if line.startswith("built ")] == [
        f"{repository}:{number}" for number in (1, 2, 3)
    ]
    lock = lock_file.read_lock(small.lock)
    assert {model: paired.pairing.image.number for model, paired in lock.models.items()} == {
        "Org/a": 1,
        "Org/b": 2,
        "Org/c": 3,
    }
    found = [images.inspect_image(endpoint, f"{repository}:{number}") for number in (1, 2, 3)]
    assert len({details.layers[:-1] for details in found if details}) == 1
    assert len({details.layers[-1] for details in found if details}) == 3
    assert len(list((small.state / "logs").iterdir())) == 1
    again = builder("build", "a", "b", "c").stdout.splitlines()
    assert [line for line in again if line.startswith("already")] == [
        f"already built as {repository}:{number}" for number in (1, 2, 3)
    ]


@pytest.mark.long
def test_two_models_of_one_image_built_at_once_share_its_number(
    small: Project, builder: Command, repository: str
) -> None:
    projects.add_recipe(small.root, "other", repository, "Org/Other", ["mods/template"])
    for number, options in ((1, ()), (2, ("--force",))):
        built = json_outputs.parsed("build", builder("build", "chat", "other", "--json", *options).stdout)["images"]
        assert [image["image"] for image in built] == [f"{repository}:{number}"] * 2
        lock = lock_file.read_lock(small.lock)
        assert {model: paired.pairing.image.number for model, paired in lock.models.items()} == {
            "Org/Model-1B": number,
            "Org/Other": number,
        }
        assert (sorted(lock.images[repository].numbers), lock.images[repository].current) == (
            [*range(1, number + 1)],
            number,
        )
    assert not list((small.state / "work").iterdir())


@pytest.mark.long
def test_a_number_that_came_with_images_lock_during_the_build_is_not_that_of_an_image_here(
    small: Project, endpoint: Endpoint, repository: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another machine built the same, but its image is not in this engine. The new image would have no name."""
    before = small.lock.read_bytes() if small.lock.exists() else None
    request, here = BuildRequest(("chat",)), workspace(small, endpoint)
    assert [built.image for built in build.build_targets(here, request)] == [f"{repository}:1"]
    theirs = small.lock.read_bytes()
    for tag in ("1", "latest"):
        images.remove_image(endpoint, f"{repository}:{tag}")
    shutil.rmtree(small.builds)
    small.lock.unlink() if before is None else small.lock.write_bytes(before)

    def pulled(*_: object) -> tuple[()]:
        small.lock.write_bytes(theirs)
        return ()

    monkeypatch.setattr("builder.lab.prove.prove.of_build", pulled)
    (built,) = build.build_targets(here, request)
    details = images.inspect_image(endpoint, str(built.image))
    assert built.image == f"{repository}:2"
    assert details
    assert {images.fingerprint(details)} == {
        image.fingerprint for image in lock_file.read_lock(small.lock).images[repository].numbers.values()
    }


@pytest.mark.long
def test_of_several_targets_only_those_that_changed_are_built(
    small: Project, builder: Command, repository: str
) -> None:
    projects.add_mod(small.root, "other", "touch /other\n", {})
    projects.add_recipe(small.root, "other", repository, "Org/Other", ["mods/other"])
    builder("build", "chat", "other")
    projects.write(small.root / "mods/template/chat.jinja", "version two\n")
    output = builder("build", "chat", "other").stdout.splitlines()
    assert output[0] == f"already built as {repository}:2"
    assert any(line.startswith(f"built {repository}:3 in ") for line in output)
