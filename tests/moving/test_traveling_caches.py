"""Compile caches that come to another machine whole, or not at all."""

from __future__ import annotations

import gzip
import json
import os
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from builder.base import tar_stream
from builder.base.errors import TransferError
from builder.base.project import Project
from builder.definitions.container import compile_cache
from builder.engine import containers, images
from builder.engine.client import Endpoint
from builder.moving import archive, traveling_caches
from builder.moving.traveling_caches import TravelingCaches
from builder.serving import compile_caches
from tests import projects, registries, shared
from tests.conftest import BASE, Command, run_command
from tests.moving.archives.test_archive import rewritten, write

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def compiled(folder: Path) -> TravelingCaches:
    """Two files, and what is recorded of them."""
    projects.write(folder / "vllm/a/kernel.so", "machine code")
    projects.write(folder / "triton/b", "b" * 3000)
    compile_caches.record_complete(folder)
    return TravelingCaches("k", compile_caches.chips_of(), compile_caches.complete_files(folder))


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def there(tmp_path: Path) -> Iterator[Path]:
    """A folder of the other machine, which its engine makes."""
    yield tmp_path / "there/1"
    shutil.rmtree(tmp_path / "there", ignore_errors=True)


@pytest.fixture
def send(endpoint: Endpoint, tmp_path: Path, there: Path) -> Callable[[TravelingCaches], str]:
    pieces = partial(traveling_caches.read_pieces, tmp_path / "here")
    return lambda caches: traveling_caches.place(endpoint, BASE, str(there), caches, pieces)


@pytest.mark.engine
def test_files_arrive_complete_and_are_known_as_such(
    tmp_path: Path, there: Path, send: Callable[[TravelingCaches], str]
) -> None:
    caches = compiled(tmp_path / "here")
    projects.write(there / "vllm/own", "compiled there")
    assert send(caches) == ""
    assert files(there) == {"vllm/a/kernel.so", "triton/b", "vllm/own", "complete.json"}
    seconds = int((tmp_path / "here/triton/b").stat().st_mtime)
    assert (there / "triton/b").stat().st_mtime_ns == seconds * 10**9
    # A file that lost bits later is found by the record that came along.
    with (there / "triton/b").open("r+b") as file:
        file.write(b"c")
    os.utime(there / "triton/b", (seconds, seconds))
    assert compile_caches.begin(Endpoint("unix:///nowhere", (), "a test"), there, "x:1") == ("triton/b",)
    assert send(caches) == "other compile caches already exist there"


@pytest.mark.engine
def test_nothing_is_taken_for_another_chip_or_where_a_file_is_not_as_recorded(
    tmp_path: Path, there: Path, send: Callable[[TravelingCaches], str]
) -> None:
    caches = compiled(tmp_path / "here")
    assert "compiled for NVIDIA GB10, but the other machine has" in send(replace(caches, chips=("NVIDIA GB10",)))
    projects.write(tmp_path / "here/triton/b", "c" * 3000)
    with pytest.raises(TransferError, match="triton/b of the compile caches does not match its record"):
        send(caches)
    assert files(there) == set()


@pytest.mark.long
@pytest.mark.engine
def test_an_archive_brings_them_to_a_machine_with_the_same_chip(
    small: Project, builder: Command, repository: str, tmp_path: Path
) -> None:
    builder("build", "chat")
    here, there = ({**os.environ, "XDG_CACHE_HOME": str(tmp_path / each)} for each in ("here", "there"))
    name, file = f"{repository}:1", tmp_path / "one.tar"
    said = builder("export-image", name, str(file), "--with-caches", environ=here).stderr
    assert f"{name} has not compiled anything here yet" in said
    caches = compiled(Path(compile_cache(here, repository, 1)))
    said = builder("export-image", name, str(file), "--with-caches", "--force", environ=here).stderr
    assert f"with {caches.text}" in said

    far = Project(tmp_path / "far")
    for folder in ("dockerfiles", "mods", "recipes"):
        shutil.copytree(small.root / folder, far.root / folder)
    other, damaged = tmp_path / "other.tar", tmp_path / "damaged.tar"
    for path, change in ((other, for_another_chip), (damaged, damage)):
        shutil.copy(file, path)
        rewritten(path, change)
    said = run_command(far, "import-image", str(other), environ=there).stderr
    assert f"{caches.text}, not taken: they were compiled for NVIDIA GB10, but the other machine has" in said
    said = run_command(far, "import-image", str(damaged), environ=there).stderr
    assert f"{caches.text}, not taken: triton/b of the compile caches does not match its record" in said
    place = Path(compile_cache(there, repository, 1))
    assert files(place) == set()
    assert f"{caches.text}, taken" in run_command(far, "import-image", str(file), environ=there).stderr
    assert files(place) == {"vllm/a/kernel.so", "triton/b", "complete.json"}
    assert (
        f"{caches.text}, not taken: other compile caches already exist there"
        in run_command(far, "import-image", str(file), environ=there).stderr
    )
    assert "warm" in run_command(far, "show", name, environ=there).stdout


