"""Contents of a mirror: one fetch for many files, refs that stay, and damage that is detected."""

from __future__ import annotations

import ast
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from uv import find_uv_bin

from builder.base.errors import SourceError, UnsafePathError
from builder.lock.model import GitPin
from builder.sources import git, mirror
from builder.sources.git import DamagedError, GitRepository, MissingError
from builder.sources.mirror import Commit, CommitFilter, CommitRange, absolute_url, check_out, preserve, resolve_ref
from tests.projects import REPOSITORY_ROOT
from tests.sources.git_server import DRAFTER, INC, Repository, Vllm, lines, make_repository

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def place(vllm: Vllm) -> GitRepository:
    mirror.resolve_ref(vllm.source, "main")
    return mirror.locate(vllm.mirrors, vllm.url)


def blob(vllm: Vllm, file: str) -> str:
    return vllm.history.repository.git("rev-parse", f"main:{file}")


@pytest.mark.slow
def test_contents_come_together_and_once(vllm: Vllm, place: GitRepository) -> None:
    wanted = [blob(vllm, DRAFTER), blob(vllm, INC), blob(vllm, "README.md"), blob(vllm, INC)]
    assert vllm.requests_of(lambda: mirror.ensure_blobs(place, wanted)) <= 2  # the greeting and the contents
    assert vllm.requests_of(lambda: mirror.ensure_blobs(place, wanted)) == 0
    assert vllm.requests_of(lambda: mirror.ensure_blobs(place, [])) == 0


@pytest.mark.slow
def test_a_commit_that_a_ref_holds_is_there_and_one_that_nothing_holds_is_not(vllm: Vllm, place: GitRepository) -> None:
    assert mirror.has_commit(place, vllm.history.v0_19_0)
    assert f"{mirror.PINS}/{vllm.history.v0_19_0}" in vllm.git("for-each-ref")
    assert not mirror.has_commit(place, "d" * 40)
    vllm.git("update-ref", "-d", f"{mirror.PINS}/{vllm.history.main}")
    assert not mirror.has_commit(place, vllm.history.main)


@pytest.mark.slow
def test_a_commit_that_is_gone_though_a_ref_names_it_is_damage(vllm: Vllm, place: GitRepository) -> None:
    (place.path / mirror.PINS / ("d" * 40)).write_text("d" * 40 + "\n")
    with pytest.raises(DamagedError, match="is damaged"):
        mirror.has_commit(place, "d" * 40)


