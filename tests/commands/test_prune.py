"""Pruning: what goes, what stays, and that nothing else is touched."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

from builder.base import words
from builder.base.project import Project
from builder.commands import keeping
from builder.engine import bake_run, client, images, transfer
from builder.engine.client import Endpoint
from builder.lock import lock_file
from builder.lock.model import BasePin, ImageName, Pairing, Pins
from builder.lock.text import dump_lock
from builder.numbers import claims, images_lock
from builder.plan import making
from builder.plan.plan_model import Step
from tests import projects, registries
from tests.conftest import Command, command
from tests.evidence import runs
from tests.registries import Registry
from tests.stock import BASE, labels, load, number, stock
from tests.workspaces import workspace

if TYPE_CHECKING:
    from pathlib import Path


# Prune looks at every image of the engine, and the engine fails it where one goes at that moment.
pytestmark = [pytest.mark.engine, pytest.mark.alone]

MODEL = "Org/M"


@pytest.fixture
def stocked(small: Project, endpoint: Endpoint, repository: str) -> Project:
    """Numbers 1 to 6, of which a model has the last."""
    stock(small, endpoint, repository, range(1, 7), (MODEL,))
    return small


def said(builder: Command, *arguments: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(builder("prune", *arguments, "--json").stdout)
    return document


def numbers(endpoint: Endpoint, repository: str) -> list[int]:
    """The numbers that the engine has."""
    found = (tag.rpartition(":")[2] for tag in images.image_tags(endpoint, [repository]))
    return sorted(int(tag) for tag in found if tag != "latest")


def test_it_shows_first_and_removes_when_told(
    stocked: Project, builder: Command, endpoint: Endpoint, repository: str
) -> None:
    before = stocked.lock.read_bytes()
    evidence = runs.keep(stocked, ImageName(repository, 1), ImageName(repository, 6))
    assert len(evidence) == 4
    for age in ("30", "d", "-1d", "3x", "", "1.5d"):
        assert "not a length of time such as 30d" in builder("prune", "--older-than", age, code=2).stderr, age
    assert said(builder, "--keep", "0", "--older-than", "1h")["going"]
    assert said(builder, "--keep", "0", "--older-than", "99999w")["going"] == []
    shown = builder("prune")
    assert f"{repository}:3" in shown.stdout
    assert shown.stdout.endswith("nothing was removed; --yes removes without asking\n")
    assert builder("prune", "--dry-run", "--yes").stdout.endswith("nothing was removed\n")
    assert (stocked.lock.read_bytes(), numbers(endpoint, repository)) == (before, [1, 2, 3, 4, 5, 6])
    plan = said(builder)
    assert plan["removed"] is None
    assert {row["image"]: row["reasons"] for row in plan["kept"]} == {
        f"{repository}:4": ["newest"],
        f"{repository}:5": ["newest"],
        f"{repository}:6": ["current", f"serves {MODEL}", "newest"],
    }
    done = said(builder, "--yes")
    assert done["removed"]["images"] == [f"{repository}:{n}" for n in (1, 2, 3)]
    assert done["removed"]["refused"] == []
    assert numbers(endpoint, repository) == [4, 5, 6]
    assert builder("prune", "--yes").stdout.endswith("nothing to remove\n")
    assert runs.files(stocked) == evidence


def test_shared_layers_count_once_and_only_where_nothing_else_has_them(
    stocked: Project, builder: Command, endpoint: Endpoint, repository: str
) -> None:
    shared = {"shared": os.urandom(300_000)}
    lock = lock_file.read_lock(stocked.lock)
    for one, size in ((1, 50_000), (2, 70_000)):
        images.remove_image(endpoint, f"{repository}:{one}")
        name = ImageName(repository, one)
        lock = lock.with_image(name, number(endpoint, repository, one, (BASE, shared, {"own": os.urandom(size)})))
    stocked.lock.write_text(dump_lock(lock), encoding="utf-8")
    plan = said(builder, "--keep", "4")
    rows = {row["image"]: row["frees"] for row in plan["going"]}
    assert set(rows) == {f"{repository}:1", f"{repository}:2"}
    # On its own each would free its own layer alone; both together the one that they share, too. Sizes are the
    # engine's, which counts whole blocks of its file system.
    assert 50_000 <= rows[f"{repository}:1"] < 70_000 <= rows[f"{repository}:2"] < 100_000
    assert sum(rows.values()) + 300_000 <= plan["frees"] < sum(rows.values()) + 330_000


def test_an_image_that_keeps_another_name_frees_nothing(
    stocked: Project, builder: Command, endpoint: Endpoint, repository: str
) -> None:
    """A tag of the user's own, and another number with the same content."""
    lock = lock_file.read_lock(stocked.lock)
    images.tag_image(endpoint, f"{repository}:1", f"{repository}:my-own")
    images.tag_image(endpoint, f"{repository}:2", f"{repository}:7")
    same = replace(lock.images[repository].numbers[2], pinned=True)
    stocked.lock.write_text(dump_lock(lock.with_image(ImageName(repository, 7), same)), encoding="utf-8")
    own = images.inspect_image(endpoint, f"{repository}:1")
    shown = " ".join(builder("prune").stdout.split())
    for name, other in ((f"{repository}:1", "my-own"), (f"{repository}:2", "7")):
        assert f"{name} loses its number, but its image stays as {repository}:{other}" in shown
    plan = said(builder, "--yes")
    rows = {row["image"]: row["frees"] for row in plan["going"]}
    assert [rows[f"{repository}:{n}"] for n in (1, 2)] == [0, 0]
    assert sum(rows.values()) == plan["frees"] > 0
    assert plan["removed"]["images"] == [f"{repository}:{n}" for n in (1, 2, 3, 4)]
    there = images.inspect_image(endpoint, f"{repository}:my-own")
    assert own
    assert there
    assert own.id == there.id