def for_another_chip(members: dict[str, bytes]) -> None:
    about = json.loads(members[archive.ABOUT])
    about["caches"] |= {"chips": ["NVIDIA GB10"], "key": "k"}
    members[archive.ABOUT] = json.dumps(about).encode()


def damage(members: dict[str, bytes]) -> None:
    members[f"{archive.CACHES}triton/b"] = b"c" * 3000


@pytest.mark.parametrize("path", ["../x", "vllm/../../x", "evidence/x", "vllm", "vllm/a\n"])
def test_an_archive_with_a_file_that_is_none_of_compile_caches_is_refused(tmp_path: Path, path: str) -> None:
    file = tmp_path / "a.tar"
    write(file)

    def change(members: dict[str, bytes]) -> None:
        about = json.loads(members[archive.ABOUT])
        about["caches"] = {"key": "k", "chips": [], "files": {path: [1, "0" * 64, 0]}}
        members[archive.ABOUT] = json.dumps(about).encode()

    rewritten(file, change)
    with pytest.raises(TransferError, match="is not a compile-cache file"), archive.opened(file):
        pass


@pytest.mark.long
@pytest.mark.engine
def test_push_brings_them_into_the_registry_and_pull_takes_them_from_there(
    small: Project, builder: Command, endpoint: Endpoint, repository: str, tmp_path: Path
) -> None:
    here, there = ({**os.environ, "XDG_CACHE_HOME": str(tmp_path / each)} for each in ("here", "there"))
    name = f"{repository}:1"
    with registries.registry(tmp_path / "r") as registry:
        registries.configure(small, registry=registry.address)
        builder("build", "chat")
        caches = compiled(Path(compile_cache(here, repository, 1)))
        assert f"{caches.text}, pushed" in builder("push", name, environ=here).stderr
        assert "pushed" not in builder("push", name, environ=here).stderr
        assert [tag for tag in images.image_tags(endpoint) if "caches" in tag and repository in tag] == []

        def pulled() -> str:
            images.remove_image(endpoint, name)
            return builder("pull", name, environ=there).stderr

        place = Path(compile_cache(there, repository, 1))
        blobs = [path for path in (tmp_path / "r").rglob("data") if path.is_file()]
        (blob,) = [path for path in blobs if b"machine code" in path.read_bytes()]
        content = blob.read_bytes()
        blob.write_bytes(content.replace(b"machine code", b"another code"))
        assert f"the compile caches of {name} were not taken: " in pulled()
        blob.write_bytes(content)
        assert not place.exists() or files(place) == set()
        assert f"{caches.text}, taken" in pulled()
        assert files(place) == {"vllm/a/kernel.so", "triton/b", "complete.json"}
        assert f"{caches.text}, not taken: other compile caches already exist there" in pulled()


@pytest.mark.engine
@pytest.mark.long
def test_copy_sends_them_to_a_node_after_the_image(
    small: Project, builder: Command, repository: str, tmp_path: Path
) -> None:
    environ = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    (tmp_path / "cache").mkdir()
    # The node has another disk where this machine has its cache.
    disk = f'mount -t tmpfs tmpfs {tmp_path}/cache && exec "$@"'
    prefix = ("unshare", "--mount", "--propagation", "private", "sh", "-c", disk, "sh")
    with registries.node(*shared.bridge(9), prefix=prefix) as node, registries.registry(tmp_path / "r") as registry:
        registries.configure(small, registry=registry.address, nodes={"one": node.host})
        builder("build", "chat")
        folder = compile_cache(environ, repository, 1)
        caches = compiled(Path(folder))
        said = builder("copy", f"{repository}:1", "one", environ=environ).stderr
        assert f"one: {caches.text}, sent" in said
        said = builder("copy", f"{repository}:1", "one", environ=environ).stderr
        assert f"one: {caches.text}, not taken: other compile caches already exist there" in said
        labels, mounts = {"builder.test": "1"}, {folder: "/compiled"}
        with containers.running(node.endpoint, f"{repository}:1", labels=labels, mounts=mounts) as container:
            found = container.run(["find", "/compiled", "-type", "f"], timeout=120).output
    assert {path.removeprefix("/compiled/") for path in found.split()} == files(Path(folder))


def test_a_layer_that_a_registry_has_packed(tmp_path: Path) -> None:
    with (tmp_path / "tar").open("w+b") as plain:
        writer = tar_stream.Writer(plain)
        writer.add("triton/b", b"b" * 30_000)
        writer.finish()
    content = (tmp_path / "tar").read_bytes()
    for packed in (content, gzip.compress(content)):
        (tmp_path / "layer").write_bytes(packed)
        with (tmp_path / "layer").open("rb") as layer, (tmp_path / "unpacked").open("w+b") as unpacked:
            read = traveling_caches.unpacked_layer(layer, unpacked)
            assert b"".join(tar_stream.pieces(read, tar_stream.members(read)["triton/b"])) == b"b" * 30_000
    (tmp_path / "layer").write_bytes(gzip.compress(bytes(10_000_000)))
    with (
        (tmp_path / "layer").open("rb") as layer,
        (tmp_path / "unpacked").open("w+b") as unpacked,
        pytest.raises(ValueError, match="far more than compile caches do"),
    ):
        traveling_caches.unpacked_layer(layer, unpacked)
