"""A bisection from end to end: a commit among 1,024 on a git server, beside other changes, killed on its way."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from builder.base.project import Project
from builder.engine import containers
from builder.engine.client import Endpoint
from builder.lab.bisect import search
from builder.lab.bisect.search import Bisection, Judge
from tests import projects, shared
from tests.commands import git_upstream
from tests.commands.bisect_trials import left_over
from tests.commands.git_upstream import Upstream
from tests.commands.serving import MODEL, Kitchen
from tests.commands.test_git_sources import use
from tests.commands.upgrade_trials import CHECK, PROBE, ROOT
from tests.conftest import Command, command, run_command

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.engine

COMMITS, PLANTED = 1024, 700
SCRIPT = """\
value=$(docker run --rm "$BUILDER_IMAGE" cat /source/serve.py) || exit 125
echo "serve.py says $value"
test "$value" -lt {planted}
"""


def many_commits(upstream: Upstream) -> list[str]:
    """1,024 commits, each of which writes its number into a file; the one planted has a title of its own."""
    return upstream.write_main(
        COMMITS,
        lambda number: "[Frontend] Stream `arguments`" if number == PLANTED else f"commit {number}",
        lambda number: git_upstream.written({"serve.py": str(number)}),
    )


def script(folder: Path) -> str:
    path = folder / "judge.sh"
    projects.write(path, "#!/bin/sh\n" + SCRIPT.format(planted=PLANTED))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def two_numbers(small: Project, builder: Command, upstream: Upstream) -> list[str]:
    """Number 1 from the first commit, and number 2 from the last one, with another mod and another template."""
    commits = many_commits(upstream)
    use(small, upstream, [])
    builder("build", "small", "--update", f"flashinfer={commits[0]}")
    template = small.root / "dockerfiles/small/Dockerfile.j2"
    projects.write(template, template.read_text(encoding="utf-8") + "ENV ANOTHER=1\nENV FURTHER=2\n")
    builder("build", "small", "--update", "flashinfer")
    return commits


@pytest.mark.long
def test_a_commit_among_1024_is_found_whatever_ends_the_program(
    small: Project, builder: Command, upstream: Upstream, repository: str, endpoint: Endpoint, tmp_path: Path
) -> None:
    commits = two_numbers(small, builder, upstream)
    arguments = ["bisect", "small", "--good", "1", "--run", script(tmp_path)]
    answers = 0
    for _ in range(2):  # killed after a few answers
        with subprocess.Popen(
            command(small, *arguments), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        ) as process:
            end = time.monotonic() + 600
            while process.poll() is None and time.monotonic() < end:
                begun = search.journal_of(small).read()
                if begun and len(begun.done) > answers + 1:
                    answers = len(begun.done)
                    break
                time.sleep(0.05)
            os.killpg(process.pid, signal.SIGKILL)
    assert answers >= 4
    assert "to go" in builder("bisect", "status").stdout
    assert "is not finished" in builder("bisect", "small", code=1).stderr

    done = builder(*arguments, "--json")
    assert "continuing the bisection" in done.stderr
    found = json.loads(done.stdout)
    (culprit,) = found["culprits"]
    assert (found["result"], culprit["axis"], culprit["unit"]) == ("found", "flashinfer", "flashinfer")
    assert (culprit["good"], culprit["bad"]) == (commits[PLANTED - 1], commits[PLANTED])
    assert (culprit["title"], culprit["author"], culprit["files"]) == (
        "[Frontend] Stream `arguments`", "Somebody", ["serve.py"]
    )  # fmt: skip
    assert f"--update flashinfer={commits[PLANTED - 1]}" in culprit["now"]
    assert found["steps"] <= 3 + 10
    assert left_over(endpoint, small) == []


@pytest.mark.long
def test_ends_that_say_otherwise_and_the_users_own_verdict(
    small: Project, builder: Command, repository: str, endpoint: Endpoint, tmp_path: Path
) -> None:
    builder("build", "small", "--mod", "template")
    projects.write(small.mods / "template/chat.jinja", "version two\n")
    builder("build", "small", "--mod", "template")
    judge = tmp_path / "always"
    projects.write(judge, "#!/bin/sh\nexit 0\n")
    judge.chmod(0o755)
    told = builder("bisect", "small", "--run", str(judge), code=1).stdout
    assert "no result: the bad number passes" in told
    assert f"{repository}:2: passed 3, failed 0" in told
    assert "what to do: use a --run script or a --probe that shows the fault" in told

    assert f"judge {repository}:1" in builder("bisect", "small").stdout
    assert f"judge {repository}:2" in builder("bisect", "good").stdout
    found = builder("bisect", "bad", "--note", "another template").stdout
    assert "small was broken by mod template" in found
    assert f"the change came between {repository}:1 and {repository}:2" in found
    assert "+version two" in found
    assert "no candidate is waiting" in builder("bisect", "skip", code=1).stderr

    builder("bisect", "small")
    assert "stopped" in builder("bisect", "stop").stdout
    assert left_over(endpoint, small) == []


def test_a_planted_journal_starts_no_program_and_serves_no_recipe_from_elsewhere(
    small: Project, builder: Command, repository: str, endpoint: Endpoint, tmp_path: Path
) -> None:
    """What a project of somebody else may bring along in .builder/: the user has typed none of it."""
    builder("build", "small", "--mod", "template")
    projects.write(small.mods / "template/chat.jinja", "version two\n")
    builder("build", "small", "--mod", "template")
    mark, name = tmp_path / "was-run", shared.unique_name()
    program = tmp_path / "program.sh"
    projects.write(program, f"#!/bin/sh\nenv > {mark}\n")
    program.chmod(0o755)
    recipe = tmp_path / "elsewhere.yaml"
    projects.write(recipe, f"name: {name}\ncontainer: {repository}\nvolumes: ['/:/host']\ncommand: sh -c id\n")
    waiting = search.of_number(2)
    planted = Bisection(
        "small", repository, (1, 2), Judge("script", str(program)), "2026-11-20T22:00:00Z",
        waiting=waiting, served=True,
    )  # fmt: skip
    small.bisecting.mkdir(parents=True)
    search.write_bisection(small, planted)
    assert "no candidate is waiting" in builder("bisect", "good", code=1).stderr
    search.write_bisection(small, replace(planted, target=str(recipe), judge=Judge("user")))
    for command_line in (("bisect", "good"), ("bisect", "status")):
        assert "is not in recipes/" in builder(*command_line, code=2).stderr
    search.write_bisection(small, replace(planted, numbers=(1, 7), judge=Judge("user")))
    assert "no longer names the images" in builder("bisect", "skip", code=1).stderr
    search.write_bisection(small, replace(planted, target=str(recipe), judge=Judge("user")))
    assert "was left unchanged" in builder("bisect", "stop").stderr
    assert not mark.exists()
    assert containers.find_container(endpoint, name) is None
    assert left_over(endpoint, small) == []


@pytest.mark.parametrize(("good", "bad", "goes_on"), [("1", "3", False), ("2", "3", False), ("1", "2", True)])
def test_other_ends_do_not_continue_a_bisection(
    good: str, bad: str, goes_on: bool, small: Project, builder: Command, repository: str, tmp_path: Path
) -> None:
    judge = tmp_path / "judge"
    projects.write(judge, "#!/bin/sh\nexit 200\n")
    judge.chmod(0o755)
    small.bisecting.mkdir(parents=True)
    begun = Judge("script", str(judge))
    search.write_bisection(small, Bisection("small", repository, (1, 2), begun, "2026-11-20T22:00:00Z"))
    done = builder("bisect", "small", "--good", good, "--bad", bad, "--run", str(judge), code=1)
    refused = f"a bisection of small from {repository}:1 to {repository}:2 is not finished"
    assert (refused in done.stderr) != goes_on


@pytest.mark.long
def test_a_full_disk_is_no_answer(small: Project, builder: Command, endpoint: Endpoint, tmp_path: Path) -> None:
    """The candidate with number 2's mod alone meets a disk without room, which tells nothing about it."""
    template = small.root / "dockerfiles/small/Dockerfile.j2"
    text = template.read_text(encoding="utf-8")
    writes = 'if grep "version two" chat.jinja && test -z "$ANOTHER"; then head -c 1 /dev/zero > /dev/full; fi'
    projects.write(template, f"{text}RUN {writes}\n")
    builder("build", "small", "--mod", "template")
    projects.write(small.mods / "template/chat.jinja", "version two\n")
    projects.write(template, f"{text}ENV ANOTHER=1\nRUN {writes}\n")
    builder("build", "small", "--mod", "template")
    judge = tmp_path / "judge.sh"
    projects.write(judge, '#!/bin/sh\ntest -z "$(docker run --rm "$BUILDER_IMAGE" printenv ANOTHER)"\n')
    judge.chmod(0o755)
    for _ in range(2):
        told = builder("bisect", "small", "--run", str(judge), code=6).stderr
        assert "No space left on device" in told
        assert "run the same command again to continue" in told
        begun = search.journal_of(small).read()
        assert begun is not None
        assert not any(trial.skipped for trial in begun.done)
    builder("bisect", "stop")
    assert left_over(endpoint, small) == []