def mod_records(endpoint: Endpoint) -> list[bake_run.CacheRecord]:
    return [each for each in bake_run.settled_records(endpoint) if each.step.startswith("# mod template\n")]


@pytest.mark.alone  # of the same mod's steps in other tests' images nothing here tells that they are theirs
def test_two_at_once_remove_each_image_once(stocked: Project, endpoint: Endpoint, repository: str) -> None:
    argv = command(stocked, "prune", "--keep", "1", "--yes")
    both = [subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    outcomes = [(*process.communicate(timeout=120), process.returncode) for process in both]
    assert all(code in {0, 1} for _, _, code in outcomes), outcomes
    assert not any("Traceback" in text for each in outcomes for text in each[:2]), outcomes
    assert numbers(endpoint, repository) == [6]
    record = lock_file.read_lock(stocked.lock).images[repository]
    assert [number for number, image in record.numbers.items() if image.pruned is None] == [6]
    assert not list(stocked.journal.glob("*"))


def test_a_number_pruned_stays_on_record_and_is_never_given_again(
    small: Project, builder: Command, endpoint: Endpoint, repository: str
) -> None:
    # The step has the same content whenever it runs: BuildKit may have dropped it.
    template = small.root / "dockerfiles/small/Dockerfile.j2"
    text = template.read_text(encoding="utf-8")
    projects.write(template, text.replace("> /greeting", "> /greeting; touch -d @0 /greeting"))
    for version in ("one", "two", "three"):
        # No other test has these steps: what two images were built by stays when one of them goes.
        projects.write(small.root / "mods/template/chat.jinja", f"version {version} of {repository}\n")
        builder("build", "chat")
    copies = {record.id for record in mod_records(endpoint) if record.shared}
    assert said(builder, "--keep", "1", "--yes")["removed"]["images"] == [f"{repository}:1", f"{repository}:2"]
    # BuildKit's copies of their layers go, too: those that it had marked as such. At times it marks none.
    left = mod_records(endpoint)
    still = {record.id for record in left if record.shared}
    assert not still or not copies & {record.id for record in left} - still
    lock = lock_file.read_lock(small.lock)
    assert lock.images[repository].numbers[1].pruned
    assert [pairing.image.number for pairing in lock.models["Org/Model-1B"].previous] == [2, 1]
    document = json.loads(builder("list", "--json").stdout)
    assert [(row["number"], row["state"]) for row in document["images"]] == [
        (3, "present"),
        (2, "pruned"),
        (1, "pruned"),
    ]
    assert "pruned" in builder("show", "small:1").stdout
    assert (small.builds / repository / "1" / "bake.json").is_file()

    for arguments, back in ((("--to", "1"), 1), ((), 2)):
        told = " ".join(builder("rollback", "small", *arguments, "--dry-run").stderr.split())
        assert f"{repository}:{back} is not in this engine: it would be pulled, copied from a node, or built" in told

    assert "the same content, tagged again" in builder("rebuild", "small:2").stdout
    assert lock_file.read_lock(small.lock).images[repository].numbers[2].pruned is None
    assert builder("rollback", "small").stdout.startswith(f"{repository}:latest: {repository}:3 → {repository}:2\n")
    projects.write(small.root / "mods/template/chat.jinja", "version four\n")
    assert builder("build", "chat").stdout.startswith(f"built {repository}:4 in ")


def test_a_container_keeps_its_image(stocked: Project, builder: Command, endpoint: Endpoint, repository: str) -> None:
    body = {"Image": f"{repository}:1", "Labels": {"builder.test": repository}}
    made = client.request(endpoint, "POST", "/containers/create", query={"name": f"{repository}-c"}, body=body)
    try:
        kept = {row["image"]: row["reasons"] for row in said(builder, "--yes")["kept"]}
        assert kept[f"{repository}:1"] == [f"used by container {repository}-c"]
        assert numbers(endpoint, repository) == [1, 4, 5, 6]
    finally:
        client.request(endpoint, "DELETE", f"/containers/{made['Id']}", query={"force": 1})


def test_nothing_that_is_not_ours_goes(stocked: Project, builder: Command, endpoint: Endpoint, repository: str) -> None:
    """Neither other images, nor the base of one of them, nor a number whose tag was moved."""
    foreign = f"{repository}-foreign"
    own = {f"own-{repository}-1": b"1\n" * 10_000}
    load(endpoint, f"{foreign}:1", (BASE, own, {"more": b"x"}))
    load(endpoint, f"{repository}:99", (BASE, {"unrecorded": b"x"}))
    images.tag_image(endpoint, "debian:bookworm-slim", f"{repository}:2")
    try:
        done = said(builder, "--yes")
        assert done["removed"]["images"] == [f"{repository}:3"]
        kept = {row["image"]: row["reasons"] for row in done["kept"]}
        assert kept[f"{repository}:1"] == [f"{foreign}:1 is built on this image"]
        assert numbers(endpoint, repository) == [1, 2, 4, 5, 6, 99]
        assert images.inspect_image(endpoint, f"{foreign}:1")
        assert images.inspect_image(endpoint, "debian:bookworm-slim")
        # Number 2 has no tag any more, but images.lock records it: it can be given its tag back.
        assert any(
            image.labels.get("builder.input-hash") == f"sha256:{2:064x}" for image in images.all_images(endpoint)
        )
    finally:
        images.remove_image(endpoint, f"{foreign}:1")


def test_images_without_a_name_that_builds_left_go(
    stocked: Project, builder: Command, endpoint: Endpoint, repository: str
) -> None:
    for content in (b"left", b"foreign"):
        ours = labels(repository, 77) if content == b"left" else {"org.opencontainers.image.title": repository}
        load(endpoint, f"{repository}:77", (BASE, {"x": content}), ours)
        details = images.inspect_image(endpoint, f"{repository}:77")
        assert details
        images.tag_image(endpoint, "debian:bookworm-slim", f"{repository}:77")
        if content == b"left":
            left = details.id
        else:
            foreign = details.id
    images.remove_image(endpoint, f"{repository}:77")
    done = said(builder, "--keep", "9", "--yes")
    assert done["nameless"] == [left]
    assert images.inspect_image(endpoint, left) is None
    assert images.inspect_image(endpoint, foreign)


def test_what_changed_since_the_plan_is_left_alone(
    stocked: Project, endpoint: Endpoint, repository: str, builder: Command
) -> None:
    planned = plan(stocked, endpoint, keep=3)
    builder("keep", "small:1")
    second = images.image_tags(endpoint, [repository])[f"{repository}:2"]
    images.tag_image(endpoint, "debian:bookworm-slim", f"{repository}:2")
    body = {"Image": f"{repository}:3"}
    made = client.request(endpoint, "POST", "/containers/create", body=body)
    before = stocked.lock.read_bytes()
    try:
        done = keeping.prune_images(workspace(stocked, endpoint), planned)
    finally:
        client.request(endpoint, "DELETE", f"/containers/{made['Id']}", query={"force": 1})
    assert done.gone == ()
    assert [line.split()[0] for line in done.refused] == [f"{repository}:{n}" for n in (1, 2, 3)]
    assert stocked.lock.read_bytes() == before
    assert numbers(endpoint, repository) == [1, 2, 3, 4, 5, 6]
    assert not list((stocked.state / "journal").iterdir())

    # What was made current or paired since the plan stays, too.
    builder("release", "small:1")
    images.tag_image(endpoint, second, f"{repository}:2")
    planned = replace(plan(stocked, endpoint), going=plan(stocked, endpoint).going[:2])
    lock = lock_file.read_lock(stocked.lock)
    lock = lock.with_repository(repository, lock.images[repository].with_current(1))
    lock = lock.with_pairing(MODEL, Pairing(ImageName(repository, 2)))
    stocked.lock.write_text(dump_lock(lock), encoding="utf-8")
    done = keeping.prune_images(workspace(stocked, endpoint), planned)
    late = "was kept, paired or made current after this command started: it was not removed"
    assert (done.gone, done.refused) == ((), (f"{repository}:1 {late}", f"{repository}:2 {late}"))
    assert numbers(endpoint, repository) == [1, 2, 3, 4, 5, 6]


def plan(project: Project, endpoint: Endpoint, keep: int = 0) -> keeping.PrunePlan:
    return keeping.plan_prune(workspace(project, endpoint), keep, timedelta(0), datetime.now(UTC))


@pytest.mark.long
def test_a_number_that_was_pruned_and_came_back_goes_with_its_first_date(
    stocked: Project, endpoint: Endpoint, repository: str
) -> None:
    lock, first = lock_file.read_lock(stocked.lock), "2026-11-22T08:00:00Z"
    one = replace(lock.images[repository].numbers[1], pruned=first)
    stocked.lock.write_text(dump_lock(lock.with_image(ImageName(repository, 1), one)), encoding="utf-8")
    planned, events = plan(stocked, endpoint, keep=3), list[Any]()
    assert [going.name.number for going in planned.going] == [1, 2, 3]
    images.remove_image(endpoint, f"{repository}:2")  # removed by hand in the meantime
    began = words.now()
    done = keeping.prune_images(workspace(stocked, endpoint, report=events.append), planned)
    assert done.gone == tuple(ImageName(repository, number) for number in (1, 2, 3))
    assert (done.refused, done.compiled) == ((), ())
    assert [event.text for event in events] == [f"removing {repository}:{number}" for number in (1, 2, 3)]
    record = lock_file.read_lock(stocked.lock).images[repository].numbers
    assert record[1].pruned == first
    assert began <= str(record[2].pruned) == str(record[3].pruned) <= words.now()
    assert [number for number, image in record.items() if not image.pruned] == [4, 5, 6]
    assert numbers(endpoint, repository) == [4, 5, 6]
    assert plan(stocked, endpoint, keep=3).is_empty


def test_a_number_that_another_project_also_has_is_only_recorded_as_pruned(
    small: Project, endpoint: Endpoint, repository: str, tmp_path: Path
) -> None:
    lock = stock(small, endpoint, repository, (1, 2, 3))
    images_lock.tell_numbers(workspace(small, endpoint), lock, repository)
    other = projects.make(tmp_path / "other", repository)
    shutil.copy(small.lock, other.lock)
    planned, holder = plan(other, endpoint), str(claims.project_identity(small))
    assert [(each.name.number, each.frees, each.holder) for each in planned.going] == [(1, 0, holder), (2, 0, holder)]
    assert (planned.layers, planned.frees) == (0, 0)
    done = keeping.prune_images(workspace(other, endpoint), planned)
    assert done.gone == ()
    because = f"is recorded as pruned and stays in the engine, because {holder} also has it"
    assert done.refused == (f"{repository}:1 {because}", f"{repository}:2 {because}")
    record = lock_file.read_lock(other.lock).images[repository]
    assert [number for number, image in record.numbers.items() if image.pruned] == [1, 2]
    assert numbers(endpoint, repository) == [1, 2, 3]
    assert plan(other, endpoint).is_empty, "they stay for the other project, and are not offered again"
    own = plan(small, endpoint)
    assert [(each.name.number, each.holder) for each in own.going] == [(1, None), (2, None)]
    assert all(each.frees >= 20_000 for each in own.going)
    assert own.layers == sum(each.frees for each in own.going)


@pytest.mark.long
def test_a_base_of_others_goes_when_no_number_and_no_pin_needs_it(
    small: Project, endpoint: Endpoint, repository: str, registry: Registry
) -> None:
    name = f"{registry.address}/{repository}-base"
    registries.push_base(endpoint, f"{name}:latest")
    lock = stock(small, endpoint, repository, (1, 2, 3, 4), ())
    digests = []
    for own, step in ((1, "base packages"), (2, "base packages"), (3, "python packages"), (4, "base packages")):
        layer = registries.layer("own", f"{own}".encode())
        digest = registries.publish(registry, f"{repository}-base", f"of-{own}", {"test": name}, layers=[layer])
        transfer.pull_layers(endpoint, name, digest, {}, lambda _: None)
        digests.append(digest)
        steps = (Step("base", {"image": f"{name}:of-{own}", "content": digest}), Step(step, {"torch": "2.13"}))
        projects.write(small.build_directory(repository, own) / "plan.json", making.steps_file(steps).content.decode())
    try:
        images.tag_image(endpoint, f"{name}@{digests[3]}", f"{repository}-mine:1")
        pins = Pins(BasePin(f"{name}:of-2", digests[1]))
        stocked = lock.with_pins("small", "linux/amd64", pins)
        small.lock.write_text(dump_lock(stocked), encoding="utf-8")
        # 2 is pinned, 3 is no base that others made, and 4 has a tag.
        planned = plan(small, endpoint, keep=9)
        assert (planned.nameless, planned.going) == ((f"{name}@{digests[0]}",), ())
        keeping.prune_images(workspace(small, endpoint), planned)
        found = [images.inspect_image(endpoint, f"{name}@{digest}") is not None for digest in digests]
        assert found == [False, True, True, True]
    finally:
        images.remove_image(endpoint, f"{repository}-mine:1")
        for digest in digests:
            images.remove_image(endpoint, f"{name}@{digest}")


def test_on_a_terminal_it_asks(stocked: Project, endpoint: Endpoint, repository: str) -> None:
    for answer, left in (("n\n", [1, 2, 3, 4, 5, 6]), ("y\n", [4, 5, 6])):
        ours, theirs = pty.openpty()
        with os.fdopen(ours, "w") as terminal:
            process = subprocess.Popen(command(stocked, "prune"), stdin=theirs, stdout=subprocess.PIPE, text=True)
            os.close(theirs)
            terminal.write(answer)
            terminal.flush()
            output, _ = process.communicate(timeout=120)
        assert "remove these? [y/N]" in output
        assert process.returncode == 0
        assert numbers(endpoint, repository) == left


def test_the_name_that_a_killed_push_left_keeps_no_image(
    stocked: Project, builder: Command, endpoint: Endpoint, repository: str
) -> None:
    left = [f"127.0.0.1:1/{repository}:arriving", f"127.0.0.1:1/{repository}:own"]
    for number_, reference in enumerate(left, start=1):
        images.tag_image(endpoint, f"{repository}:{number_}", reference)
    ids = [details.id for name in left if (details := images.inspect_image(endpoint, name))]
    try:
        frees = {row["image"]: row["frees"] for row in said(builder, "--yes", "--keep", "1")["going"]}
        assert (frees[f"{repository}:1"] > 0, frees[f"{repository}:2"]) == (True, 0)
        assert [images.inspect_image(endpoint, id_) is None for id_ in ids] == [True, False]
        assert images.inspect_image(endpoint, left[1])
    finally:
        for reference in left:
            images.remove_image(endpoint, reference)
