"""kill -9 at random moments of a build, a rollback, a promotion and a prune: the lock is the old one or the new one,
numbers are never given twice, and the next command puts right whatever the engine was left with.

BUILDER_KILLS is the number of kills of each kind; `make test-full` makes 200.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from builder.base import files
from builder.base.errors import NothingToDoError
from builder.base.project import Project
from builder.commands import keeping, pointing, rollback
from builder.engine import images
from builder.engine.client import Endpoint, EngineHTTPError
from builder.lock import lock_file
from builder.lock.model import ImageName, Lock, NumberedImage, Repository
from builder.lock.text import dump_lock
from builder.numbers import claims, images_lock
from builder.numbers.workspace import Workspace
from tests import locks, projects
from tests.commands.test_reliability import leftovers, start
from tests.conftest import Command
from tests.stock import number, stock
from tests.workspaces import workspace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


pytestmark = pytest.mark.engine

KILLS = int(os.environ.get("BUILDER_KILLS", "8"))
BUILDS = max(KILLS // 8, 3)
MODEL = "Org/M"


@pytest.fixture
def chance() -> random.Random:
    seed = int(os.environ.get("BUILDER_SEED", "0")) or time.time_ns()
    sys.stdout.write(f"BUILDER_SEED={seed}\n")
    return random.Random(seed)  # noqa: S311


class Moments:
    """Runs things in a child process and kills it at a random moment of the time that they take."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._longest = 0.0
        self.killed = 0
        self.ended = 0

    def run(self, what: Callable[[], object]) -> None:
        """Once to its end for the time it takes, and from then on killed."""
        child = os.fork()
        if not child:
            try:
                what()
                os._exit(0)
            except BaseException:  # noqa: BLE001  # a child that returned would run the rest of the tests
                traceback.print_exc()
                os._exit(1)
        if not self._longest:
            began = time.monotonic()
            _, status = os.waitpid(child, 0)
            self._longest = time.monotonic() - began
            assert status == 0
            return
        time.sleep(self._chance.uniform(0, self._longest * 1.1))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        assert status in (0, signal.SIGKILL)
        self.killed += status == signal.SIGKILL
        self.ended += status == 0


@pytest.fixture
def moments(chance: random.Random) -> Iterator[Moments]:
    found = Moments(chance)
    yield found
    sys.stdout.write(f"killed {found.killed} times; ended before the kill {found.ended} times\n")


def settled(project: Project, endpoint: Endpoint) -> Lock:
    """The lock, after what any next command that moves a pointer does first."""
    with images_lock.transaction(workspace(project, endpoint)) as transaction:
        return transaction.lock


def require_in_line(project: Project, endpoint: Endpoint, repository: str) -> None:
    """The engine and builds/ hold exactly what the lock says."""
    record = settled(project, endpoint).images.get(repository, Repository())
    tags = images.image_tags(endpoint, [repository, "builder-work"])
    present = [n for n, image in record.numbers.items() if not image.pruned]
    wanted = {f"{repository}:{n}" for n in present} | ({f"{repository}:latest"} if record.current else set())
    assert {tag for tag in tags if repository in tag} == wanted
    if record.current:
        assert tags[f"{repository}:latest"] == tags[f"{repository}:{record.current}"]
    for n in present:
        details = images.inspect_image(endpoint, f"{repository}:{n}")
        assert details
        assert images.fingerprint(details) == record.numbers[n].fingerprint
    claimed = {claims.number_of(labels) for labels in claims.of_repository(endpoint, repository).values()}
    assert claimed <= {0, *record.numbers}, "nothing is claimed that is not recorded"
    assert not list((project.state / "journal").glob("*"))
    left = {path.name for path in project.root.glob(".images.lock*")}
    assert len(left - {".images.lock.writer"}) <= 1, "only the last writer's unfinished file is left"


@pytest.mark.long
def test_rollback(small: Project, endpoint: Endpoint, repository: str, moments: Moments) -> None:
    stock(small, endpoint, repository, (1, 2, 3), (MODEL,))
    while moments.killed < KILLS:
        before = small.lock.read_bytes()
        subject = [repository, MODEL][moments.killed % 2]
        expected = _after(lock_file.read_lock(small.lock), subject)
        moments.run(partial(rollback.roll_back, workspace(small, endpoint), subject, None, force=False))
        after = lock_file.read_lock(small.lock)
        assert small.lock.read_bytes() == before or locks.undated(after) == locks.undated(expected)
        require_in_line(small, endpoint, repository)


def test_the_same_rollback_moves_what_a_killed_one_left(small: Project, endpoint: Endpoint, repository: str) -> None:
    """It was killed between images.lock and ``latest``: there is nothing to do in the one, but in the other."""
    lock = stock(small, endpoint, repository, (1, 2))
    small.lock.write_text(dump_lock(lock.with_current(ImageName(repository, 1))), encoding="utf-8")
    lock_file.write_journal(small, ImageName(repository, 1), "")
    with pytest.raises(NothingToDoError, match="is already at number 1"):
        rollback.roll_back(workspace(small, endpoint), repository, 1, force=False)
    tags = images.image_tags(endpoint, [repository])
    assert tags[f"{repository}:latest"] == tags[f"{repository}:1"]
    assert lock_file.is_empty(small)


