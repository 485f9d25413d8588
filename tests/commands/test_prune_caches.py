"""Pruning what lies beside the engine: what images compiled while they served, and what was read of wheels."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from builder.base.project import Project
from builder.commands import keeping
from builder.definitions.container import COMPILE_CACHES, compile_cache
from builder.engine import containers, images
from builder.engine.client import Endpoint
from builder.lock import lock_file
from builder.lock.model import ImageName, Lock, LockedPackage, Pairing, Pins, PythonPin
from builder.lock.text import dump_lock
from builder.pins import packages
from builder.serving import compile_caches
from tests import locks, projects
from tests.conftest import Command
from tests.lab.checkpoints import made
from tests.safetensors_files import Dimensions
from tests.stock import stock

if TYPE_CHECKING:
    from collections.abc import Iterator


MODEL = "Org/M"
NOBODY = 65534


@pytest.fixture
def cache(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CACHE_HOME": str(tmp_path / "cache")}


@pytest.fixture
def served(small: Project, endpoint: Endpoint, repository: str, cache: dict[str, str]) -> Project:
    """Numbers 1 to 4, each of which has served."""
    stock(small, endpoint, repository, range(1, 5), (MODEL,))
    for number in range(1, 5):
        for name in COMPILE_CACHES:
            projects.write(folder(cache, repository, number) / name / "deep/kernel", "x" * 10_000)
    return small


def folder(cache: dict[str, str], repository: str, number: int) -> Path:
    return Path(compile_cache(cache, repository, number))


def numbers(cache: dict[str, str], repository: str) -> list[int]:
    return sorted(int(path.name) for path in folder(cache, repository, 1).parent.iterdir())


def said(builder: Command, cache: dict[str, str], *arguments: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(builder("prune", *arguments, "--json", environ=cache).stdout)
    return document


@pytest.mark.long
@pytest.mark.engine
@pytest.mark.alone
def test_what_pruned_numbers_compiled_goes_with_them(
    served: Project, builder: Command, repository: str, cache: dict[str, str]
) -> None:
    shown = builder("prune", "--keep", "2", environ=cache).stdout
    assert f"and the compile caches of {repository}:1: " in shown
    assert str(folder(cache, repository, 1)) in shown
    assert numbers(cache, repository) == [1, 2, 3, 4]
    plan = said(builder, cache, "--keep", "2", "--dry-run", "--yes")
    assert [row["image"] for row in plan["compiled"]] == [f"{repository}:1", f"{repository}:2"]
    assert all(40_000 <= row["frees"] < 200_000 for row in plan["compiled"])
    layers = sum(row["frees"] for row in plan["going"])
    assert plan["frees"] == layers + sum(row["frees"] for row in plan["compiled"])
    assert numbers(cache, repository) == [1, 2, 3, 4]
    done = said(builder, cache, "--keep", "2", "--yes")["removed"]
    assert (done["compiled"], done["refused"]) == ([f"{repository}:1", f"{repository}:2"], [])
    assert numbers(cache, repository) == [3, 4]
    assert said(builder, cache, "--keep", "2", "--yes")["removed"] is None


@pytest.mark.engine
@pytest.mark.alone
def test_what_was_pruned_before_leaves_nothing_either_and_what_is_only_missing_does(
    served: Project, builder: Command, endpoint: Endpoint, repository: str, cache: dict[str, str]
) -> None:
    lock = lock_file.read_lock(served.lock)
    one = lock.images[repository].numbers[1]
    lock = lock.with_image(ImageName(repository, 1), replace(one, pruned="2026-11-22T08:00:00Z"))
    served.lock.write_text(dump_lock(lock), encoding="utf-8")
    for number in (1, 2):
        images.remove_image(endpoint, f"{repository}:{number}")
    done = builder("prune", "--yes", environ=cache).stdout
    assert f"removed the compile caches of {repository}:1\n" in done
    assert "removed 0 images" not in done
    # Number 2 may be pulled again tomorrow.
    assert numbers(cache, repository) == [2, 3, 4]


@pytest.mark.engine
@pytest.mark.alone
def test_nothing_that_serving_did_not_make_goes(
    served: Project, builder: Command, repository: str, cache: dict[str, str], tmp_path: Path
) -> None:
    own = folder(cache, repository, 1)
    projects.write(own / "notes.txt", "mine\n")
    projects.write(own / "models/weights", "mine\n")
    projects.write(tmp_path / "elsewhere/kernel", "mine\n")
    shutil.rmtree(own / "triton")
    (own / "triton").symlink_to(tmp_path / "elsewhere")
    two = folder(cache, repository, 2)
    shutil.move(two, tmp_path / "two")
    two.symlink_to(tmp_path / "two")
    projects.write(folder(cache, "another", 1) / "vllm/kernel", "mine\n")
    projects.write(folder(cache, repository, 99) / "vllm/kernel", "mine\n")
    done = said(builder, cache, "--keep", "1", "--yes")["removed"]
    assert done["images"] == [f"{repository}:{number}" for number in (1, 2, 3)]
    assert done["refused"] == [f"{own} was not removed: Directory not empty"]
    assert sorted(path.name for path in own.iterdir()) == ["models", "notes.txt", "triton"]
    assert (tmp_path / "elsewhere/kernel").is_file()
    assert (tmp_path / "two/vllm/deep/kernel").is_file()
    assert numbers(cache, repository) == [1, 2, 4, 99]
    assert (folder(cache, "another", 1) / "vllm/kernel").is_file()


@pytest.fixture
def somebody() -> Iterator[Path]:
    """A folder that everybody reaches, while this process is nobody where it could otherwise remove anything."""
    place = Path(tempfile.mkdtemp(prefix="builder-test-"))
    place.chmod(0o777)
    root = os.geteuid() == 0
    yield place
    if root:
        os.seteuid(0)
    shutil.rmtree(place)


@pytest.mark.engine
@pytest.mark.alone
def test_what_a_container_wrote_as_root_is_removed_in_one(endpoint: Endpoint, somebody: Path) -> None:
    one = ImageName("builder-test-any", 1)
    environ = {"XDG_CACHE_HOME": str(somebody)}
    own = folder(environ, one.repository, 1)
    own.mkdir(parents=True)
    with containers.running(endpoint, "debian:bookworm-slim", labels={}, mounts={str(own): "/mnt"}) as container:
        assert (
            container.run(["sh", "-c", "mkdir -p /mnt/vllm/deep && echo x > /mnt/vllm/deep/kernel"], 60).exit_code == 0
        )
    if os.geteuid() == 0:
        for path in (own, *own.parents[:3]):
            os.chown(path, NOBODY, -1)
        os.seteuid(NOBODY)
    (found,) = compile_caches.find_compile_caches(endpoint, environ, [one])
    assert compile_caches.remove_compile_caches(endpoint, found, None) == (
        f"{own} was not removed: it belongs to another user; `sudo rm -r {own}` removes it"
    )
    assert (own / "vllm/deep/kernel").is_file()
    assert "the engine has no image builder-test-none:1" in compile_caches.remove_compile_caches(
        endpoint, found, "builder-test-none:1"
    )
    assert compile_caches.remove_compile_caches(endpoint, found, "debian:bookworm-slim") == ""
    assert not own.exists()


def test_the_folders_of_another_machine_are_not_looked_for(tmp_path: Path, cache: dict[str, str]) -> None:
    one = ImageName("vllm-node", 1)
    projects.write(folder(cache, "vllm-node", 1) / "vllm/kernel", "x")
    assert (
        compile_caches.find_compile_caches(Endpoint("ssh://node", ("docker", "buildx"), "a test"), cache, [one]) == ()
    )
    (found,) = compile_caches.find_compile_caches(Endpoint("unix:///s", ("docker", "buildx"), "a test"), cache, [one])
    assert found.folder == folder(cache, "vllm-node", 1)


def test_what_is_read_of_a_wheel_goes_when_nothing_pins_it(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    kept, gone = "a" * 64, "b" * 64
    place = project.state / "wheels"
    for digest in (kept, gone):
        projects.write(place / digest / "names", "vllm/__init__.py")
    answers = {"both": [kept, gone], "old": [gone]}
    for name, digests in answers.items():
        projects.write(place / f"found/{name}.json", json.dumps([[f"https://x/{one}", one] for one in digests]))
    projects.write(place / "found/damaged.json", "[")
    projects.write(place / "mine/names", "not ours")
    (place / ("c" * 64)).symlink_to(tmp_path)
    pin = PythonPin(("serve",), "2026-01-01T00:00:00Z", (LockedPackage("serve", "1.0", (kept,)),))
    for pins in (Pins(python=pin), Pins(build=pin)):
        stale = packages.stale_wheels(project, Lock().with_pins("small", "linux/amd64", pins))
        assert [path.name for path in stale] == [gone, "damaged.json", "old.json"]
    packages.remove_wheels(stale)
    assert sorted(path.name for path in place.iterdir()) == sorted([kept, "c" * 64, "found", "mine"])
    assert [path.name for path in (place / "found").iterdir()] == ["both.json"]
    packages.remove_wheels(stale)


def test_a_file_that_cannot_be_removed_does_not_hinder_a_prune(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "old.json").touch()
    packages.remove_wheels([tmp_path / "file/gone.json", tmp_path / "old.json"])
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.engine
@pytest.mark.alone
def test_stale_wheels_and_downloads_count_and_go_without_any_image(
    small: Project, builder: Command, endpoint: Endpoint, repository: str, cache: dict[str, str]
) -> None:
    stock(small, endpoint, repository, (1,), ())
    wheel = small.state / "wheels" / ("b" * 64)
    projects.write(wheel / "names", "x" * 5000)
    download = small.downloads / ("c" * 64)
    projects.write(download, "x" * 5000)
    shown = builder("prune", environ=cache).stdout
    assert "and files fetched for pins and mods that no longer name them: " in shown
    assert wheel.is_dir()
    document = said(builder, cache, "--yes")
    assert document["fetched"] == document["frees"] > 10000
    assert not wheel.exists()
    assert not download.exists()
    assert builder("prune", environ=cache).stdout.endswith("nothing to remove\n")


@pytest.mark.engine
@pytest.mark.alone
def test_a_checkpoint_that_a_model_had_stays_and_another_one_goes(endpoint: Endpoint, tmp_path: Path) -> None:
    kitchen = made.kitchen(tmp_path, Dimensions(layers=4, width=64, mtp_experts=8))
    older = kitchen.build()
    kitchen.define(more="  - config: {changed: true}\n")
    old = kitchen.build()
    kitchen.define(more="  - config: {changed: again}\n")
    latest = kitchen.build()
    one, two = ImageName("small", 1), ImageName("small", 2)
    lock = Lock().with_image(one, locks.numbered()).with_image(two, locks.numbered())
    lock = lock.with_pairing("Org/A", Pairing(one, revision=str(older.name)))
    lock = lock.with_pairing("Org/A", Pairing(two)).with_pairing("Org/B", Pairing(two, revision=str(old.name)))
    events: list[Any] = []
    context = replace(kitchen.workspace(events.append), engine=endpoint)

    def plan(now: Lock) -> keeping.PrunePlan:
        projects.write(kitchen.project.lock, dump_lock(now))
        return keeping.plan_prune(context, 9, timedelta(0), datetime.now(UTC))

    assert plan(lock).checkpoints == (), "a rollback may go back to the first, and the second serves"
    planned = plan(lock.with_pairing("Org/B", Pairing(two)))
    assert [each.title for each in planned.checkpoints] == [old.name.short]
    plan(lock)  # paired again after the plan
    keeping.prune_images(context, planned)
    assert all(each.folder.exists() for each in (older, old, latest))
    plan(lock.with_pairing("Org/B", Pairing(two)))
    keeping.prune_images(context, planned)
    assert [each.folder.exists() for each in (older, old, latest)] == [True, False, True]
    assert [event.text for event in events] == [f"removing {old.name.short}"]