@pytest.mark.long
def test_a_probe_finds_the_mod_while_the_model_is_served(kitchen: Kitchen, endpoint: Endpoint) -> None:
    def builder(*arguments: str) -> str:
        return run_command(kitchen.project, *arguments, environ=kitchen.environ).stdout

    path = kitchen.project.mods / "standin/vllm"
    text = path.read_text(encoding="utf-8")
    projects.write(path, text.replace(ROOT, '"root": "good"'))
    builder("build", "chat")
    projects.write(path, text.replace(ROOT, '"root": "broken"'))
    builder("build", "chat")
    projects.write(kitchen.project.root / "probes/own/probe.yaml", PROBE)
    projects.write(kitchen.project.root / "probes/own/check.py", CHECK)
    builder("run", "chat")
    before = containers.find_container(endpoint, kitchen.name)
    found = json.loads(builder("bisect", MODEL, "--good", "3", "--probe", "own", "--json"))
    (culprit,) = found["culprits"]
    assert culprit["axis"] == "mod standin"
    assert '"root": "broken"' in culprit["change"]
    after = containers.find_container(endpoint, kitchen.name)
    assert before
    assert after
    assert (after.id, after.status) == (before.id, "running")
    assert containers.find_container(endpoint, f"{kitchen.name}-candidate") is None
    assert left_over(endpoint, kitchen.project) == []
