"""Failures leave lock, tags and numbers as they were."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from builder.base.project import Project
from builder.engine import client, images
from builder.engine.client import Endpoint
from builder.lock import lock_file
from builder.lock.model import ImageName
from builder.lock.text import dump_lock
from tests import projects
from tests.conftest import Command, command
from tests.stock import stock

pytestmark = pytest.mark.engine

MODEL = "Org/Model-1B"
SLOW = "echo slow step has begun; sleep 600\n"


def leftovers(endpoint: Endpoint, repository: str) -> list[str]:
    """Every tag of this repository and every temporary one, and every container of a build of it."""
    filters = json.dumps({"label": ["builder.work"]})
    containers = client.listed(endpoint, "/containers/json", query={"all": 1, "filters": filters})
    works = [found["Labels"]["builder.work"] for found in containers]
    tags = images.image_tags(endpoint, [repository, "builder-work"])
    return sorted(name for name in (*tags, *works) if repository in name)


def start(project: Project, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command(project, *arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def wait_for_log(project: Project, text: str, seconds: float = 120) -> None:
    """Waits until a build's log holds ``text``."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if any(text in log.read_text(encoding="utf-8") for log in (project.state / "logs").glob("*.log")):
            return
        time.sleep(0.05)
    raise AssertionError(f"no log says {text!r} after {seconds} s")


@pytest.mark.long
def test_a_failing_step_is_named_with_its_last_lines_and_its_log(
    small: Project, builder: Command, endpoint: Endpoint, repository: str
) -> None:
    builder("build", "chat")
    before, tags = small.lock.read_bytes(), leftovers(endpoint, repository)
    projects.write(small.root / "mods/template/run.sh", "echo this is why; exit 7\n")
    done = builder("build", "chat", code=6)
    assert "this is why" in done.stderr
    assert "mod template: run.sh ended with exit code 7" in done.stderr
    log = next(word for word in done.stderr.split() if word.endswith(".log"))
    assert "this is why" in Path(log).read_text(encoding="utf-8")
    assert small.lock.read_bytes() == before
    assert leftovers(endpoint, repository) == tags
    assert not list((small.state / "work").iterdir())
    projects.write(small.root / "mods/template/run.sh", "touch /done\n")
    assert builder("build", "chat").stdout.startswith(f"built {repository}:2 in ")


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_an_interrupted_build_takes_back_what_it_began(
    small: Project, endpoint: Endpoint, repository: str, number: signal.Signals
) -> None:
    projects.write(small.root / "mods/template/run.sh", SLOW)
    process = start(small, "build", "chat")
    wait_for_log(small, "slow step has begun")
    process.send_signal(number)
    _, output = process.communicate(timeout=120)
    assert process.returncode == 130
    assert output.splitlines()[-1] == "interrupted: nothing changed; run the command again: finished steps are cached"
    assert not small.lock.exists()
    assert leftovers(endpoint, repository) == []
    assert not list((small.state / "work").iterdir())


@pytest.mark.long
def test_a_killed_build_is_cleaned_up_after_by_the_next(
    small: Project, builder: Command, endpoint: Endpoint, repository: str
) -> None:
    builder("build", "small")
    before = small.lock.read_bytes()
    projects.write(small.root / "mods/template/run.sh", SLOW)
    process = start(small, "build", "chat")
    wait_for_log(small, "slow step has begun")
    process.kill()
    process.communicate()
    assert small.lock.read_bytes() == before
    projects.write(small.root / "mods/template/run.sh", "touch /done\n")
    assert builder("build", "chat").stdout.startswith(f"built {repository}:2 in ")
    assert leftovers(endpoint, repository) == [f"{repository}:1", f"{repository}:2", f"{repository}:latest"]
    assert not list((small.state / "work").iterdir())