@pytest.mark.slow
def test_settings_of_the_person_for_fetching_take_no_pin_away(
    vllm: Vllm, place: GitRepository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tmp_path / "gitconfig"
    settings.write_text("[fetch]\n prune = true\n pruneTags = true\n[transfer]\n fsckObjects = true\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(settings))
    mirror.ensure_commit(place, vllm.history.pull_40898)
    mirror.fetch_mirror(place, mirror.ALL_TAGS)
    assert mirror.has_commit(place, vllm.history.main)
    assert mirror.has_commit(place, vllm.history.pull_40898)


@pytest.mark.slow
def test_names_tell_mirrors_apart_and_credentials_do_not(tmp_path: Path) -> None:
    def name(url: str) -> str:
        return mirror.locate(tmp_path, url).path.name

    assert name("https://me:x@host/vllm-project/vllm.git") == name("https://host/vllm-project/vllm.git")
    assert name("https://host/vllm-project/vllm.git").startswith("vllm-project-vllm-")
    assert name("https://host/a/vllm.git") != name("https://host/b/vllm.git")
    assert name("https://host/" + "x" * 300)
    assert not name("/a/..").startswith(".")


# Mirrors that were damaged are set aside, and made again; a process that was killed leaves nothing behind.


def resolve(vllm: Vllm, ref: str = "main") -> GitPin:
    return mirror.resolve_ref(mirror.locate(vllm.mirrors, vllm.url, vllm.messages.append), ref)


def resolver(vllm: Vllm, ref: str = "main") -> subprocess.Popen[bytes]:
    """The same in a process of its own."""
    program = "import sys, pathlib; from builder.sources import mirror; "
    program += "print(mirror.resolve_ref(mirror.locate(pathlib.Path(sys.argv[1]), sys.argv[2]), sys.argv[3]).commit)"
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


@pytest.mark.slow
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
def test_a_damaged_mirror_is_set_aside_and_made_again(vllm: Vllm, damage: Callable[[Path], None], ref: str) -> None:
    before = resolve(vllm)
    damage(vllm.mirror)
    after = resolve(vllm, ref.replace("COMMIT", before.commit))
    assert (after.commit, after.version, after.date) == (before.commit, before.version, before.date)
    assert any("keeping it as " in line for line in vllm.messages)
    assert vllm.mirror.with_name(f"{vllm.mirror.name}.damaged").is_dir()
    vllm.git("fsck", "--connectivity-only")
    assert not list(vllm.mirrors.glob("*.new"))
    assert before.commit in vllm.git("for-each-ref", "refs/builder/pins")


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["[core", "", None])
def test_damaged_settings_are_written_again(vllm: Vllm, damage: str | None) -> None:
    commit = resolve(vllm).commit
    (vllm.mirror / "config").unlink()
    if damage is not None:
        (vllm.mirror / "config").write_text(damage)
    assert resolve(vllm, "v0.19.0").commit == vllm.history.v0_19_0
    assert resolve(vllm, commit).commit == commit


@pytest.mark.slow
def test_a_mirror_that_is_a_link_is_left_alone(vllm: Vllm, tmp_path: Path) -> None:
    resolve(vllm)
    link, victim = vllm.mirror, tmp_path / "victim.git"
    link.rename(victim)
    (victim / "config").write_text("[core]\n")
    link.symlink_to(victim)
    with pytest.raises(UnsafePathError, match="leads out of"):
        resolve(vllm)
    assert (victim / "config").read_text() == "[core]\n"


@pytest.mark.slow
def test_a_ref_that_a_crash_left_empty_is_written_again(vllm: Vllm) -> None:
    commit = resolve(vllm).commit
    (vllm.mirror / "refs" / "builder" / "pins" / commit).write_text("")
    assert resolve(vllm, commit).commit == commit
    assert commit in vllm.git("for-each-ref", "refs/builder/pins")


@pytest.mark.slow
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
    assert mirror.read_files(vllm.source, commit, ["VERSION"]).get("VERSION") == b"0.19.1\n"


@pytest.mark.slow
def test_a_process_killed_in_mid_fetch_leaves_nothing_behind(vllm: Vllm) -> None:
    vllm.server.trouble.stall_after = 400
    process = resolver(vllm)
    assert vllm.server.trouble.stalled.wait(120)
    process.send_signal(signal.SIGKILL)
    process.wait(120)
    (vllm.mirror / "packed-refs.lock").touch()
    (vllm.mirror / "objects" / "maintenance.lock").touch()
    (vllm.mirror / "refs" / "builder" / "pins").mkdir(parents=True, exist_ok=True)
    (vllm.mirror / "refs" / "builder" / "pins" / f"{vllm.history.main}.lock").touch()
    vllm.server.trouble.stall_after = None
    assert resolve(vllm).commit == vllm.history.main
    assert not list((vllm.mirror / "objects" / "pack").glob("tmp_*"))
    assert not list(vllm.mirror.rglob("*.lock"))
    vllm.git("fsck", "--connectivity-only")


@pytest.mark.slow
def test_a_process_killed_while_making_the_folder_leaves_nothing_behind(vllm: Vllm) -> None:
    resolve(vllm)
    half = vllm.mirror.with_name(f"{vllm.mirror.name}.new")
    vllm.mirror.rename(half)
    no_objects(half)
    assert resolve(vllm).commit == vllm.history.main
    assert not half.exists()


@pytest.mark.slow
def test_two_processes_at_once_wait_for_each_other(vllm: Vllm) -> None:
    processes = [resolver(vllm, ref) for ref in ("main", "v0.19.0", "main")]
    outputs = [process.communicate(timeout=300) for process in processes]
    commits = [output.decode().strip() for output, _ in outputs]
    assert commits == [vllm.history.main, vllm.history.v0_19_0, vllm.history.main], outputs
    vllm.git("fsck", "--connectivity-only")


@pytest.mark.slow
def test_a_folder_that_cannot_be_written_is_named(vllm: Vllm) -> None:
    vllm.mirrors.write_text("a file in its place")
    with pytest.raises(SourceError, match="cannot be used"):
        resolve(vllm)


# Files of a source, and the commits between two pins.


def between(vllm: Vllm, old: str, new: str, wanted: CommitFilter = mirror.ALL_COMMITS) -> CommitRange:
    return mirror.commits_between(vllm.source, old, new, wanted)


@pytest.mark.slow
def test_the_commits_between_two_pins_are_listed_newest_first(vllm: Vllm) -> None:
    commits = between(vllm, vllm.history.v0_19_1, vllm.history.main)
    assert (commits.total, commits.dropped) == (6, 0)
    assert commits.commits[0] == Commit(vllm.history.main, "2026-02-02T02:51:00Z", "inc.py changes again")
    titles = [commit.title for commit in commits.commits]
    assert titles[-2:] == ["[Model] Unterstützung für Qwen 模型 🚀", "Merged as it is"]
    assert "[Bugfix] ?[31mred?[0m" in titles


@pytest.mark.slow
def test_only_the_newest_are_listed_and_all_are_counted(vllm: Vllm) -> None:
    commits = between(vllm, vllm.history.v0_19_0, vllm.history.main, CommitFilter(limit=2))
    assert (len(commits.commits), commits.total, commits.matching) == (2, 7, 7)


@pytest.mark.slow
def test_the_way_back_and_no_way_at_all(vllm: Vllm) -> None:
    assert between(vllm, vllm.history.main, vllm.history.v0_19_1) == CommitRange((), 0, 6, 0)
    assert between(vllm, vllm.history.main, vllm.history.main) == CommitRange((), 0, 0, 0)
    aside = between(vllm, vllm.history.pull_40727, vllm.history.main)
    assert (aside.total, aside.dropped) == (6, 1)


@pytest.mark.slow
def test_a_file_is_read_as_it_was_and_only_once_fetched(vllm: Vllm) -> None:
    def read() -> bytes | None:
        return mirror.read_files(vllm.source, vllm.history.v0_19_0, ["VERSION"]).get("VERSION")

    assert read() == b"0.19.0\n"
    assert vllm.requests_of(read) == 0
    shutil.rmtree(vllm.server.root)
    assert read() == b"0.19.0\n"


@pytest.mark.slow
def test_one_git_reads_all_files_byte_for_byte(vllm: Vllm) -> None:
    files = {"empty": b"", "again": b"", "lines": b"a\n\nb", "bytes": bytes(range(256)), "large": b"x\n" * 100_000}
    commit = vllm.history.repository.commit("refs/heads/main", "Files", files)
    assert mirror.read_files(vllm.source, commit, files) == files
    tree = vllm.git("rev-parse", f"{commit}^{{tree}}")
    with pytest.raises(DamagedError, match=f"{tree} is tree"):
        mirror.read_blobs(vllm.source, [tree])
    with pytest.raises(DamagedError, match="damaged"):
        mirror.read_blobs(vllm.source, ["1" * 40])


@pytest.mark.slow
def test_what_is_no_file_there_is_none(vllm: Vllm) -> None:
    paths = ["nothing.txt", "vllm", "requirements/", "*", "../VERSION", "/etc/passwd", "vllm/../../x"]
    assert mirror.read_files(vllm.source, vllm.history.main, paths) == {}
    for path in paths:
        assert mirror.read_files(vllm.source, vllm.history.main, [path]) == {}, path


@pytest.mark.slow
def test_a_program_run_by_a_hook_reads_the_same_paths(vllm: Vllm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_WORK_TREE", str(vllm.mirrors.parent))
    content = mirror.read_files(vllm.source, vllm.history.main, ["VERSION"]).get("VERSION")
    assert content == b"0.19.1\n"


@pytest.mark.slow
def test_requirements_are_followed(vllm: Vllm) -> None:
    commit = mirror.resolve_ref(vllm.source, "main").commit
    requirements = mirror.read_requirements(vllm.source, commit, "requirements/cuda.txt")
    assert requirements == ("torch==2.10.0 ; x", "transformers >= 5", "numpy")


@pytest.mark.slow
def test_a_requirements_file_that_is_missing_is_named(vllm: Vllm) -> None:
    commit = vllm.history.repository.commit("refs/heads/main", "Broken", {"a/b.txt": "-r c.txt\n-r ../a/b.txt\n"})
    with pytest.raises(SourceError, match=f"{commit[:7]} of {vllm.url} has no file a/c.txt"):
        mirror.read_requirements(vllm.source, commit, "a/b.txt")


@pytest.mark.slow
def test_the_format_of_pip() -> None:
    text = """\
\ufeff# all of it
a==1 --hash=sha256:abc \\
    --hash=sha256:def
b[x] >= 2, < 3 ; python_version < "3.13"  # why
c @ https://example.org/c.whl#sha256=abc
--index-url https://example.org
-i https://example.org
-c limits.txt
-e .
-r one.txt
--requirement=two.txt
  --requirement three.txt  # and

""".lstrip("\ufeff")
    included, requirements = mirror.parse_requirements(text)
    assert included == ("one.txt", "two.txt", "three.txt")
    assert requirements == (
        "a==1",
        'b[x] >= 2, < 3 ; python_version < "3.13"',
        "c @ https://example.org/c.whl#sha256=abc",
    )


@pytest.mark.slow
def test_several_files_come_together(vllm: Vllm) -> None:
    old = vllm.history.v0_19_0
    paths = ["README.md", DRAFTER, "none.txt", "vllm"]
    contents = mirror.read_files(vllm.source, old, paths)
    assert contents == {"README.md": b"vLLM\n", DRAFTER: lines(1, 60).encode()}
    assert vllm.requests_of(lambda: mirror.read_files(vllm.source, old, paths)) == 0
    assert mirror.read_files(vllm.source, old, []) == {}


# Sources taken from git, resolved against a real server.


def ref_resolution_resolve(vllm: Vllm, ref: str, url: str = "") -> GitPin:
    return mirror.resolve_ref(mirror.locate(vllm.mirrors, url or vllm.url, vllm.messages.append), ref)


@pytest.mark.slow
def test_a_branch_is_pinned_with_version_and_date(vllm: Vllm) -> None:
    main = vllm.history.main
    version = f"0.19.2.dev6+g{main[:7]}"
    assert ref_resolution_resolve(vllm, "main") == GitPin(vllm.url, "main", main, version, "2026-02-02T02:51:00Z")
    assert ref_resolution_resolve(vllm, "refs/heads/main").commit == main


@pytest.mark.slow
def test_tags_light_and_annotated_stand_for_their_commit(vllm: Vllm) -> None:
    assert (ref_resolution_resolve(vllm, "v0.19.0").commit, ref_resolution_resolve(vllm, "v0.19.0").version) == (
        vllm.history.v0_19_0,
        "0.19.0",
    )
    annotated = ref_resolution_resolve(vllm, "v0.19.1")
    assert (annotated.commit, annotated.version) == (vllm.history.v0_19_1, "0.19.1")
    assert ref_resolution_resolve(vllm, "refs/tags/v0.19.1").commit == vllm.history.v0_19_1


@pytest.mark.slow
def test_a_commit_is_taken_as_it_is_written(vllm: Vllm) -> None:
    pin = ref_resolution_resolve(vllm, vllm.history.v0_19_1.upper())
    assert (pin.commit, pin.requested) == (vllm.history.v0_19_1, vllm.history.v0_19_1.upper())


@pytest.mark.slow
def test_any_other_ref_can_be_named_in_full(vllm: Vllm) -> None:
    assert ref_resolution_resolve(vllm, "refs/pull/40898/head").commit == vllm.history.pull_40898


@pytest.mark.slow
def test_no_contents_are_fetched(vllm: Vllm) -> None:
    ref_resolution_resolve(vllm, "main")
    kinds = vllm.git("cat-file", "--batch-all-objects", "--batch-check=%(objecttype)").split()
    assert set(kinds) == {"commit", "tree", "tag"}


@pytest.mark.slow
def test_the_date_of_a_commit_that_moves_files_takes_no_contents_of_them(vllm: Vllm) -> None:
    """Files that come and go look like renamed ones, which git would tell by their contents."""
    moved = {"vllm/file3.py": None, "vllm/file4.py": lines(1, 4)}
    commit = vllm.history.repository.commit("refs/heads/main", "Moved and changed", moved)
    assert (ref_resolution_resolve(vllm, "main").commit, vllm.messages) == (
        commit,
        [f"fetching {commit[:7]} from {vllm.url}"],
    )


@pytest.mark.slow
def test_a_commit_that_the_mirror_has_takes_no_network(vllm: Vllm) -> None:
    pin = ref_resolution_resolve(vllm, "main")
    assert vllm.requests_of(lambda: ref_resolution_resolve(vllm, pin.commit)) == 0
    assert (
        vllm.requests_of(lambda: ref_resolution_resolve(vllm, vllm.history.v0_19_0)) == 0
    )  # in its history, never pinned itself
    shutil.rmtree(vllm.server.root)
    again = ref_resolution_resolve(vllm, pin.commit)
    assert (again.version, again.date) == (pin.version, pin.date)


@pytest.mark.slow
def test_an_unchanged_branch_is_asked_for_and_not_fetched_again(vllm: Vllm) -> None:
    ref_resolution_resolve(vllm, "main")
    assert vllm.requests_of(lambda: ref_resolution_resolve(vllm, "main")) == 2  # the greeting and the names


@pytest.mark.slow
def test_a_pinned_commit_outlives_a_force_push(vllm: Vllm) -> None:
    old = ref_resolution_resolve(vllm, "main")
    upstream = vllm.history.repository
    upstream.git("update-ref", "refs/heads/main", vllm.history.v0_19_0)
    new = upstream.commit("refs/heads/main", "Another history", {"VERSION": "?"})
    for ref in upstream.git("for-each-ref", "--format=%(refname)", "refs/pull").split():
        upstream.git("update-ref", "-d", ref)
    upstream.git("reflog", "expire", "--expire=now", "--all")
    upstream.git("gc", "--quiet", "--prune=now")
    assert ref_resolution_resolve(vllm, "main").commit == new
    vllm.git("gc", "--quiet", "--prune=now")
    assert ref_resolution_resolve(vllm, old.commit).version == old.version


@pytest.mark.slow
def test_tags_that_move_go_and_come_are_followed(vllm: Vllm) -> None:
    ref_resolution_resolve(vllm, "main")
    upstream = vllm.history.repository
    upstream.git("tag", "--delete", "v0.19.1", "v0.19.1rc1", "v0.19.1rc0")
    assert ref_resolution_resolve(vllm, "main").version == f"0.19.1.dev7+g{vllm.history.main[:7]}"
    upstream.git("tag", "v0.20.0", vllm.history.main)
    assert ref_resolution_resolve(vllm, "main").version == "0.20.0"


@pytest.mark.slow
def test_a_name_that_is_branch_and_tag_is_refused_and_both_can_be_meant(vllm: Vllm) -> None:
    vllm.history.repository.git("update-ref", "refs/heads/v0.19.0", vllm.history.main)
    with pytest.raises(SourceError, match=r"`v0.19.0` is both a branch .* and a tag") as caught:
        ref_resolution_resolve(vllm, "v0.19.0")
    assert caught.value.hint == "write refs/heads/v0.19.0 or refs/tags/v0.19.0"
    assert ref_resolution_resolve(vllm, "refs/heads/v0.19.0").commit == vllm.history.main
    assert ref_resolution_resolve(vllm, "refs/tags/v0.19.0").commit == vllm.history.v0_19_0


@pytest.mark.slow
def test_part_of_a_commit_is_refused_with_the_whole_where_it_is_known(vllm: Vllm) -> None:
    main = vllm.history.main
    with pytest.raises(SourceError, match="a commit has 40 digits") as caught:
        ref_resolution_resolve(vllm, main[:9])
    assert "all 40 digits" in caught.value.hint
    ref_resolution_resolve(vllm, "main")
    with pytest.raises(SourceError) as caught:
        ref_resolution_resolve(vllm, main[:9])
    assert caught.value.hint == f"write {main}"


@pytest.mark.slow
def test_a_branch_may_look_like_part_of_a_commit(vllm: Vllm) -> None:
    vllm.history.repository.git("update-ref", "refs/heads/2026", vllm.history.v0_19_0)
    assert ref_resolution_resolve(vllm, "2026").commit == vllm.history.v0_19_0


@pytest.mark.slow
@pytest.mark.parametrize("ref", ["mian", "v0.19.9", "refs/pull/1/head", "--upload-pack=touch x", "", "HEAD~1"])
def test_a_ref_that_is_not_there_is_refused(vllm: Vllm, ref: str) -> None:
    with pytest.raises(MissingError, match=f"{vllm.url} has no branch or tag") as caught:
        ref_resolution_resolve(vllm, ref)
    assert ref != "mian" or caught.value.hint == "did you mean main?"


@pytest.mark.slow
def test_a_repository_with_sha256_is_refused(tmp_path: Path) -> None:
    own = Repository(tmp_path / "sha256.git")
    own.path.mkdir()
    own.git("init", "--quiet", "--bare", "--object-format=sha256")
    commit = own.commit("refs/heads/main", "the first", {"a.py": "1\n"})
    for ref in ("main", commit):
        with pytest.raises(SourceError, match="names its objects by SHA-256"):
            mirror.resolve_ref(mirror.locate(tmp_path / "mirrors", own.path.as_uri()), ref)


@pytest.mark.slow
def test_a_commit_that_is_not_there_is_refused(vllm: Vllm) -> None:
    with pytest.raises(MissingError, match=f"has no commit {'d' * 40}"):
        ref_resolution_resolve(vllm, "d" * 40)
    assert len(vllm.server.requests) <= 3


@pytest.mark.slow
def test_what_is_no_commit_is_refused(vllm: Vllm) -> None:
    tag = vllm.history.repository.git("rev-parse", "refs/tags/v0.19.1")
    with pytest.raises(SourceError, match="is a tag, not a commit"):
        ref_resolution_resolve(vllm, tag)
    blob = vllm.history.repository.git("rev-parse", "main:README.md")
    vllm.history.repository.git("tag", "readme", blob)
    with pytest.raises(SourceError, match="is a blob, not a commit"):
        ref_resolution_resolve(vllm, "readme")


@pytest.mark.slow
def test_an_old_server_that_hands_out_no_commit_by_name(vllm: Vllm, monkeypatch: pytest.MonkeyPatch) -> None:
    vllm.history.repository.git("config", "uploadpack.allowAnySHA1InWant", "false")
    monkeypatch.setenv("GIT_CONFIG_PARAMETERS", "'protocol.version'='0'")
    assert ref_resolution_resolve(vllm, vllm.history.v0_19_0).version == "0.19.0"
    gone = vllm.history.repository.commit("refs/heads/gone", "Gone", {"a": "1"}, parent=vllm.history.v0_19_0)
    vllm.history.repository.git("update-ref", "-d", "refs/heads/gone")
    with pytest.raises(MissingError, match="no branch or tag of .* contains the commit"):
        ref_resolution_resolve(vllm, gone)


@pytest.mark.slow
def test_a_server_without_filters_gives_everything(vllm: Vllm) -> None:
    vllm.history.repository.git("config", "uploadpack.allowFilter", "false")
    assert ref_resolution_resolve(vllm, "main").version.startswith("0.19.2.dev6+g")


@pytest.mark.slow
def test_a_folder_can_be_an_address(vllm: Vllm) -> None:
    url = str(vllm.history.repository.path)
    assert ref_resolution_resolve(vllm, "main", url).git == url


@pytest.mark.slow
def test_a_repository_without_tags_counts_its_commits(vllm: Vllm) -> None:
    upstream = make_repository(vllm.server.root / "fresh.git")
    upstream.commit("refs/heads/main", "One", {"a": "1"})
    commit = upstream.commit("refs/heads/main", "Two", {"a": "2"})
    assert ref_resolution_resolve(vllm, "main", f"{vllm.server.url}/fresh.git").version == f"0.1.dev2+g{commit[:7]}"


@pytest.mark.slow
@pytest.mark.parametrize("url", ["ext::sh -c true", "--upload-pack=x", "", "foo::bar"])
def test_what_is_no_address_is_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(SourceError, match="git cannot use the address"):
        mirror.resolve_ref(mirror.locate(tmp_path, url), "main")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_hook_that_runs_the_program_does_not_lead_it_astray(vllm: Vllm, monkeypatch: pytest.MonkeyPatch) -> None:
    astray = make_repository(vllm.server.root / "astray.git").path
    monkeypatch.setenv("GIT_DIR", str(astray))
    monkeypatch.setenv("GIT_INDEX_FILE", str(astray / "index"))
    monkeypatch.setenv("GIT_WORK_TREE", str(astray.parent))
    assert ref_resolution_resolve(vllm, "main").commit == vllm.history.main
    assert not list((astray / "objects" / "pack").iterdir())


@pytest.mark.slow
def test_git_that_is_missing_is_named(vllm: Vllm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(vllm.server.root))
    with pytest.raises(SourceError, match="git is not installed"):
        ref_resolution_resolve(vllm, "main")


@pytest.mark.slow
def test_pauses_grow() -> None:
    assert list(git.PAUSES) == sorted(git.PAUSES)


# Versions from tags: those that setuptools-scm makes of the same repository, and those where it makes none.


@pytest.mark.parametrize(
    ("version", "following"),
    [
        ("0.19.1", "0.19.2"),
        ("0.19", "0.20"),
        ("0.19.1rc0", "0.19.1rc1"),
        ("0.6.7.post1", "0.6.7.post2"),
        ("1.0.dev0", "1.0"),
        ("0.9.9", "0.9.10"),
        ("1.2+cu130", "1.3"),
    ],
)
def test_the_next_version_is_guessed(version: str, following: str) -> None:
    assert mirror.next_version(version) == following


# With the version that setuptools-scm makes of them, too.
AS_SETUPTOOLS_SCM = [
    (("v0.19.2rc0",), "0.19.2rc1.dev2+g"),
    (("v2.0rc1", "v2.0", "v2.0rc2"), "2.1.dev2+g"),
    (("0.5.0",), "0.5.1.dev2+g"),
    (("v0.6.7.post1",), "0.6.7.post2.dev2+g"),
    ((), "0.1.dev3+g"),
]


def tagged(folder: Path, tags: tuple[str, ...]) -> Repository:
    """A repository with two commits after the one that has the tags."""
    upstream = make_repository(folder / "upstream.git")
    first = upstream.commit("refs/heads/main", "One", {"a": "1"})
    for tag in tags:
        upstream.git("tag", tag, first)
    upstream.commit("refs/heads/main", "Two", {"a": "2"})
    upstream.commit("refs/heads/main", "Three", {"a": "3"})
    return upstream


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tags", "version"),
    [
        *AS_SETUPTOOLS_SCM,
        # setuptools-scm takes FlashInfer's nightly tag here, and refuses the other two repositories.
        (("v0.6.7", "nightly-v0.9.0-20260401"), "0.6.8.dev2+g"),
        (("v1.0-legacy-branch", "v1.x"), "0.1.dev3+g"),
        (("release/v3",), "0.1.dev3+g"),
    ],
)
def test_a_version_is_made_of_the_nearest_tags(tmp_path: Path, tags: tuple[str, ...], version: str) -> None:
    upstream = tagged(tmp_path, tags)
    commit = upstream.git("rev-parse", "main")
    source = mirror.locate(tmp_path / "mirrors", str(upstream.path))
    assert mirror.resolve_ref(source, "main").version == version + commit[:7]


@pytest.mark.slow
def test_setuptools_scm_makes_the_same_version(tmp_path: Path) -> None:
    site = tmp_path / "site"
    uv = [find_uv_bin(), "pip", "install", "--quiet", "--python", sys.executable, "--target", str(site)]
    subprocess.run([*uv, "setuptools-scm==10.3.4"], check=True)
    script = "import setuptools_scm, sys; print([setuptools_scm.get_version(root=root) for root in sys.argv[1:]])"
    clones = []
    for number, (tags, _) in enumerate(AS_SETUPTOOLS_SCM):
        upstream = tagged(tmp_path / str(number), tags)
        clones.append(str(tmp_path / str(number) / "clone"))
        subprocess.run(["git", "clone", "--quiet", str(upstream.path), clones[-1]], check=True)
    environ = {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run([sys.executable, "-c", script, *clones], env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    made = [version.partition("+g")[0] for version in ast.literal_eval(done.stdout.splitlines()[-1])]
    assert made == [version.removesuffix("+g") for _, version in AS_SETUPTOOLS_SCM]


# Whole trees that outlive their upstream, submodules included.


def add(repository: Repository, entries: dict[str, tuple[str, str]]) -> str:
    """A commit on main with entries of any mode: path -> mode, and content or (for a submodule) commit."""
    contents: dict[str, str | bytes | None] = {path: content for path, (_, content) in entries.items()}
    modes = {path: mode for path, (mode, _) in entries.items()}
    return repository.commit("refs/heads/main", "All of it", contents, modes=modes)


def gitmodules(**urls: str) -> tuple[str, str]:
    text = "".join(f'[submodule "{name}"]\n\tpath = 3rdparty/{name}\n\turl = {url}\n' for name, url in urls.items())
    return "100644", text


def written(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): p.read_text() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.mark.slow
def test_a_tree_outlives_its_repository(vllm: Vllm, tmp_path: Path) -> None:
    repository = make_repository(vllm.server.root / "tree.git")
    entries = {"run.sh": ("100755", "#!"), "deep/down/a": ("100644", "a\n"), "link": ("120000", "deep/down/a")}
    commit = add(repository, entries)
    url = f"{vllm.server.url}/tree.git"
    preserve(mirror.locate(vllm.mirrors, url), commit)
    shutil.rmtree(vllm.server.root)
    check_out(mirror.locate(vllm.mirrors, url), commit, tmp_path / "out/tree")
    assert written(tmp_path / "out/tree") == {"run.sh": "#!", "deep/down/a": "a\n", "link": "a\n"}
    assert (tmp_path / "out/tree/link").is_symlink()
    modes = [(tmp_path / "out/tree" / name).stat().st_mode & 0o111 != 0 for name in ("run.sh", "deep/down/a")]
    assert modes == [True, False]
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["tree"]


@pytest.mark.slow
def test_what_is_kept_takes_no_network_again(vllm: Vllm) -> None:
    preserve(vllm.source, vllm.history.main)
    assert vllm.requests_of(lambda: preserve(vllm.source, vllm.history.main)) == 0


@pytest.mark.slow
def test_only_the_contents_of_the_trees_that_are_kept_are_fetched(vllm: Vllm) -> None:
    wanted: set[str] = set()
    for commit in (vllm.history.v0_19_0, vllm.history.v0_19_1):
        preserve(vllm.source, commit)
        wanted |= set(vllm.git("ls-tree", "-r", "--format=%(objectname)", commit).split())
        kinds = vllm.git("cat-file", "--batch-all-objects", "--batch-check=%(objecttype) %(objectname)").splitlines()
        assert {line.partition(" ")[2] for line in kinds if line.startswith("blob ")} == wanted


@pytest.mark.slow
def test_a_tree_that_was_never_kept_is_refused(vllm: Vllm, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="there is no mirror of"):
        check_out(vllm.source, vllm.history.main, tmp_path / "tree")
    resolve_ref(vllm.source, "main")
    for commit in (vllm.history.main, "d" * 40):
        with pytest.raises(SourceError, match=f"does not contain all files of {commit}"):
            check_out(vllm.source, commit, tmp_path / "tree")


@pytest.mark.slow
def test_submodules_are_kept_with_theirs_and_without_history(vllm: Vllm, tmp_path: Path) -> None:
    root = vllm.server.root
    deepest = add(make_repository(root / "deepest.git"), {"d": ("100644", "deepest\n")})
    middle = add(
        make_repository(root / "middle.git"),
        {".gitmodules": gitmodules(deepest="../deepest.git"), "3rdparty/deepest": ("160000", deepest)},
    )
    top = add(
        make_repository(root / "top.git"),
        {
            ".gitmodules": gitmodules(middle=f"{vllm.server.url}/middle.git", unused="https://example.invalid/x"),
            "3rdparty/middle": ("160000", middle),
            "t": ("100644", "top\n"),
        },
    )
    url = f"{vllm.server.url}/top.git"
    preserve(mirror.locate(vllm.mirrors, url), top)
    assert vllm.requests_of(lambda: preserve(mirror.locate(vllm.mirrors, url), top)) == 0
    (middle_mirror,) = (vllm.mirrors / "submodules").glob("*middle*.git")
    assert Repository(middle_mirror).git("rev-list", "--all", "--count") == "1"
    shutil.rmtree(root)
    check_out(mirror.locate(vllm.mirrors, url), top, tmp_path / "tree")
    files = written(tmp_path / "tree")
    assert (files["t"], files["3rdparty/middle/3rdparty/deepest/d"]) == ("top\n", "deepest\n")


def with_submodule(vllm: Vllm, name: str, url: str, commit: str = "c" * 40) -> tuple[GitRepository, str]:
    """A repository with a submodule at ``url``, and its commit."""
    entries = {".gitmodules": gitmodules(x=url), "3rdparty/x": ("160000", commit), "t": ("100644", "top\n")}
    made = add(make_repository(vllm.server.root / name), entries)
    return mirror.locate(vllm.mirrors, f"{vllm.server.url}/{name}", vllm.messages.append), made


@pytest.mark.slow
def test_a_submodule_that_cannot_be_had_is_said_and_keeps_the_tree_from_being_used(vllm: Vllm, tmp_path: Path) -> None:
    top, commit = with_submodule(vllm, "top.git", "../none.git")
    preserve(top, commit)
    said = f"the submodule 3rdparty/x of {top.address.url} was not fetched: "
    assert any(line.startswith(said) for line in vllm.messages)
    with pytest.raises(SourceError):
        check_out(top, commit, tmp_path / "tree")


@pytest.mark.slow
def test_a_submodule_that_git_skips_is_not_fetched(vllm: Vllm, tmp_path: Path) -> None:
    mode, text = gitmodules(x="/etc")
    entries = {".gitmodules": (mode, f"{text}\tupdate = none\n"), "3rdparty/x": ("160000", "c" * 40)}
    commit = add(make_repository(vllm.server.root / "top.git"), entries | {"t": ("100644", "top\n")})
    top = mirror.locate(vllm.mirrors, f"{vllm.server.url}/top.git", vllm.messages.append)
    preserve(top, commit)
    assert not [line for line in vllm.messages if "submodule" in line]
    check_out(top, commit, tmp_path / "tree")
    assert written(tmp_path / "tree")["t"] == "top\n"


@pytest.mark.slow
@pytest.mark.parametrize("link_at", ["3rdparty", "3rdparty/x"])
def test_no_submodule_is_written_through_a_link(vllm: Vllm, tmp_path: Path, link_at: str) -> None:
    """A tree that no git would write: a submodule, or its folder, has the same name as a link."""
    inner = add(make_repository(vllm.server.root / "inner.git"), {"evil": ("100644", "evil\n")})
    repository = make_repository(vllm.server.root / "top.git")
    start = add(repository, {".gitmodules": gitmodules(x="../inner.git")})
    outside = tmp_path / "outside"
    (outside / "x").mkdir(parents=True)
    link = repository.git("hash-object", "-w", "--stdin", given=str(outside).encode())
    modules = repository.git("rev-parse", f"{start}:.gitmodules")
    inside, top = [("160000", "x", inner)], [("100644", ".gitmodules", modules)]
    (inside if "/" in link_at else top).append(("120000", Path(link_at).name, link))
    top.insert(1, ("40000", "3rdparty", tree_of(repository, inside)))
    commit = repository.git("commit-tree", tree_of(repository, top), "-m", "x")
    repository.git("update-ref", "refs/heads/main", commit)
    source = mirror.locate(vllm.mirrors, f"{vllm.server.url}/top.git")
    preserve(source, commit)
    with pytest.raises(UnsafePathError, match=f"tree/3rdparty/x leads out of .*, to {outside}"):
        check_out(source, commit, tmp_path / "tree")
    assert [path.name for path in outside.rglob("*")] == ["x"]


def tree_of(repository: Repository, entries: list[tuple[str, str, str]]) -> str:
    """A tree of these entries (mode, name, object), in this order, however odd."""
    content = b"".join(f"{mode} {name}\0".encode() + bytes.fromhex(blob) for mode, name, blob in entries)
    return repository.git("hash-object", "-w", "-t", "tree", "--stdin", "--literally", given=content)


@pytest.mark.slow
@pytest.mark.parametrize("url", ["/etc", "file:///etc", "C:/sources/x", "ext::sh -c true"])
@pytest.mark.parametrize("depth", [1, 2])
def test_a_submodule_that_no_build_can_fetch_is_refused(vllm: Vllm, url: str, depth: int) -> None:
    top, commit = with_submodule(vllm, "top.git", url)
    if depth == 2:
        top, commit = with_submodule(vllm, "above.git", "../top.git", commit)
    with pytest.raises(SourceError) as caught:
        preserve(top, commit)
    refused = f"builder cannot fetch from the address `{url}`: write it with https://, ssh:// or git://"
    assert caught.value.message == f"the submodule 3rdparty/x of {top.address.url} cannot be built: {refused}"
    assert ".gitmodules" in caught.value.hint


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parent", "url", "absolute"),
    [
        ("https://github.com/flashinfer-ai/flashinfer.git", "https://x/y.git", "https://x/y.git"),
        ("https://github.com/flashinfer-ai/flashinfer.git", "../cutlass.git", "https://github.com/flashinfer-ai/cutlass.git"),
        ("https://github.com/flashinfer-ai/flashinfer/", "../../NVIDIA/cutlass", "https://github.com/NVIDIA/cutlass"),
        ("https://x/a.git", "./b.git", "https://x/a.git/b.git"),
    ],
)  # fmt: skip
def test_an_address_may_be_written_from_that_of_the_parent(parent: str, url: str, absolute: str) -> None:
    assert absolute_url(parent, url) == absolute


@pytest.mark.slow
@pytest.mark.parametrize("seconds", ["99999999999999999", "", "x"])
def test_a_commit_of_no_day(vllm: Vllm, place: GitRepository, seconds: str) -> None:
    text = vllm.history.repository.git("cat-file", "commit", "main")
    text = re.sub("(?m)^committer .*", f"committer A <a@b> {seconds} +0000", text) + "\n"
    argv = ["git", "-C", str(place.path), "hash-object", "-t", "commit", "-w", "--stdin", "--literally"]
    made = subprocess.run(argv, input=text, capture_output=True, text=True, check=True)
    with pytest.raises(SourceError, match="a commit has no valid date"):
        mirror.date_of(place, made.stdout.strip())
