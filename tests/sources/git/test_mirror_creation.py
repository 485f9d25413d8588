"""Mirrors that were damaged or killed in the making are made anew, and what was pinned is not lost."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from builder.base.errors import SourceError, UnsafePathError
from builder.lock.model import GitPin
from builder.sources import git, mirror
from builder.sources.git import MissingError
from tests.projects import REPOSITORY_ROOT
from tests.sources.git_server import Vllm

if TYPE_CHECKING:
    from collections.abc import Callable


pytestmark = pytest.mark.slow


def resolve(vllm: Vllm, ref: str = "main") -> GitPin:
    return mirror.resolve_ref(vllm.mirrors, vllm.url, ref, vllm.messages.append)


def resolver(vllm: Vllm, ref: str = "main") -> subprocess.Popen[bytes]:
    """The same in a process of its own."""
    program = "import sys, pathlib; from builder.sources import mirror; "
    program += "print(mirror.resolve_ref(pathlib.Path(sys.argv[1]), *sys.argv[2:]).commit)"
    command = [sys.executable, "-c", program, str(vllm.mirrors), vllm.url, ref]
    return subprocess.Popen(command, cwd=REPOSITORY_ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def no_objects(mirror: Path) -> None:
    shutil.rmtree(mirror / "objects")
    (mirror / "objects").mkdir()


def no_objects_folder(mirror: Path) -> None:
    shutil.rmtree(mirror / "objects")


def half_a_pack(mirror: Path) -> None:
    for pack in (mirror / "objects" / "pack").glob("*.pack"):
        pack.chmod(0o600)
        os.truncate(pack, pack.stat().st_size // 2)


def half_the_packed_refs(mirror: Path) -> None:
    subprocess.run(["git", "-C", str(mirror), "pack-refs", "--all"], check=True)
    os.truncate(mirror / "packed-refs", (mirror / "packed-refs").stat().st_size - 30)


def no_head(mirror: Path) -> None:
    (mirror / "HEAD").unlink()


@pytest.mark.parametrize(
    "damage",
    [
        no_objects,
        no_objects_folder,
        half_a_pack,
        half_the_packed_refs,
        no_head,
    ],
)
@pytest.mark.parametrize("ref", ["main", "COMMIT"])
def test_a_damaged_mirror_is_made_anew(vllm: Vllm, damage: Callable[[Path], None], ref: str) -> None:
    before = resolve(vllm)
    resolve(vllm, "v0.19.0")
    damage(vllm.mirror)
    after = resolve(vllm, ref.replace("COMMIT", before.commit))
    assert (after.commit, after.version, after.date) == (before.commit, before.version, before.date)
    assert any("making it anew" in line for line in vllm.messages)
    vllm.git("fsck", "--connectivity-only")
    assert not list(vllm.mirrors.glob("*.new"))
    kept = vllm.git("for-each-ref", "--format=%(refname)", "refs/builder/pins").split()
    assert {Path(name).name for name in kept} == {vllm.history.main, vllm.history.v0_19_0}


def test_nothing_that_others_put_into_a_mirror_is_run(vllm: Vllm, tmp_path: Path) -> None:
    resolve(vllm)
    settings = (vllm.mirror / "config").read_text()
    mark = tmp_path / "ran"
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {mark}\nexit 1\n")
    program.chmod(0o755)
    lines = f"""
