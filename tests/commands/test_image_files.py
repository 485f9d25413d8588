"""export-image and import-image: from one engine to another by a file, and files that are not what they were."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import tarfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from builder.base.project import Project
from builder.engine import images
from builder.engine.client import Endpoint, environment
from builder.evidence import run_record
from builder.evidence.run_record import Evidence, Subject
from builder.lock import lock_file, text
from builder.lock.model import ImageName, Lock, NumberedImage
from tests import locks, program, projects, registries, shared
from tests.commands import kept
from tests.conftest import Command, command, remove_all
from tests.evidence.runs import proof
from tests.registries import Node
from tests.stock import number, stock

if TYPE_CHECKING:
    from collections.abc import Iterator


pytestmark = pytest.mark.engine

FILLER = 3000  # kilobytes in the layer of number 1 that number 2 does not have
KILLS = 8
MODEL = "Org/Model-1B"


@pytest.fixture(scope="module")
def node(endpoint: Endpoint) -> Iterator[Node]:
    """A second engine."""
    with registries.node(*shared.bridge(3)) as started:
        yield started


@dataclass(frozen=True)
class Far:
    """Another machine: a project of its own, and its own engine."""

    project: Project
    endpoint: Endpoint
    environ: dict[str, str]
    repository: str

    def __call__(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        argv = command(self.project, *arguments)
        done = program.run(argv, timeout=300, env=self.environ)
        assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    @property
    def lock(self) -> Lock:
        return lock_file.read_lock(self.project.lock)

    def state(self) -> tuple[object, ...]:
        """All that an import may change: the record, the build directories, the names of images."""
        lock = self.project.lock.read_bytes() if self.project.lock.exists() else b""
        builds = sorted(str(path) for path in self.project.builds.rglob("*"))
        return lock, builds, images.image_tags(self.endpoint)

    def fingerprint(self, number: int) -> str:
        details = images.inspect_image(self.endpoint, f"{self.repository}:{number}")
        assert details
        return images.fingerprint(details)


def docker(endpoint: Endpoint, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Docker's own command, of the engine's own version."""
    program = Path(endpoint.buildx[0]).with_name("docker")
    argv = [str(program) if program.exists() else "docker", *arguments]
    return subprocess.run(argv, env={**os.environ, **environment(endpoint)}, capture_output=True, text=True)


@pytest.fixture
def far(small: Project, tmp_path: Path, repository: str, node: Node) -> Iterator[Far]:
    project = Project(tmp_path / "far")
    for folder in ("dockerfiles", "mods", "recipes"):
        shutil.copytree(small.root / folder, project.root / folder)
    yield Far(project, node.endpoint, {**os.environ, "DOCKER_HOST": node.host}, repository)
    remove_all(node.endpoint, repository)


@pytest.fixture
def built(small: Project, builder: Command) -> Project:
    """Numbers 1 and 2, which differ in their last layer; the model is paired with 2."""
    registries.grow(small, FILLER, "one")
    builder("build", "chat")
    registries.grow(small, 1, "two")
    builder("build", "chat")
    return small


@pytest.fixture
def stocked(small: Project, endpoint: Endpoint, repository: str) -> Project:
    """The same without builds."""
    stock(small, endpoint, repository, (1, 2), (MODEL,))
    projects.write(small.builds / repository / "1/bake.json", "{}")
    return small


@pytest.fixture
def large(small: Project, endpoint: Endpoint, repository: str) -> Project:
    """Number 1 alone, of 40 MB in a packed layer."""
    filler = {"filler": os.urandom(40 << 20)}
    image = number(endpoint, repository, 1, [filler], pack=lambda layer: gzip.compress(layer, 0, mtime=0))
    record(small, ImageName(repository, 1), image)
    images.tag_image(endpoint, f"{repository}:1", f"{repository}:latest")
    return small


def record(project: Project, name: ImageName, image: NumberedImage) -> None:
    """Writes an images.lock with this number alone, which is current."""
    project.lock.write_text(text.dump_lock(Lock().with_image(name, image).with_current(name)))


def recorded(project: Project, repository: str, number: int) -> str:
    image = lock_file.read_lock(project.lock).image(ImageName(repository, number))
    assert image
    return image.fingerprint


def add_proof(project: Project, name: ImageName) -> Evidence:
    """A run of a number of the project's own."""
    subject = Subject(str(name), recorded(project, name.repository, name.number), MODEL)
    run_record.add_run(project, name, proof(subject=subject))
    return run_record.of_image(project, name)[-1]


