"""A build with nothing to do answers from memory, and from nothing that may have changed since."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable

import pytest

from builder.base.project import Project
from builder.engine import images
from builder.engine.client import Endpoint
from tests import projects
from tests.commands import kept
from tests.conftest import BASE, Command, command

pytestmark = pytest.mark.engine

Build = Callable[..., str]


@pytest.fixture
def build(small: Project) -> Build:
    """Builds, says what was said, and ``(thought)`` before it where the plan was thought through."""

    def run(*arguments: str) -> str:
        time.sleep(0.2)  # until the files of before are settled
        argv, environ = command(small, "build", *arguments), {**os.environ, "PYTHONPROFILEIMPORTTIME": "1"}
        done = subprocess.run(argv, capture_output=True, text=True, env=environ)
        assert done.returncode == 0, done.stderr
        return ("(thought) " if "builder.building.resolve" in done.stderr else "") + done.stdout

    return run


@pytest.fixture
def remembered(build: Build, repository: str) -> str:
    """The answer for ``chat``, which is remembered from now on."""
    assert f"built {repository}:1" in build("chat")
    answer = f"already built as {repository}:1\n"
    assert build("chat") == f"(thought) {answer}"
    assert build("chat") == answer
    return answer


def test_a_changed_mod_is_built_and_changed_back_is_there_but_not_without_an_engine(
    remembered: str, build: Build, builder: Command, small: Project, repository: str
) -> None:
    path = small.mods / "template/chat.jinja"
    path.write_text("version two\n")
    assert f"built {repository}:2 in" in build("chat")
    path.write_text("version one\n")
    back = f"{remembered}the current image is {repository}:2; to use this one: `builder rollback {repository} --to 1`\n"
    assert build("chat").startswith(f"(thought) {back}")
    assert build("chat").startswith(back)
    done = builder("build", "chat", code=5, environ={"DOCKER_HOST": "unix:///nowhere.sock"})
    assert "no Docker engine answers" in done.stderr


@pytest.mark.long
def test_an_image_that_is_gone_is_built(remembered: str, build: Build, endpoint: Endpoint, repository: str) -> None:
    for tag in ("1", "latest"):
        images.remove_image(endpoint, f"{repository}:{tag}")
    assert f"(thought) built {repository}:2 in" in build("chat")


@pytest.mark.long
def test_a_tag_that_means_another_image_is_seen(
    remembered: str, build: Build, endpoint: Endpoint, repository: str
) -> None:
    images.tag_image(endpoint, BASE, f"{repository}:1")
    assert f"(thought) built {repository}:2 in" in build("chat")


@pytest.mark.long
def test_what_asks_for_more_is_thought_through(remembered: str, build: Build, repository: str) -> None:
    assert build("chat", "--dry-run").startswith("(thought) ")
    assert build("chat", "--model", "Org/Other").endswith(f"Org/Other is now paired with {repository}:1\n")
    assert build("chat", "--update", "base") == f"(thought) {remembered}"
    assert build("chat", "--force").startswith(f"(thought) built {repository}:2")
    assert build("small").startswith(f"(thought) built {repository}:3")


@pytest.mark.long
def test_a_later_number_with_the_same_inputs_may_come_back(
    remembered: str, build: Build, endpoint: Endpoint, repository: str
) -> None:
    build("chat", "--force")
    details = images.inspect_image(endpoint, f"{repository}:2")
    assert details is not None
    images.tag_image(endpoint, f"{repository}:2", f"{repository}:elsewhere")
    images.remove_extra_tag(endpoint, f"{repository}:2")
    assert build("chat").startswith(f"(thought) {remembered}")
    assert build("chat").startswith(f"(thought) {remembered}")
    images.tag_image(endpoint, f"{repository}:elsewhere", f"{repository}:2")
    assert build("chat").startswith(f"(thought) already built as {repository}:2\n")


@pytest.mark.long
def test_what_is_remembered_is_thought_through_where_anything_else_counts(
    remembered: str, build: Build, builder: Command, small: Project, endpoint: Endpoint, repository: str
) -> None:
    # It may be deleted.
    for path in (small.state / "unchanged").iterdir():
        projects.write(path, "{")
    assert build("chat") == f"(thought) {remembered}"
    assert build("chat") == remembered

    # A recipe from elsewhere.
    outside = small.root.parent / f"{small.root.name}-outside.yaml"
    outside.write_text((small.recipes / "chat.yaml").read_text())
    try:
        for _ in range(2):
            assert build(str(outside)).startswith("(thought) ")
    finally:
        outside.unlink()

    # What a killed build left undone is done.
    kept.killed_before_latest(small, endpoint, repository, 1)
    assert build("chat") == f"(thought) {remembered}"
    kept.require_in_line(small, endpoint, repository, 1)
    assert build("chat") == remembered

    # A mark is said.
    builder("mark", f"{repository}:1", "bad")
    said = f"already built as {repository}:1, which is marked bad; to build it again: --force\n"
    assert build("chat") == f"(thought) {said}"
    assert build("chat") == said
