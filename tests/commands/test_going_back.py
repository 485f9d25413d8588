"""A model whose new image does not serve is put back on the one before, once; with a stand-in for vLLM."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable

import pytest

from builder.engine import containers
from builder.engine.client import Endpoint
from builder.lock import lock_file
from builder.lock.model import ImageName
from tests import projects
from tests.commands.serving import MODEL, Kitchen
from tests.conftest import run_command

pytestmark = pytest.mark.engine

Builder = Callable[..., subprocess.CompletedProcess[str]]
BROKEN = "#!/bin/sh\necho 'ValueError: this one is broken'\nexit 1\n"


@pytest.fixture
def builder(kitchen: Kitchen) -> Builder:
    def run(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        return run_command(kitchen.project, *arguments, code=code, environ=kitchen.environ)

    return run


def build(kitchen: Kitchen, builder: Builder, script: str) -> ImageName:
    """Another number, whose vLLM is ``script``."""
    projects.write(kitchen.project.mods / "standin/vllm", script)
    builder("build", "chat")
    return paired(kitchen)


def paired(kitchen: Kitchen) -> ImageName:
    return lock_file.read_lock(kitchen.project.lock).models[MODEL].pairing.image


@pytest.mark.long
def test_what_no_image_mends_moves_nothing(kitchen: Kitchen, builder: Builder) -> None:
    builder("run", "chat")
    missing = BROKEN.replace("this one is broken", "'Org/M' is not a valid model identifier")
    served = build(kitchen, builder, missing)
    done = builder("restart", "chat", code=1)
    assert paired(kitchen) == served
    assert f"`builder download {MODEL}` fetches it" in " ".join(done.stderr.split())
    assert "builder rollback" not in done.stderr


@pytest.mark.long
def test_an_option_that_was_mistyped_is_no_verdict_on_the_image(kitchen: Kitchen, builder: Builder) -> None:
    builder("run", "chat")
    refusing = "#!/bin/sh\necho 'vllm serve: error: unrecognized arguments: --no-such-option'\nexit 2\n"
    new = build(kitchen, builder, refusing)
    done = builder("restart", "chat", "--", "--no-such-option", code=1)
    assert "going back" not in done.stderr
    assert "correct it in the recipe or on the command line" in " ".join(done.stderr.split())
    assert paired(kitchen) == new
    # The recipe alone is refused as well: this is a verdict.
    assert "going back to" in builder("run", "chat").stderr
    assert paired(kitchen) != new


@pytest.mark.long
def test_what_does_not_start_after_a_change_gives_way_to_what_did_once(
    kitchen: Kitchen, builder: Builder, endpoint: Endpoint
) -> None:
    builder("run", "chat")
    before = paired(kitchen)
    broken = build(kitchen, builder, BROKEN)
    assert broken != before

    done = builder("restart", "chat")
    first = " ".join(done.stdout.split(f"{kitchen.name} serves from")[0].split())
    told = re.fullmatch(
        rf"{MODEL}: {broken} → {before}, because ({kitchen.name} ended (\d+) times .* is broken)", first
    )
    assert told
    why, crashes = told.groups()
    assert int(crashes) >= 3
    assert f"{kitchen.name} serves from {before}, ready after " in done.stdout
    assert f"{why}: going back to {before}" in done.stderr
    assert paired(kitchen) == before
    (service,) = json.loads(builder("status", "chat", "--json").stdout)["services"]
    assert (service["image"], service["state"]) == (str(before), "healthy")
    assert service["put_back"]["from"] == str(broken)
    assert service["put_back"]["note"].startswith(f"put back on {before} ")
    assert "put back" in builder("status", "chat").stdout
    assert f"{MODEL} was put back on {before}" in " ".join(builder("list").stdout.split())
    assert "is marked bad" in builder("pair", MODEL, str(broken), code=1).stderr

    # Whoever wants it nevertheless gets what it does, and no second way back.
    builder("pair", MODEL, str(broken), "--force")
    assert "times before it answered" in builder("restart", "chat", code=1).stderr
    assert paired(kitchen) == broken
    assert containers.find_container(endpoint, kitchen.name) is None


@pytest.mark.long
def test_where_the_one_before_does_not_start_either_nothing_moves(kitchen: Kitchen, builder: Builder) -> None:
    builder("run", "chat")
    before = paired(kitchen)
    standin = (kitchen.project.mods / "standin/vllm").read_text(encoding="utf-8")
    after = build(kitchen, builder, f"{standin}# changed\n")
    kitchen.recipe("--crash")
    lock = kitchen.project.lock.read_bytes()
    failed = builder("restart", "chat", code=1).stderr
    assert f"{before}, the previous image, does not serve {MODEL} either" in failed
    assert "builder rollback" not in failed
    assert kitchen.project.lock.read_bytes() == lock
    assert "the previous image, does not serve" not in builder("run", "chat", code=1).stderr
    assert paired(kitchen) == after


@pytest.mark.long
def test_nothing_goes_back_to_what_never_answered_here(kitchen: Kitchen, builder: Builder) -> None:
    broken = build(kitchen, builder, BROKEN)
    assert "before it answered" in builder("run", "chat", code=1).stderr
    assert paired(kitchen) == broken
