"""Pairing, marking, promoting and rolling back, by the commands that the user runs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from builder.base.project import Project
from builder.engine import images
from builder.engine.client import Endpoint
from builder.lock import lock_file
from builder.lock.model import ImageName, Pairing
from tests import locks, projects
from tests.conftest import Command
from tests.stock import stock

pytestmark = pytest.mark.engine

MODEL, NEW = "Org/M", "Org/Model-1B"


@pytest.fixture
def stocked(small: Project, endpoint: Endpoint, repository: str) -> Project:
    """Numbers 1 to 3, each paired with a model in turn."""
    stock(small, endpoint, repository, (1, 2, 3), (MODEL,))
    return small


def said(builder: Command, *arguments: str, code: int = 0) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(builder(*arguments, "--json", code=code).stdout)
    assert document.pop("schema_version") == 1
    return document


def latest(endpoint: Endpoint, repository: str) -> list[str]:
    """The numbers that ``latest`` is."""
    details = images.inspect_image(endpoint, f"{repository}:latest")
    assert details
    return sorted(tag.rpartition(":")[2] for tag in details.tags if not tag.endswith(":latest"))


def test_a_model_is_paired_and_others_stay(stocked: Project, builder: Command, repository: str) -> None:
    first, second = (f"{repository}:{n}" for n in (1, 2))
    assert builder("pair", NEW, "small:1").stdout == f"{NEW}: nothing → {first}\n  recipe: recipes/chat.yaml\n"
    assert said(builder, "pair", NEW, second) == {
        "model": NEW,
        "image": second,
        "recipe": "recipes/chat.yaml",
        "moves": [{"what": NEW, "kind": "model", "from": first, "to": second}],
        "differences": [],
        "weights": None,
    }
    assert builder("pair", NEW, second).stdout == f"{NEW} is already paired with {second}\n"
    lock = locks.undated(lock_file.read_lock(stocked.lock))
    pairings = (Pairing(ImageName(repository, n), "recipes/chat.yaml") for n in (2, 1))
    assert (lock.models[NEW].pairing, *lock.models[NEW].previous) == tuple(pairings)
    assert lock.models[MODEL].pairing.image.number == 3
    assert lock.images[repository].current == 3
    assert builder("rollback", NEW).stdout == f"{NEW}: {second} → {first}\n"
    assert "has no number 9" in builder("pair", NEW, "small:9", code=2).stderr


def test_a_mark_is_shown_everywhere(stocked: Project, builder: Command, repository: str) -> None:
    assert builder("mark", MODEL, "good", "--note", "12 tokens/s").stdout == (
        f"{MODEL} on {repository}:3 is marked good: 12 tokens/s\n"
    )
    assert builder("mark", "small:2", "bad", "--note", "loops").stdout == f"{repository}:2 is marked bad: loops\n"
    assert builder("mark", "small:2", "bad").stdout == f"{repository}:2 was already marked bad: loops\n"
    document = said(builder, "list")
    assert [(row["number"], row["status"], row["note"]) for row in document["images"]] == [
        (3, "untested", ""),
        (2, "bad", "loops"),
        (1, "untested", ""),
    ]
    assert (document["models"][0]["status"], document["models"][0]["note"]) == ("good", "12 tokens/s")
    assert [before["image"] for before in document["models"][0]["history"]] == document["models"][0]["previous"]
    assert "note: loops" in builder("list").stdout
    assert "12 tokens/s" in builder("list", "--models").stdout
    assert "bad: loops" in builder("show", "small:2").stdout
    assert builder("mark", "small:2", "unmarked").stdout == f"{repository}:2 is unmarked\n"
    assert "images.lock has no image `nothing`" in builder("mark", "nothing", "bad", code=2).stderr


@pytest.mark.long
def test_what_was_said_of_a_model_alone_is_listed_and_compared(
    stocked: Project, builder: Command, repository: str
) -> None:
    builder("mark", MODEL, "bad", "--note", "loops")
    assert builder("list").stdout.splitlines()[1].endswith(f"  current   {MODEL} (bad)")
    compared = builder("diff", "small:2", "small:3").stdout.splitlines()
    assert [" ".join(line.split()) for line in compared[1:4] if MODEL in line] == [f"{MODEL}: bad: loops"]
    after = json.loads(builder("diff", "small:2", "small:3", "--json").stdout)["after"]
    assert (after["status"], after["models"]) == ("untested", [{"model": MODEL, "status": "bad", "note": "loops"}])
    builder("mark", "small:3", "bad", "--note", "loops")
    assert MODEL not in builder("diff", "small:2", "small:3").stdout
    assert "(bad)" not in builder("list").stdout


def test_an_image_that_the_engine_lacks_becomes_neither_current_nor_paired(
    stocked: Project, builder: Command, endpoint: Endpoint, repository: str
) -> None:
    images.remove_image(endpoint, f"{repository}:1")
    before = stocked.lock.read_bytes()
    for arguments in (["promote", "small:1"], ["pair", NEW, "small:1"], ["promote", "small:1", "--force"]):
        assert f"{repository}:1 is missing from this engine" in builder(*arguments, code=7).stderr
    assert stocked.lock.read_bytes() == before
    assert latest(endpoint, repository) == ["3"]
    images.remove_image(endpoint, f"{repository}:3")
    lost = builder("rollback", "small", "--to", "3", "--force", code=7).stderr
    assert f"small is at number 3, but this engine lacks {repository}:3" in lost
    assert f"`builder rebuild {repository}:3`" in lost


def test_a_bad_image_becomes_current_or_paired_only_by_force(
    stocked: Project, builder: Command, endpoint: Endpoint, repository: str
) -> None:
    builder("mark", "small:1", "bad", "--note", "loops")
    before = stocked.lock.read_bytes()
    for arguments in (["promote", "small:1"], ["pair", NEW, "small:1"], ["rollback", "small", "--to", "1"]):
        refused = builder(*arguments, code=1).stderr
        assert f"{repository}:1 is marked bad: loops" in refused
        assert "--force" in refused
    assert stocked.lock.read_bytes() == before
    assert latest(endpoint, repository) == ["3"]
    builder("promote", "small:1", "--force")
    builder("pair", NEW, "small:1", "--force")
    assert latest(endpoint, repository) == ["1"]
    builder("mark", MODEL, "bad")
    builder("pair", MODEL, "small:2")
    assert f"{MODEL} on {repository}:3 is marked bad" in builder("pair", MODEL, "small:3", code=1).stderr


def test_pairing_by_a_recipe_records_it_also_where_the_image_stays(
    stocked: Project, builder: Command, repository: str
) -> None:
    """As after `adopt --model`, which knows no recipe."""
    third = f"{repository}:3"
    assert lock_file.read_lock(stocked.lock).models[MODEL].pairing.recipe is None
    for name in ("chat", "terse"):
        projects.add_recipe(stocked.root, name, repository, MODEL, [])
        assert builder("pair", name, third).stdout == (
            f"{MODEL} is still paired with {third}; its recipe is now recipes/{name}.yaml\n"
        )
        assert lock_file.read_lock(stocked.lock).models[MODEL].pairing.recipe == f"recipes/{name}.yaml"
    assert builder("pair", "terse", third).stdout == f"{MODEL} is already paired with {third}\n"


def test_every_verb_takes_a_recipe_a_model_or_an_image(stocked: Project, builder: Command, repository: str) -> None:
    first, third = f"{repository}:1", f"{repository}:3"
    projects.add_recipe(stocked.root, "chat", repository, MODEL, [])
    assert builder("mark", "chat", "good").stdout == f"{MODEL} on {third} is marked good\n"
    assert builder("mark", "small", "good").stdout == f"{third} is marked good\n"
    assert lock_file.read_lock(stocked.lock).images[repository].numbers[3].status == "good"
    assert builder("pair", "recipes/chat.yaml", first).stdout.startswith(f"{MODEL}: {third} → {first}")
    for name in ("chat", "recipes/chat.yaml", MODEL):
        assert said(builder, "show", name)["image"] == first
        assert said(builder, "diff", name, "small")["after"]["image"] == third
        assert builder("keep", name).stdout.startswith(f"{first}, the image that {name} means now, ")
        builder("release", first)
    assert builder("keep", "small").stdout == f"{third}, the image that small means now, is kept\n"
    assert said(builder, "promote", "chat")["moves"][0]["to"] == first
    assert builder("rollback", "small").stdout.startswith(f"{repository}:latest: {first} → {third}")
    assert builder("list", "chat").stdout.count(repository) == builder("list", MODEL).stdout.count(repository)


def test_promote_moves_latest_alone_and_corrects_its_tag(
    stocked: Project, builder: Command, endpoint: Endpoint, repository: str
) -> None:
    fault = f"{repository}:latest does not point to its current number; to correct the tag: `builder promote"
    for source in (f"{repository}:1", "debian:bookworm-slim", ""):
        if source:
            images.tag_image(endpoint, source, f"{repository}:latest")
        else:
            images.remove_image(endpoint, f"{repository}:latest")
        listed = builder("list").stderr
        assert f"{fault} {repository}:3`" in listed
        assert ("builder adopt" in listed) == source.startswith("debian")
        assert f"→ `builder promote {repository}:3`" in builder("doctor", code=None).stdout
        builder("promote", f"{repository}:3")
        assert latest(endpoint, repository) == ["3"]

    done = said(builder, "promote", "small:1")
    moves = [{"what": repository, "kind": "repository", "from": f"{repository}:3", "to": f"{repository}:1"}]
    assert (done["moves"], done["staying"]) == (moves, [MODEL])
    builder("promote", "small:3")
    assert builder("promote", "small:1").stdout.splitlines()[1:] == [
        f"  {MODEL} stays; to move it too: `builder pair {MODEL} {repository}:1`"
    ]
    assert latest(endpoint, repository) == ["1"]
    assert lock_file.read_lock(stocked.lock).images[repository].previous == (3, 2)
    assert builder("promote", "small:1").stdout == f"{repository}:1 is already current\n"
    images.tag_image(endpoint, f"{repository}:2", f"{repository}:latest")
    corrected = f"{repository}:1 is already current; {repository}:latest points to it again\n"
    assert builder("promote", "small:1").stdout == corrected
    assert builder("rollback", "small").stdout.startswith(f"{repository}:latest: {repository}:1 → {repository}:3\n")


def test_a_rollback_passes_over_bad_images_and_is_its_own_undo(
    stocked: Project, builder: Command, repository: str
) -> None:
    lines = builder("mark", "small:3", "bad").stdout.splitlines()
    assert lines[1:] == [
        f"  {name} still points to this image; to go back: `builder rollback {name}`" for name in (repository, MODEL)
    ]
    assert said(builder, "mark", MODEL, "bad")["pointed_at_by"] == [MODEL]
    for name in ("small:3", MODEL):
        builder("mark", name, "unmarked")

    builder("mark", "small:2", "bad")
    before = stocked.lock.read_bytes()
    done = said(builder, "rollback", "small")
    assert done["passed_over"] == [f"{repository}:2"]
    assert done["moves"][0]["to"] == f"{repository}:1"
    builder("rollback", "small")
    assert stocked.lock.read_bytes() == before
    assert f"skipped: {repository}:2 is marked bad" in builder("rollback", MODEL, "--dry-run").stdout
    assert stocked.lock.read_bytes() == before
    builder("mark", "small:1", "bad")
    for name in ("small", MODEL):
        assert "has no image to go back to" in builder("rollback", name, code=1).stderr


@pytest.mark.long
def test_a_build_pairs_its_model_as_untested_and_leaves_the_others(
    small: Project, builder: Command, repository: str
) -> None:
    builder("build", "chat")
    builder("mark", NEW, "good", "--note", "fine")
    builder("pair", "Org/Other", "small:1")
    projects.write(small.root / "mods/template/chat.jinja", "version two\n")
    builder("build", "chat")
    lock = locks.undated(lock_file.read_lock(small.lock))
    assert lock.models[NEW].pairing == Pairing(ImageName(repository, 2), "recipes/chat.yaml")
    assert lock.models[NEW].previous == (Pairing(ImageName(repository, 1), "recipes/chat.yaml", None, "good", "fine"),)
    assert lock.models["Org/Other"].pairing.image.number == 1
    done = builder("rollback", "chat").stdout
    assert "  mod template: changed\n" in done
    builder("mark", "small:2", "bad")
    projects.add_recipe(small.root, "more", repository, "Org/More", ["mods/template"])
    assert "which is marked bad" in builder("build", "more").stdout
    assert "Org/More" not in lock_file.read_lock(small.lock).models