@pytest.mark.long
def test_a_number_comes_to_another_machine_by_a_file(
    built: Project, builder: Command, far: Far, tmp_path: Path, repository: str, endpoint: Endpoint
) -> None:
    file = tmp_path / "one.tar"
    builder("mark", f"{repository}:1", "good", "--note", "served a week")
    add_proof(built, ImageName(repository, 1))
    done = json.loads(builder("export-image", f"{repository}:1", str(file), "--json").stdout)
    assert done["size"] == file.stat().st_size
    assert [path.name for path in tmp_path.glob(".one*")] == []

    output = far("import-image", str(file)).stdout
    assert output.startswith(f"{repository}:1 imported, {done['layers']} layers, ")
    assert far.fingerprint(1) == recorded(built, repository, 1)
    mine, theirs = (lock_file.read_lock(one.lock).image(ImageName(repository, 1)) for one in (built, far.project))
    assert mine == theirs
    record = far.lock.images[repository]
    # Number 2 was given on the other machine: it is not given again here.
    assert (record.current, record.next) == (1, 3)
    assert run_record.of_image(far.project, ImageName(repository, 1)) == ()
    (row,) = json.loads(far("list", "--json").stdout)["images"]
    assert (row["image"], row["state"], row["status"]) == (f"{repository}:1", "present", "good")
    assert far("verify").stdout == "everything matches images.lock\n"
    latest = images.inspect_image(far.endpoint, f"{repository}:latest")
    assert latest
    assert f"{repository}:1" in latest.tags

    before = far.state()
    assert far("import-image", str(file)).stdout.startswith(f"{repository}:1 is already here\n")
    assert far.state() == before
    what_was_pruned_comes_back(built, builder, endpoint, ImageName(repository, 1), file)

    # What serves the model and what is current stays; the model comes with the number that serves it.
    builder("export-image", "small", str(file), "--force")
    output = far("import-image", str(file)).stdout
    assert f"the image serves {MODEL}" in output
    assert f"`builder promote {repository}:2` makes it current" in output
    assert far.lock.images[repository].current == 1
    assert f"{repository}:1 → {repository}:2" in far("rollback", "small", "--to", "2").stdout
    assert far.lock.images[repository].current == 2
    assert not [name for name in images.image_tags(far.endpoint) if name.startswith("builder-work")]

    # Docker takes a whole one as well. Its record and its build directory then come from the file.
    remove_all(far.endpoint, repository)
    shutil.rmtree(far.project.builds)
    far.project.lock.unlink()
    assert f"Loaded image: {repository}:2" in docker(far.endpoint, "load", "-i", str(file)).stdout
    assert far.fingerprint(2) == recorded(built, repository, 2)
    far("import-image", str(file))
    assert far("verify").stdout == "everything matches images.lock\n"


def what_was_pruned_comes_back(
    project: Project, builder: Command, endpoint: Endpoint, name: ImageName, file: Path
) -> None:
    before = project.lock.read_bytes()
    lock = lock_file.read_lock(project.lock)
    image = lock.image(name)
    assert image
    images.remove_image(endpoint, str(name))
    project.lock.write_text(text.dump_lock(lock.with_image(name, replace(image, pruned="2026-11-21T00:00:00Z"))))
    folder = project.builds / name.repository / str(name.number)
    shutil.rmtree(folder)
    assert f"{name} imported" in builder("import-image", str(file)).stdout
    assert project.lock.read_bytes() == before
    assert (folder / "bake.json").exists()


@pytest.mark.long
def test_a_number_is_never_given_to_other_content(
    stocked: Project, builder: Command, far: Far, tmp_path: Path, repository: str
) -> None:
    file = tmp_path / "one.tar"
    builder("export-image", f"{repository}:1", str(file))
    # Somebody's own image, that no images.lock knows.
    other = number(far.endpoint, repository, 1, [{"file": b"other"}])
    before = far.state()
    assert "in this engine differs from the image in the archive" in far("import-image", str(file), code=7).stderr
    assert far.state() == before
    # A build of that machine.
    record(far.project, ImageName(repository, 1), other)
    before = far.state()
    assert f"{repository}:1 is a different image here" in far("import-image", str(file), code=7).stderr
    assert far.state() == before