@pytest.mark.long
def test_a_build_killed_while_it_checks_leaves_no_container_after_the_next(
    small: Project, builder: Command, endpoint: Endpoint, repository: str
) -> None:
    yaml = "description: x\nrun: run.sh\ncheck: [{run: look.sh}]\n"
    projects.add_mod(small.root, "looked", "touch /looked\n", {"look.sh": "sleep 600\n"}, yaml)
    process = start(small, "build", "small", "--mod", "looked")
    end = time.monotonic() + 120
    while all(":" in name for name in leftovers(endpoint, repository)):
        assert time.monotonic() < end
        time.sleep(0.1)
    process.kill()
    process.communicate()
    builder("build", "small")
    assert leftovers(endpoint, repository) == [f"{repository}:1", f"{repository}:latest"]


@pytest.mark.long
def test_two_builds_at_once_get_different_numbers(small: Project, endpoint: Endpoint, repository: str) -> None:
    projects.add_mod(small.root, "other", "touch /other\n", {})
    processes = [start(small, "build", "chat"), start(small, "build", "small", "--mod", "other")]
    ended = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], ended
    record = lock_file.read_lock(small.lock).images[repository]
    assert sorted(record.numbers) == [1, 2]
    assert {tuple(image.mods) for image in record.numbers.values()} == {("template",), ("other",)}
    assert leftovers(endpoint, repository) == [f"{repository}:1", f"{repository}:2", f"{repository}:latest"]
    latest, current = (images.inspect_image(endpoint, f"{repository}:{tag}") for tag in ("latest", record.current))
    assert latest is not None
    assert current is not None
    assert latest.id == current.id


@pytest.mark.long
def test_images_deleted_or_retagged_behind_our_back_are_shown(
    small: Project, builder: Command, endpoint: Endpoint, repository: str
) -> None:
    stock(small, endpoint, repository, (1, 2))
    lock = lock_file.read_lock(small.lock)
    two, third = lock.images[repository].numbers[2], ImageName(repository, 3)
    images.tag_image(endpoint, f"{repository}:2", str(third))
    small.lock.write_text(dump_lock(lock.with_image(third, two).with_current(third)), encoding="utf-8")
    images.tag_image(endpoint, "debian:bookworm-slim", f"{repository}:1")
    images.remove_image(endpoint, f"{repository}:2")
    images.tag_image(endpoint, "debian:bookworm-slim", f"{repository}:latest")
    done = builder("list", "--json")
    states = {row["number"]: row["state"] for row in json.loads(done.stdout)["images"]}
    assert states == {1: "moved", 2: "missing", 3: "present"}
    assert f"{repository}:latest does not point to its current number" in builder("list").stderr
    before = small.lock.read_bytes()
    assert f"{repository}:1 is " in builder("rollback", "small", "--to", "1", code=7).stderr
    assert small.lock.read_bytes() == before
    # Number 3 has the same content.
    assert f"{repository}:2 had lost its tag" in builder("rollback", "small", "--to", "2").stderr


@pytest.mark.long
def test_where_there_is_nothing_to_go_back_to_it_is_said(
    small: Project, builder: Command, endpoint: Endpoint, repository: str
) -> None:
    stock(small, endpoint, repository, (1,), (MODEL,))
    before = small.lock.read_bytes()
    assert "chat has no image to go back to" in builder("rollback", "chat", code=1).stderr
    assert small.lock.read_bytes() == before


@pytest.mark.long
def test_without_an_engine_the_list_still_answers(
    small: Project, builder: Command, tmp_path: Path, endpoint: Endpoint, repository: str
) -> None:
    stock(small, endpoint, repository, (1,), (MODEL,))
    nowhere = {"DOCKER_HOST": f"unix://{tmp_path}/nothing.sock"}
    done = builder("list", "--json", environ=nowhere)
    assert [row["state"] for row in json.loads(done.stdout)["images"]] == ["unknown"]
    projects.write(small.root / "mods/template/chat.jinja", "version two\n")
    builder("build", "chat", code=5, environ=nowhere)
    builder("rollback", "chat", code=1, environ=nowhere)


@pytest.mark.long
def test_the_environment_of_a_build_is_not_that_of_a_person_without_home(small: Project, builder: Command) -> None:
    assert os.environ.get("PATH")
    builder("build", "chat", environ={"HOME": "/nonexistent"})