def test_a_journal_that_came_with_a_clone_removes_no_image_of_others(
    small: Project, endpoint: Endpoint, repository: str
) -> None:
    other = f"{repository}-other"
    number(endpoint, other, 12)
    details = images.inspect_image(endpoint, f"{other}:12")
    assert details
    lock_file.write_journal(small, ImageName(other, 12), details.id)
    with images_lock.transaction(workspace(small, endpoint)):
        assert lock_file.is_empty(small)
    assert images.inspect_image(endpoint, f"{other}:12") == details
    images.remove_image(endpoint, f"{other}:12")


def test_an_image_that_the_engine_fails_to_remove_stops_no_later_command(
    small: Project, endpoint: Endpoint, repository: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prune was killed, and now the engine cannot remove the image, such as for a fault of its disk."""
    lock, name = stock(small, endpoint, repository, (1, 2)), ImageName(repository, 1)
    pruned = replace(lock.images[repository].numbers[1], pruned="2026-11-21T12:00:00Z")
    small.lock.write_text(dump_lock(lock.with_image(name, pruned)), encoding="utf-8")
    details = images.inspect_image(endpoint, str(name))
    assert details
    lock_file.write_journal(small, name, details.id)

    def refuse(_endpoint: Endpoint, _name: str) -> bool:
        raise EngineHTTPError("device or resource busy")

    with monkeypatch.context() as patched:
        patched.setattr(images, "remove_image", refuse)
        with images_lock.transaction(workspace(small, endpoint)) as change:
            assert change.lock.images[repository].numbers[1] == pruned
    assert lock_file.is_empty(small)
    assert images.inspect_image(endpoint, str(name))


def _after(lock: Lock, subject: str) -> Lock:
    from builder.numbers.pointers import apply_moves

    whole = rollback.RollbackSubject(
        subject, None if subject == MODEL else subject, MODEL if subject == MODEL else None
    )
    return apply_moves(lock, rollback.planned_moves(lock, whole, None))


def test_promote(small: Project, endpoint: Endpoint, repository: str, moments: Moments, chance: random.Random) -> None:
    stock(small, endpoint, repository, (1, 2, 3), (MODEL,))
    while moments.killed < KILLS:
        before = lock_file.read_lock(small.lock)
        record = before.images[repository]
        to = chance.choice(record.previous)
        name = f"{repository}:{to}"
        moments.run(partial(pointing.promote_image, workspace(small, endpoint), name, force=False))
        after = lock_file.read_lock(small.lock)
        assert after in (before, before.with_repository(repository, record.with_current(to)))
        require_in_line(small, endpoint, repository)


@pytest.mark.long
@pytest.mark.alone
def test_prune(small: Project, endpoint: Endpoint, repository: str, moments: Moments) -> None:
    stock(small, endpoint, repository, (1, 2, 3, 4), (MODEL,))
    while moments.killed < KILLS:
        before = lock_file.read_lock(small.lock)
        plan = keeping.plan_prune(workspace(small, endpoint, environ={}), 1, timedelta(0), datetime.now(UTC))
        assert [going.name.number for going in plan.going] == [1, 2, 3]
        moments.run(partial(keeping.prune_images, workspace(small, endpoint), plan))
        record = lock_file.read_lock(small.lock).images[repository]
        gone = [number for number, image in record.numbers.items() if image.pruned]
        assert gone in ([], [1], [1, 2], [1, 2, 3])
        assert (record.current, record.previous, record.next) == (4, (3, 2, 1), 5)
        require_in_line(small, endpoint, repository)
        for pruned in gone:
            name = ImageName(repository, pruned)
            number(endpoint, repository, pruned)
            images_lock.restore_tag(workspace(small, endpoint), name, str(name))
        assert settled(small, endpoint) == before


@pytest.mark.long
def test_a_number_given(small: Project, endpoint: Endpoint, repository: str, moments: Moments) -> None:
    """The step of a build in which others can see something: number, tag, build directory, lock."""
    stock(small, endpoint, repository, (1,), ())
    given = dict(lock_file.read_lock(small.lock).images[repository].numbers)
    other = f"{repository}-work"
    turn = 1
    while moments.killed < KILLS:
        turn += 1
        image = number(endpoint, other, turn)
        work = small.state / "work" / str(turn)
        projects.write(work / "build/bake.json", "{}")
        details = images.inspect_image(endpoint, f"{other}:{turn}")
        assert details
        finished = f"{other}:{turn}", work / "build", details.id
        before = lock_file.read_lock(small.lock)
        moments.run(partial(_give, workspace(small, endpoint), repository, image, finished))
        images.remove_image(endpoint, f"{other}:{turn}")
        after = lock_file.read_lock(small.lock)
        record = after.images[repository]
        assert after == before or record.numbers[record.next - 1] == image
        assert given.items() <= record.numbers.items(), "a number means what it meant"
        assert sorted(record.numbers) == list(range(1, record.next))
        given = dict(record.numbers)
        require_in_line(small, endpoint, repository)
        assert {int(path.name) for path in (small.builds / repository).glob("*")} == set(given) - {1}


@pytest.mark.parametrize("what", ["a number", "a rollback", "a prune"])
def test_an_interrupt_right_after_images_lock_was_replaced_undoes_nothing_that_it_records(
    small: Project, endpoint: Endpoint, repository: str, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """^C while the name of the new file is forced to the disk, which takes milliseconds."""
    stock(small, endpoint, repository, (1, 2, 3))
    image = number(endpoint, f"{repository}-work", 9)
    details = images.inspect_image(endpoint, f"{repository}-work:9")
    assert details
    projects.write(small.state / "work/9/build/bake.json", "{}")
    finished = f"{repository}-work:9", small.state / "work/9/build", details.id
    here, before = workspace(small, endpoint, environ={}), small.lock.read_bytes()
    force_folder = files.sync_folder

    def interrupted(folder: Path) -> None:
        if folder == small.root and small.lock.read_bytes() != before:
            raise KeyboardInterrupt
        force_folder(folder)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(files, "sync_folder", interrupted)
        if what == "a number":
            _give(here, repository, image, finished)
        elif what == "a rollback":
            rollback.roll_back(here, repository, 1, force=False)
        else:
            keeping.prune_images(here, keeping.plan_prune(here, 1, timedelta(0), datetime.now(UTC)))
    images.remove_image(endpoint, f"{repository}-work:9")
    record = lock_file.read_lock(small.lock).images[repository]
    assert (4 in record.numbers, record.current == 1, record.numbers[1].pruned is not None) == (
        what == "a number",
        what == "a rollback",
        what == "a prune",
    )
    assert lock_file.is_empty(small)
    require_in_line(small, endpoint, repository)


def test_a_number_whose_build_directory_was_being_copied_from_another_disk(
    small: Project, endpoint: Endpoint, repository: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stock(small, endpoint, repository, (1,), ())
    before = small.lock.read_bytes()
    image = number(endpoint, f"{repository}-work", 2)
    details = images.inspect_image(endpoint, f"{repository}-work:2")
    assert details
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        projects.write(Path(folder) / "build/bake.json", "{}")
        candidate = f"{repository}-work:2", Path(folder) / "build", details.id
        child = os.fork()
        if not child:
            monkeypatch.setattr(shutil, "copytree", _copy_a_part_and_die)
            _give(workspace(small, endpoint), repository, image, candidate)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
        assert [path.name for path in (small.builds / repository).iterdir()] == [".2.part"]
        images.remove_image(endpoint, f"{repository}-work:2")
        require_in_line(small, endpoint, repository)
    assert small.lock.read_bytes() == before
    assert not list((small.builds / repository).iterdir())


def _copy_a_part_and_die(_source: Path, target: Path, **_: object) -> None:
    target.mkdir()
    os.kill(os.getpid(), signal.SIGKILL)


def _give(context: Workspace, repository: str, image: NumberedImage, candidate: tuple[str, Path, str]) -> None:
    with images_lock.transaction(context) as transaction:
        name = transaction.next_name(repository, image.fingerprint)
        transaction.place(name, *candidate, image.fingerprint)
        transaction.commit(transaction.lock.with_image(name, image).with_current(name))


@pytest.mark.long
def test_whole_builds(
    small: Project, builder: Command, endpoint: Endpoint, repository: str, chance: random.Random
) -> None:
    """Real ones, from the command line, with everything that BuildKit does meanwhile."""
    builder("build", "small")
    given = dict(lock_file.read_lock(small.lock).images[repository].numbers)
    taken, killed, turn = 0.0, 0, 0
    while killed < BUILDS:
        turn += 1
        projects.write(small.root / "mods/template/chat.jinja", f"turn {turn}\n")
        process = start(small, "build", "chat")
        began = time.monotonic()
        if taken:
            time.sleep(chance.uniform(0, taken))
            process.kill()
        process.communicate(timeout=120)
        taken = taken or time.monotonic() - began
        killed += process.returncode == -signal.SIGKILL
        record = lock_file.read_lock(small.lock).images[repository]
        assert given.items() <= record.numbers.items(), "a number means what it meant"
        assert len(record.numbers) - len(given) in (0, 1)
        given = dict(record.numbers)
    sys.stdout.write(f"killed {killed} builds of {taken:.1f} s\n")
    projects.write(small.root / "mods/template/chat.jinja", "the last\n")
    builder("build", "chat")
    record = lock_file.read_lock(small.lock).images[repository]
    assert sorted(record.numbers) == list(range(1, len(given) + 2))
    assert leftovers(endpoint, repository) == sorted(
        [*(f"{repository}:{n}" for n in record.numbers), f"{repository}:latest"]
    )
    assert not list((small.state / "work").iterdir())
    require_in_line(small, endpoint, repository)