@pytest.mark.long
def test_what_is_here_without_its_record_is_recorded(
    stocked: Project, builder: Command, tmp_path: Path, repository: str, endpoint: Endpoint
) -> None:
    file = tmp_path / "two.tar"
    builder("export-image", f"{repository}:2", str(file))
    stocked.lock.unlink()
    assert "images.lock is lost" in builder("import-image", str(file), code=4).stderr
    stocked.lock.write_text(text.dump_lock(Lock()))
    output = builder("import-image", str(file)).stdout
    assert output.startswith(f"{repository}:2 is already here; images.lock records it now\nthe image serves {MODEL}\n")
    assert [*lock_file.read_lock(stocked.lock).images[repository].numbers] == [2]

    # A first pairing that requires evidence waits for it, and `latest` with it; what is there already counts.
    projects.write(stocked.root / "builder.yaml", "requires: {prove: pass}\n")
    stocked.lock.write_text(text.dump_lock(Lock()))
    done = builder("import-image", str(file))
    assert done.stdout.startswith(f"{repository}:2 is already here; images.lock records it now\n")
    assert "it serves" not in done.stdout
    lacks = f"{repository}:2 lacks what {MODEL} requires, so it does not serve that model yet"
    assert lacks in " ".join(done.stderr.split())
    lock = lock_file.read_lock(stocked.lock)
    assert (lock.images[repository].current, lock.models) == (None, {})
    add_proof(stocked, ImageName(repository, 2))
    stocked.lock.write_text(text.dump_lock(Lock()))
    assert f"the image serves {MODEL}" in builder("import-image", str(file)).stdout
    assert lock_file.read_lock(stocked.lock).images[repository].current == 2


@pytest.mark.long
def test_what_cannot_be_meant_is_refused(
    stocked: Project, builder: Command, tmp_path: Path, repository: str, endpoint: Endpoint
) -> None:
    file = tmp_path / "some.tar"
    assert "has no number 9" in builder("export-image", f"{repository}:9", str(file), code=2).stderr
    assert "No such file" in builder("export-image", f"{repository}:2", str(tmp_path / "no/f.tar"), code=2).stderr
    file.write_text("mine")
    assert "--force" in builder("export-image", f"{repository}:2", str(file), code=2).stderr
    assert file.read_text() == "mine"
    assert "not a tar file" in builder("import-image", str(file), code=1).stderr
    assert "No such file" in builder("import-image", str(tmp_path / "none"), code=2).stderr
    saved = tmp_path / "saved.tar"
    assert docker(endpoint, "save", "-o", str(saved), f"{repository}:2").returncode == 0
    assert "not an archive of `builder export-image`" in builder("import-image", str(saved), code=1).stderr


@pytest.mark.long
def test_a_damaged_file_changes_nothing(
    stocked: Project, builder: Command, far: Far, tmp_path: Path, repository: str
) -> None:
    file = tmp_path / "one.tar"
    builder("export-image", f"{repository}:1", str(file))
    content = file.read_bytes()
    largest, record = _of_the_largest(file), content.index(b"inputs: ") + 12
    # What a hand would make of it, checksums and all.
    own, other = (
        locks.content(fingerprint).encode() for fingerprint in (recorded(stocked, repository, 1), f"sha256:{'1' * 64}")
    )
    assert own in content
    damages = {
        "cut": content[: len(content) // 2],
        "flipped": _flipped(content, largest),
        "flipped in the record": _flipped(content, record),
        "other content": content.replace(own, other),
    }
    before = far.state()
    for damage, damaged in damages.items():
        file.write_bytes(damaged)
        assert f"error: {file} is damaged: " in far("import-image", str(file), code=1).stderr, damage
        assert far.state() == before, damage


def _flipped(content: bytes, position: int) -> bytes:
    return content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :]


def _of_the_largest(file: Path) -> int:
    """The position of the middle of the largest layer."""
    with tarfile.open(file) as archive:
        member = max(archive.getmembers(), key=lambda one: one.size)
        return member.offset_data + member.size // 2


@pytest.mark.long
def test_a_full_disk_leaves_no_file(stocked: Project, builder: Command, tmp_path: Path, repository: str) -> None:
    folder = tmp_path / "stick"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", folder], check=True)
    try:
        output = builder("export-image", f"{repository}:1", str(folder / "one.tar"), code=1).stderr
        assert "was not written: No space left on device" in output
        assert "make room there" in output
        assert list(folder.iterdir()) == []
    finally:
        subprocess.run(["umount", folder], check=True)