[core]
\tfsmonitor = {program}
\tsshCommand = {program}
\thooksPath = {tmp_path}
\talternateRefsCommand = {program}
[remote "source"]
\turl = ext::{program}
\tuploadpack = {program}
[protocol]
\tallow = always
[credential]
\thelper = {program}
"""
    (vllm.mirror / "config").write_text(settings + lines)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/config").write_text(settings + lines)
    (vllm.mirror / "commondir").write_text(str(tmp_path / "elsewhere"))
    (vllm.mirror / "objects/info/alternates").write_text(str(tmp_path / "objects-of-others"))
    (vllm.mirror / "hooks").mkdir(exist_ok=True)
    for hook in ("reference-transaction", "post-checkout", "pre-auto-gc", "post-index-change"):
        for folder in (vllm.mirror / "hooks", tmp_path):
            (folder / hook).write_bytes(program.read_bytes())
            (folder / hook).chmod(0o755)
    assert resolve(vllm, "v0.19.0").commit == vllm.history.v0_19_0
    assert not mark.exists()
    assert (vllm.mirror / "config").read_text() == settings
    assert not (vllm.mirror / "objects/info/alternates").exists()


@pytest.mark.parametrize("damage", ["[core", "", None])
def test_damaged_settings_are_written_again(vllm: Vllm, damage: str | None) -> None:
    commit = resolve(vllm).commit
    (vllm.mirror / "config").unlink()
    if damage is not None:
        (vllm.mirror / "config").write_text(damage)
    assert resolve(vllm, "v0.19.0").commit == vllm.history.v0_19_0
    assert resolve(vllm, commit).commit == commit


def test_a_mirror_that_is_a_link_is_left_alone(vllm: Vllm, tmp_path: Path) -> None:
    resolve(vllm)
    link, victim = vllm.mirror, tmp_path / "victim.git"
    link.rename(victim)
    (victim / "config").write_text("[core]\n")
    link.symlink_to(victim)
    with pytest.raises(UnsafePathError, match="leads out of"):
        resolve(vllm)
    assert (victim / "config").read_text() == "[core]\n"


def test_a_ref_that_a_crash_left_empty_is_written_again(vllm: Vllm) -> None:
    commit = resolve(vllm).commit
    (vllm.mirror / "refs" / "builder" / "pins" / commit).write_text("")
    assert resolve(vllm, commit).commit == commit
    assert commit in vllm.git("for-each-ref", "refs/builder/pins")


def test_a_tree_that_is_missing_is_found_when_it_is_read(vllm: Vllm) -> None:
    commit = resolve(vllm).commit
    tree = vllm.git("rev-parse", f"{commit}^{{tree}}")
    packs = vllm.mirror / "objects" / "pack"
    for pack in list(packs.glob("*.pack")):
        moved = pack.rename(vllm.mirrors / pack.name)
        for file in packs.iterdir():
            file.unlink()
        with moved.open("rb") as content:
            subprocess.run(["git", "-C", str(vllm.mirror), "unpack-objects", "-q"], stdin=content, check=True)
    (vllm.mirror / "objects" / tree[:2] / tree[2:]).unlink()
    assert mirror.read_files(vllm.mirrors, vllm.url, commit, ["VERSION"]).get("VERSION") == b"0.19.1\n"


def test_a_commit_that_only_the_damaged_mirror_has_is_saved_from_it(vllm: Vllm) -> None:
    old = resolve(vllm)
    upstream = vllm.history.repository
    for ref in upstream.git("for-each-ref", "--format=%(refname)").split():
        upstream.git("update-ref", "-d", ref)
    new = upstream.commit("refs/heads/main", "Another history", {"VERSION": "?"})
    upstream.git("gc", "--quiet", "--prune=now")
    half_the_packed_refs(vllm.mirror)
    assert resolve(vllm).commit == new
    assert resolve(vllm, old.commit).date == old.date


def test_a_commit_that_nobody_has_any_more_is_named(vllm: Vllm) -> None:
    old = resolve(vllm)
    upstream = vllm.history.repository
    for ref in upstream.git("for-each-ref", "--format=%(refname)").split():
        upstream.git("update-ref", "-d", ref)
    upstream.commit("refs/heads/main", "Another history", {"VERSION": "?"})
    upstream.git("gc", "--quiet", "--prune=now")
    no_objects(vllm.mirror)
    with pytest.raises(MissingError, match=f"has no commit {old.commit}"):
        resolve(vllm, old.commit)
    assert any(line.startswith(f"{old.commit} is lost") for line in vllm.messages)


def test_a_damaged_mirror_stays_when_upstream_does_not_answer(vllm: Vllm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(git, "PAUSES", ())
    commit = resolve(vllm).commit
    no_objects(vllm.mirror)
    vllm.server.trouble.status, vllm.server.trouble.refuse = 503, 100
    with pytest.raises(SourceError, match="does not answer"):
        resolve(vllm, commit)
    assert commit in (vllm.mirror / "packed-refs").read_text()
    vllm.server.trouble.refuse = 0
    assert resolve(vllm, commit).commit == commit


def test_a_process_killed_in_mid_fetch_leaves_nothing_behind(vllm: Vllm) -> None:
    vllm.server.trouble.stall_after = 400
    process = resolver(vllm)
    assert vllm.server.trouble.stalled.wait(30)
    process.send_signal(signal.SIGKILL)
    process.wait(10)
    (vllm.mirror / "packed-refs.lock").touch()
    (vllm.mirror / "objects" / "maintenance.lock").touch()
    (vllm.mirror / "refs" / "builder" / "pins").mkdir(parents=True, exist_ok=True)
    (vllm.mirror / "refs" / "builder" / "pins" / f"{vllm.history.main}.lock").touch()
    vllm.server.trouble.stall_after = None
    assert resolve(vllm).commit == vllm.history.main
    assert not list((vllm.mirror / "objects" / "pack").glob("tmp_*"))
    assert not list(vllm.mirror.rglob("*.lock"))
    vllm.git("fsck", "--connectivity-only")


def test_a_process_killed_while_making_the_folder_leaves_nothing_behind(vllm: Vllm) -> None:
    resolve(vllm)
    half = vllm.mirror.with_name(f"{vllm.mirror.name}.new")
    vllm.mirror.rename(half)
    no_objects(half)
    assert resolve(vllm).commit == vllm.history.main
    assert not half.exists()


def test_two_processes_at_once_wait_for_each_other(vllm: Vllm) -> None:
    processes = [resolver(vllm, ref) for ref in ("main", "v0.19.0", "main")]
    outputs = [process.communicate(timeout=60) for process in processes]
    commits = [output.decode().strip() for output, _ in outputs]
    assert commits == [vllm.history.main, vllm.history.v0_19_0, vllm.history.main], outputs
    vllm.git("fsck", "--connectivity-only")


def test_a_folder_that_cannot_be_written_is_named(vllm: Vllm) -> None:
    vllm.mirrors.write_text("a file in its place")
    with pytest.raises(SourceError, match="cannot be used"):
        resolve(vllm)
