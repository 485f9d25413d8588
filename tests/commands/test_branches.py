"""Branches that build different things, from the command line, and git merging what they committed."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import time

import pytest

from builder.base.project import Project
from builder.engine.client import Endpoint
from builder.lock import lock_file
from tests import projects
from tests.commands.test_lock_merge import git
from tests.conftest import Command, command, remove_all

pytestmark = pytest.mark.engine


@pytest.mark.long
def test_what_different_branches_build_is_united(
    small: Project, builder: Command, endpoint: Endpoint, repository: str
) -> None:
    """Different numbers and models of one repository, next to each other, and another definition's first number."""
    projects.write(small.root / ".gitignore", ".builder/\n.images.lock.*\n")
    shutil.copytree(small.root / "dockerfiles/small", small.root / "dockerfiles/more")
    projects.write(small.root / "dockerfiles/more/image.yaml", projects.IMAGE.format(repository=f"{repository}-more"))
    projects.add_mod(small.root, "other", "touch /other\n", {})
    git(small, "init", "--quiet", "--initial-branch=main")
    builder("build", "small")
    git(small, "add", "--all")
    git(small, "commit", "--quiet", "--message=base")
    try:
        for branch, targets in {
            "one": [["chat"]],
            "two": [["small", "--mod", "other", "--model", "Org/Other"], ["more"]],
        }.items():
            git(small, "checkout", "--quiet", "-b", branch, "main")
            for target in targets:
                builder("build", *target)
            git(small, "add", "--all")
            git(small, "commit", "--quiet", "--message=built")
        git(small, "merge", "--quiet", "--no-edit", "one", code=1)
        mended = builder("lock", "--merge").stdout
    finally:
        remove_all(endpoint, f"{repository}-more")
    assert mended.splitlines() == [
        f"kept {repository}:3 as the current image, while the other side has {repository}:2",
        "images.lock is merged. Next: `git add images.lock builds`",
    ]
    lock = lock_file.read_lock(small.lock)
    assert sorted(lock.images[repository].numbers) == [1, 2, 3]
    assert (lock.images[repository].current, lock.images[repository].previous) == (3, (2, 1))
    assert lock.images[f"{repository}-more"].current == 1
    assert {model: paired.pairing.image.number for model, paired in lock.models.items()} == {
        "Org/Model-1B": 2,
        "Org/Other": 3,
    }
    listed = json.loads(builder("list", repository, "--json").stdout)["images"]
    assert [(row["number"], row["state"], row["current"]) for row in listed] == [
        (3, "present", True),
        (2, "present", False),
        (1, "present", False),
    ]


def test_waiting_for_another_writer_is_said(small: Project, builder: Command, endpoint: Endpoint) -> None:
    builder("build", "small")
    with (small.root / ".images.lock.writer").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        process = subprocess.Popen(
            command(small, "keep", "small:1"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ
        )
        assert process.stderr
        assert process.stderr.readline() == b"waiting for another process that writes images.lock\n"
        time.sleep(0.1)
        assert process.poll() is None
    output, _ = process.communicate(timeout=120)
    assert (process.returncode, output.split()[-2:]) == (0, [b"is", b"kept"])