def killed(argv: list[str], environ: dict[str, str], seconds: float) -> bool:
    """Kills a command after a while; False where it had ended by then."""
    process = subprocess.Popen(argv, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
    return process.wait() != 0


@pytest.mark.long
def test_a_killed_export_leaves_the_file_that_was_there(
    large: Project, builder: Command, tmp_path: Path, repository: str, endpoint: Endpoint
) -> None:
    file = tmp_path / "one.tar"
    argv = command(large, "export-image", f"{repository}:1", str(file), "--force")
    began = time.monotonic()
    program.run(argv, check=True)
    took, size = time.monotonic() - began, file.stat().st_size
    file.write_text("what was there")
    kills = [killed(argv, dict(os.environ), took * step / KILLS) for step in range(1, KILLS)]
    assert any(kills)
    assert file.read_bytes() == b"what was there" or file.stat().st_size == size
    builder("export-image", f"{repository}:1", str(file), "--force")
    builder("import-image", str(file))
    assert [path.name for path in tmp_path.glob("*one.tar*")] == ["one.tar"]
    assert set(images.image_tags(endpoint, [f"*/{repository}", f"builder-work:{repository}-*"])) == set()


@pytest.mark.long
def test_an_import_puts_right_what_a_killed_one_left(
    stocked: Project, builder: Command, far: Far, tmp_path: Path, repository: str
) -> None:
    file = tmp_path / "two.tar"
    builder("export-image", f"{repository}:2", str(file))
    far("import-image", str(file))
    kept.killed_before_latest(far.project, far.endpoint, repository, 2)
    assert "already" in far("import-image", str(file)).stdout
    kept.require_in_line(far.project, far.endpoint, repository, 2)


@pytest.mark.long
def test_a_killed_import_leaves_all_or_nothing(
    built: Project, builder: Command, far: Far, tmp_path: Path, repository: str
) -> None:
    file = tmp_path / "two.tar"
    builder("export-image", f"{repository}:2", str(file))
    argv = command(far.project, "import-image", str(file))
    began = time.monotonic()
    far("import-image", str(file))
    took = time.monotonic() - began
    whole = far.fingerprint(2)
    ended = 0
    for step in range(1, KILLS):
        remove_all(far.endpoint, repository)
        far.project.lock.unlink()
        shutil.rmtree(far.project.builds)
        ended += not killed(argv, far.environ, took * step / KILLS)
        # What a killed one left is put right by the next that writes.
        if repository in far.lock.images and far.lock.images[repository].numbers:
            assert far.fingerprint(2) == whole
            assert (far.project.builds / repository / "2").exists()
        far("import-image", str(file))
        assert far.fingerprint(2) == whole
        assert [*far.lock.images[repository].numbers] == [2]
        tags = {name for name in images.image_tags(far.endpoint) if "@" not in name}
        assert tags & {f"{repository}:2", f"{repository}:latest"} == {f"{repository}:2", f"{repository}:latest"}
        assert not [name for name in tags if name.startswith("builder-work")]
        assert not list((far.project.state / "work").iterdir())
    assert ended < KILLS - 1


@pytest.fixture(scope="module")
def older(endpoint: Endpoint) -> Iterator[Node]:
    """An engine with the classic image store, where layers are kept unpacked."""
    with registries.node(*shared.bridge(6), classic=True) as started:
        yield started


@pytest.mark.long
def test_the_classic_store_exports_and_imports(
    small: Project, builder: Command, older: Node, far: Far, tmp_path: Path, repository: str
) -> None:
    at_older = {**far.environ, "DOCKER_HOST": older.host}
    stock(small, older.endpoint, repository, (1, 2))
    files = [tmp_path / "one.tar", tmp_path / "two.tar"]
    try:
        for n, file in enumerate(files, 1):
            builder("export-image", f"{repository}:{n}", str(file), environ=at_older)
        # To an engine with the other store, where what it did not pack itself lies as it came.
        for file in files:
            far("import-image", str(file))
        assert [far.fingerprint(n) for n in (1, 2)] == [recorded(small, repository, n) for n in (1, 2)]
        # And back to one of its own kind.
        remove_all(older.endpoint, repository)
        again = replace(far, endpoint=older.endpoint, environ=at_older, project=Project(tmp_path / "again"))
        shutil.copytree(small.root / "dockerfiles", again.project.root / "dockerfiles")
        for file in files:
            again("import-image", str(file))
        assert [again.fingerprint(n) for n in (1, 2)] == [recorded(small, repository, n) for n in (1, 2)]
    finally:
        remove_all(older.endpoint, repository)


@pytest.mark.long
def test_an_older_engine_takes_packed_layers(
    large: Project, builder: Command, older: Node, far: Far, tmp_path: Path, repository: str
) -> None:
    file = tmp_path / "one.tar"
    builder("export-image", f"{repository}:1", str(file))
    there = replace(far, endpoint=older.endpoint, environ={**far.environ, "DOCKER_HOST": older.host})
    try:
        there("import-image", str(file))
        assert there.fingerprint(1) == recorded(large, repository, 1)
    finally:
        remove_all(older.endpoint, repository)


@pytest.mark.long
def test_an_engine_without_room_takes_nothing(
    large: Project, builder: Command, far: Far, tmp_path: Path, repository: str
) -> None:
    file = tmp_path / "one.tar"
    builder("export-image", f"{repository}:1", str(file))
    with registries.node(*shared.bridge(7), disk="30m") as small:
        full = replace(far, endpoint=small.endpoint, environ={**far.environ, "DOCKER_HOST": small.host})
        before = full.state()
        output = full("import-image", str(file), code=1).stderr
        assert "no space left" in output
        assert "make room" in output
        assert full.state() == before
