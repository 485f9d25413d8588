"""Models on their way to a node: real rsync, and an ssh that runs on this machine what it would run on the other."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from builder.base.errors import SourceError, UsageError
from builder.base.events import TransferProgress
from builder.definitions.configuration import Node
from builder.serving import model_weights
from tests import fake_ssh, hubcache
from tests.hubcache import COMMIT, OTHER

if TYPE_CHECKING:
    from collections.abc import Mapping


pytestmark = pytest.mark.slow

MODEL = "Org/Model-1B"


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """A machine with a cache, from which ssh leads to ``there``."""
    return {**fake_ssh.make(tmp_path / "bin", tmp_path / "there"), "HF_HOME": str(tmp_path / "here")}


def copy(
    environ: Mapping[str, str], models: str | None = None, engine: str = "ssh://ann@spark2"
) -> list[TransferProgress]:
    moved: list[TransferProgress] = []

    def report(event: object) -> None:
        if isinstance(event, TransferProgress):
            moved.append(event)

    to = model_weights.copy_destination(environ, Node("spark2", engine, models))
    model_weights.copy_to_node(environ, MODEL, to, report)
    return moved


def asked(environ: Mapping[str, str]) -> list[str]:
    return Path(environ["FAKE_SSH"]).with_suffix(".asked").read_text().splitlines()


def test_one_model_goes_and_nothing_else(tmp_path: Path, environ: dict[str, str]) -> None:
    here = hubcache.add(tmp_path / "here", MODEL, content=b"w" * 3_000_000)
    hubcache.add(tmp_path / "here", "Org/Other")
    (here / "blobs/b9.incomplete").write_bytes(b"part")
    moved = copy(environ)
    hub = tmp_path / "there/.cache/huggingface/hub"
    there = hub / here.name
    assert [path.name for path in hub.iterdir()] == [here.name]
    assert (there / "refs/main").read_text() == COMMIT
    assert str((there / "snapshots" / COMMIT / "model.safetensors").readlink()) == "../../blobs/b1"
    assert (there / "blobs/b1").read_bytes() == b"w" * 3_000_000
    assert [path.name for path in (there / "blobs").iterdir()] == ["b1"]
    assert moved[-1].what == f"{MODEL} to spark2"
    assert moved[-1].current >= 3_000_000
    assert asked(environ)[:2] == ["-l", "ann"]


def test_only_what_is_new_moves(tmp_path: Path, environ: dict[str, str]) -> None:
    here = hubcache.add(tmp_path / "here", MODEL)
    copy(environ, "/" + str(tmp_path / "node")[1:])
    before = (tmp_path / "node/hub" / here.name / "blobs/b1").stat()
    hubcache.add(tmp_path / "here", MODEL, OTHER, content=b"other")
    copy(environ, str(tmp_path / "node"))
    there = tmp_path / "node/hub" / here.name
    assert (there / "blobs/b1").stat().st_ino == before.st_ino
    assert (there / "blobs/b2").read_bytes() == b"other"
    assert (there / "refs/main").read_text() == OTHER
    assert (there / "snapshots" / COMMIT).is_dir()


def test_blobs_that_models_share_go_along(tmp_path: Path, environ: dict[str, str]) -> None:
    here = hubcache.add(tmp_path / "here", MODEL)
    shared = tmp_path / "here/hub/blobs/ab/abc"
    shared.parent.mkdir(parents=True)
    shared.write_bytes(b"shared")
    (here / "blobs/b1").unlink()
    (here / "blobs/b1").symlink_to("../../blobs/ab/abc")
    copy(environ, "~/models")
    there = tmp_path / "there/models/hub" / here.name
    assert not (there / "blobs/b1").is_symlink()
    assert (there / "snapshots" / COMMIT / "model.safetensors").read_bytes() == b"shared"


def test_a_folder_is_a_name_and_no_command(tmp_path: Path, environ: dict[str, str]) -> None:
    here = hubcache.add(tmp_path / "here", MODEL)
    odd = "$(touch evil) 'a b';é"
    copy(environ, f"~/{odd}", engine="ssh://spark2:2222")
    assert (tmp_path / "there" / odd / "hub" / here.name / "blobs/b1").is_file()
    assert not list(tmp_path.rglob("evil"))
    assert asked(environ)[:3] == ["-p", "2222", "spark2"]


@pytest.mark.parametrize(
    "engine", ["tcp://spark2:2376", "unix:///run/docker.sock", "ssh://-oProxyCommand=x", "ssh://a@-x"]
)
def test_nodes_that_ssh_does_not_lead_to(environ: dict[str, str], engine: str) -> None:
    with pytest.raises(UsageError, match="models are copied over ssh") as caught:
        model_weights.copy_destination(environ, Node("spark2", engine))
    assert "builder.yaml" in caught.value.hint


def test_a_node_that_does_not_answer(tmp_path: Path, environ: dict[str, str]) -> None:
    hubcache.add(tmp_path / "here", MODEL)
    (tmp_path / "bin/ssh").write_text("#!/bin/sh\necho 'ssh: connect to host spark2 port 22: No route' >&2\nexit 255\n")
    with pytest.raises(SourceError, match=r"cannot be copied to spark2: ssh: connect to host .*No route") as caught:
        copy(environ)
    assert caught.value.hint.startswith("check that `ssh ann@spark2` works")


def test_a_node_without_rsync(tmp_path: Path, environ: dict[str, str]) -> None:
    hubcache.add(tmp_path / "here", MODEL)
    with pytest.raises(SourceError, match="spark2: the node has no rsync") as caught:
        copy({**environ, "FAKE_PATH": str(tmp_path)})
    assert caught.value.hint == "run `sudo apt-get install rsync` on the node"


def test_a_folder_that_cannot_be_written(tmp_path: Path, environ: dict[str, str]) -> None:
    hubcache.add(tmp_path / "here", MODEL)
    (tmp_path / "there/file").write_text("")
    with pytest.raises(SourceError, match=r"spark2: .*there/file/hub.* failed: "):
        copy(environ, "~/file")


def test_a_machine_without_rsync(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="rsync is not installed on this machine"):
        model_weights.copy_destination({}, Node("spark2", "ssh://spark2"))
