"""Two branches built the same number on two machines; git merges them, and `lock --merge` keeps both images."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

import pytest

from builder.base.project import Project
from builder.engine import images
from builder.engine.client import Endpoint
from builder.evidence import run_record
from builder.evidence.run_record import Subject
from builder.lock import lock_file
from builder.lock.model import ImageName
from builder.plan import rules
from builder.plan.plan_model import input_hash
from tests import projects
from tests.conftest import Command, forget_claims
from tests.evidence.runs import proof
from tests.stock import stock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


pytestmark = pytest.mark.engine


def git(project: Project, *arguments: str, code: int = 0) -> str:
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    done = subprocess.run(["git", *who, *arguments], cwd=project.root, capture_output=True, text=True)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def merged(small: Project, builder: Command, endpoint: Endpoint, repository: str) -> Iterator[Project]:
    """A merge in conflict: number 2 with the mod `ours` on this branch, with the mod `theirs` on the other. Both images
    are in the engine, as `…-ours:2` and `…-theirs:2`."""
    projects.write(small.root / ".gitignore", ".builder/\n.images.lock.*\n")
    for side in ("ours", "theirs"):
        projects.add_mod(small.root, side, f"echo {side} > /side\n", {})
    git(small, "init", "--quiet", "--initial-branch=ours")
    builder("build", "chat")
    git(small, "add", "--all")
    git(small, "commit", "--quiet", "--message=base")
    for side in ("ours", "theirs"):
        git(small, "checkout", "--quiet", *([] if side == "ours" else ["-b", side, "HEAD~1"]))
        assert builder("build", "small", "--mod", side, "--model", f"m/{side}").stdout.startswith(
            f"built {repository}:2 "
        )
        images.tag_image(endpoint, f"{repository}:2", f"{repository}-{side}:2")
        images.remove_image(endpoint, f"{repository}:2")
        forget_claims(endpoint, repository)
        if side == "ours":
            commented = small.lock.read_text(encoding="utf-8").replace("\nimages:\n", "\n# our images\nimages:\n")
            small.lock.write_text(commented, encoding="utf-8")
        git(small, "add", "--all")
        git(small, "commit", "--quiet", "--message=built")
    git(small, "checkout", "--quiet", "ours")
    git(small, "merge", "--quiet", "theirs", code=1)
    yield small
    for side in ("ours", "theirs"):
        images.remove_image(endpoint, f"{repository}-{side}:2")


def mod_of(project: Project, repository: str, number: int) -> str:
    """The mod that both the lock and the build directory of a number name."""
    image = lock_file.read_lock(project.lock).images[repository].numbers[number]
    folder = project.build_directory(repository, number)
    assert input_hash(rules.read_steps((folder / "plan.json").read_text(encoding="utf-8"))) == image.input_hash
    assert list(image.mods) == [path.name for path in (folder / "mods").iterdir()]
    kept = lock_file.read_record(folder)
    assert kept.images[repository].numbers == {number: image}
    return next(iter(image.mods))


def add_proof(project: Project, repository: str, endpoint: Endpoint, side: str) -> None:
    """A run of the image of one side, under the number that both have."""
    details = images.inspect_image(endpoint, f"{repository}-{side}:2")
    assert details
    subject = Subject(f"{repository}:2", images.fingerprint(details), f"m/{side}")
    run_record.add_run(project, ImageName(repository, 2), proof(subject=subject))


def proved_side(project: Project, repository: str, number: int) -> str:
    """The side whose run a number has, and no other."""
    name = ImageName(repository, number)
    (run,) = run_record.of_image(project, name)
    image = lock_file.read_lock(project.lock).image(name)
    assert image
    assert run.subject.fingerprint == image.fingerprint
    return str(run.subject.model).removeprefix("m/")


@pytest.mark.long
def test_both_images_are_kept(merged: Project, builder: Command, endpoint: Endpoint, repository: str) -> None:
    refused = builder("list", code=4).stderr
    assert "git conflict marker `<<<<<<< HEAD`" in refused
    assert "builder lock --merge" in refused

    images.tag_image(endpoint, f"{repository}-ours:2", f"{repository}:2")
    for side in ("ours", "theirs"):
        add_proof(merged, repository, endpoint, side)
    done = builder("lock", "--merge").stdout.splitlines()
    assert done[0].endswith(f", is now {repository}:3")
    assert done[0].startswith(f"{repository}:2, built 20")
    assert done[-1] == "images.lock is merged. Next: `git add images.lock builds evidence`"
    said = " ".join(" ".join(done).split())
    absent = f"m/theirs is paired with {repository}:3, which is not in this engine: `builder rebuild {repository}:3`"
    assert absent in said
    assert "m/ours is paired" not in said
    assert [proved_side(merged, repository, number) for number in (2, 3)] == ["ours", "theirs"]
    lock = lock_file.read_lock(merged.lock)
    assert sorted(lock.images[repository].numbers) == [1, 2, 3]
    assert "\n# our images\nimages:\n" in merged.lock.read_text(encoding="utf-8")
    assert [mod_of(merged, repository, number) for number in (2, 3)] == ["ours", "theirs"]
    assert lock.models["m/ours"].pairing.image == ImageName(repository, 2)
    assert lock.models["m/theirs"].pairing.image == ImageName(repository, 3)
    assert (lock.images[repository].current, lock.images[repository].previous) == (2, (3, 1))
    git(merged, "add", "images.lock", "builds", "evidence")
    git(merged, "commit", "--quiet", "--message=merged")
    assert git(merged, "status", "--porcelain") == ""
    assert builder("lock", "--merge").stdout == "nothing to merge\n"

    # On the other machine the engine still has its own image as number 2.
    images.tag_image(endpoint, f"{repository}-theirs:2", f"{repository}:2")
    lines = builder("lock", "--merge").stdout.splitlines()
    assert lines[0] == f"{repository}:3 has its tag again in this engine"
    assert lines[1].startswith(f"m/ours is paired with {repository}:2, which is not in this engine: ")
    states = {row["number"]: row["state"] for row in json.loads(builder("list", "--json").stdout)["images"]}
    assert states == {1: "present", 2: "missing", 3: "present"}
    assert git(merged, "status", "--porcelain") == ""


@pytest.mark.long
def test_the_number_stays_with_the_image_that_the_engine_has(
    merged: Project, builder: Command, endpoint: Endpoint, repository: str, tmp_path: Path
) -> None:
    conflict = merged.lock.read_bytes()
    builder("lock", "--merge", environ={"DOCKER_HOST": f"unix://{tmp_path}/nothing.sock"})
    mended = merged.lock.read_bytes()
    assert [mod_of(merged, repository, number) for number in (2, 3)] == ["ours", "theirs"]

    # Killed when the directories were in their places, and the lock not written yet: run again, it finishes.
    merged.lock.write_bytes(conflict)
    builder("lock", "--merge")
    assert merged.lock.read_bytes() == mended
    assert [mod_of(merged, repository, number) for number in (2, 3)] == ["ours", "theirs"]
    assert sorted(path.name for path in (merged.builds / repository).iterdir()) == ["1", "2", "3"]

    git(merged, "merge", "--abort")
    git(merged, "clean", "--quiet", "--force", "-d")
    git(merged, "merge", "--quiet", "theirs", code=1)
    images.tag_image(endpoint, f"{repository}-theirs:2", f"{repository}:2")
    done = json.loads(builder("lock", "--merge", "--json").stdout)
    assert [(one["from"], one["to"], one["build_directory"]) for one in done["renumbered"]] == [
        (f"{repository}:2", f"{repository}:3", True)
    ]
    assert [mod_of(merged, repository, number) for number in (2, 3)] == ["theirs", "ours"]
    assert lock_file.read_lock(merged.lock).models["m/ours"].pairing.image == ImageName(repository, 3)


def test_a_lock_with_nothing_to_mend_stays(
    small: Project, builder: Command, endpoint: Endpoint, repository: str
) -> None:
    stock(small, endpoint, repository, (1, 2))
    before = small.lock.read_bytes()
    assert builder("lock", "--merge").stdout == "nothing to merge\n"
    assert small.lock.read_bytes() == before


def test_damage_of_another_kind_is_not_mended(small: Project, builder: Command) -> None:
    small.lock.write_text("version: 3\n", encoding="utf-8")
    assert "truncated here" in builder("lock", "--merge", code=4).stderr
    small.lock.write_bytes(b"\xff\n...\n")
    assert "not UTF-8" in builder("lock", "--merge", code=4).stderr
    assert "--recover and --merge cannot be combined" in builder("lock", "--merge", "--recover", code=2).stderr
    assert "--recover and --merge cannot be combined" in builder("lock", "small", "--recover", code=2).stderr
