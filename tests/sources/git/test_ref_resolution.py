"""Sources taken from git, resolved against a real server."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from builder.base.errors import SourceError
from builder.lock.model import GitPin
from builder.sources import git, mirror
from builder.sources.git import MissingError
from tests.sources.git_server import Vllm, lines, make_repository

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.slow


def resolve(vllm: Vllm, ref: str, url: str = "") -> GitPin:
    return mirror.resolve_ref(vllm.mirrors, url or vllm.url, ref, vllm.messages.append)


def test_a_branch_is_pinned_with_version_and_date(vllm: Vllm) -> None:
    main = vllm.history.main
    version = f"0.19.2.dev6+g{main[:7]}"
    assert resolve(vllm, "main") == GitPin(vllm.url, "main", main, version, "2026-02-02T02:51:00Z")
    assert resolve(vllm, "refs/heads/main").commit == main


def test_tags_light_and_annotated_stand_for_their_commit(vllm: Vllm) -> None:
    assert (resolve(vllm, "v0.19.0").commit, resolve(vllm, "v0.19.0").version) == (vllm.history.v0_19_0, "0.19.0")
    annotated = resolve(vllm, "v0.19.1")
    assert (annotated.commit, annotated.version) == (vllm.history.v0_19_1, "0.19.1")
    assert resolve(vllm, "refs/tags/v0.19.1").commit == vllm.history.v0_19_1


def test_a_commit_is_taken_as_it_is_written(vllm: Vllm) -> None:
    pin = resolve(vllm, vllm.history.v0_19_1.upper())
    assert (pin.commit, pin.requested) == (vllm.history.v0_19_1, vllm.history.v0_19_1.upper())


def test_any_other_ref_can_be_named_in_full(vllm: Vllm) -> None:
    assert resolve(vllm, "refs/pull/40898/head").commit == vllm.history.pull_40898


def test_no_contents_are_fetched(vllm: Vllm) -> None:
    resolve(vllm, "main")
    kinds = vllm.git("cat-file", "--batch-all-objects", "--batch-check=%(objecttype)").split()
    assert set(kinds) == {"commit", "tree", "tag"}


def test_the_date_of_a_commit_that_moves_files_takes_no_contents_of_them(vllm: Vllm) -> None:
    """Files that come and go look like renamed ones, which git would tell by their contents."""
    moved = {"vllm/file3.py": None, "vllm/file4.py": lines(1, 4)}
    commit = vllm.history.repository.commit("refs/heads/main", "Moved and changed", moved)
    assert (resolve(vllm, "main").commit, vllm.messages) == (commit, [f"fetching {commit[:7]} from {vllm.url}"])


def test_a_commit_that_the_mirror_has_takes_no_network(vllm: Vllm) -> None:
    pin = resolve(vllm, "main")
    assert vllm.requests_of(lambda: resolve(vllm, pin.commit)) == 0
    assert vllm.requests_of(lambda: resolve(vllm, vllm.history.v0_19_0)) == 0  # in its history, never pinned itself
    shutil.rmtree(vllm.server.root)
    again = resolve(vllm, pin.commit)
    assert (again.version, again.date) == (pin.version, pin.date)


def test_an_unchanged_branch_is_asked_for_and_not_fetched_again(vllm: Vllm) -> None:
    resolve(vllm, "main")
    assert vllm.requests_of(lambda: resolve(vllm, "main")) == 2  # the greeting and the names


def test_a_pinned_commit_outlives_a_force_push(vllm: Vllm) -> None:
    old = resolve(vllm, "main")
    upstream = vllm.history.repository
    upstream.git("update-ref", "refs/heads/main", vllm.history.v0_19_0)
    new = upstream.commit("refs/heads/main", "Another history", {"VERSION": "?"})
    for ref in upstream.git("for-each-ref", "--format=%(refname)", "refs/pull").split():
        upstream.git("update-ref", "-d", ref)
    upstream.git("reflog", "expire", "--expire=now", "--all")
    upstream.git("gc", "--quiet", "--prune=now")
    assert resolve(vllm, "main").commit == new
    vllm.git("gc", "--quiet", "--prune=now")
    assert resolve(vllm, old.commit).version == old.version


def test_tags_that_move_go_and_come_are_followed(vllm: Vllm) -> None:
    resolve(vllm, "main")
    upstream = vllm.history.repository
    upstream.git("tag", "--delete", "v0.19.1", "v0.19.1rc1", "v0.19.1rc0")
    assert resolve(vllm, "main").version == f"0.19.1.dev7+g{vllm.history.main[:7]}"
    upstream.git("tag", "v0.20.0", vllm.history.main)
    assert resolve(vllm, "main").version == "0.20.0"


def test_a_name_that_is_branch_and_tag_is_refused_and_both_can_be_meant(vllm: Vllm) -> None:
    vllm.history.repository.git("update-ref", "refs/heads/v0.19.0", vllm.history.main)
    with pytest.raises(SourceError, match=r"`v0.19.0` is both a branch .* and a tag") as caught:
        resolve(vllm, "v0.19.0")
    assert caught.value.hint == "write refs/heads/v0.19.0 or refs/tags/v0.19.0"
    assert resolve(vllm, "refs/heads/v0.19.0").commit == vllm.history.main
    assert resolve(vllm, "refs/tags/v0.19.0").commit == vllm.history.v0_19_0


def test_part_of_a_commit_is_refused_with_the_whole_where_it_is_known(vllm: Vllm) -> None:
    main = vllm.history.main
    with pytest.raises(SourceError, match="a commit has 40 digits") as caught:
        resolve(vllm, main[:9])
    assert "all 40 digits" in caught.value.hint
    resolve(vllm, "main")
    with pytest.raises(SourceError) as caught:
        resolve(vllm, main[:9])
    assert caught.value.hint == f"write {main}"


def test_a_branch_may_look_like_part_of_a_commit(vllm: Vllm) -> None:
    vllm.history.repository.git("update-ref", "refs/heads/2026", vllm.history.v0_19_0)
    assert resolve(vllm, "2026").commit == vllm.history.v0_19_0


@pytest.mark.parametrize("ref", ["mian", "v0.19.9", "refs/pull/1/head", "--upload-pack=touch x", "", "HEAD~1"])
def test_a_ref_that_is_not_there_is_refused(vllm: Vllm, ref: str) -> None:
    with pytest.raises(MissingError, match=f"{vllm.url} has no branch or tag") as caught:
        resolve(vllm, ref)
    assert ref != "mian" or caught.value.hint == "did you mean main?"


def test_a_commit_that_is_not_there_is_refused(vllm: Vllm) -> None:
    with pytest.raises(MissingError, match=f"has no commit {'d' * 40}"):
        resolve(vllm, "d" * 40)
    assert len(vllm.server.requests) <= 3


def test_what_is_no_commit_is_refused(vllm: Vllm) -> None:
    tag = vllm.history.repository.git("rev-parse", "refs/tags/v0.19.1")
    with pytest.raises(SourceError, match="is a tag, not a commit"):
        resolve(vllm, tag)
    blob = vllm.history.repository.git("rev-parse", "main:README.md")
    vllm.history.repository.git("tag", "readme", blob)
    with pytest.raises(SourceError, match="is a blob, not a commit"):
        resolve(vllm, "readme")


def test_an_old_server_that_hands_out_no_commit_by_name(vllm: Vllm, monkeypatch: pytest.MonkeyPatch) -> None:
    vllm.history.repository.git("config", "uploadpack.allowAnySHA1InWant", "false")
    monkeypatch.setenv("GIT_CONFIG_PARAMETERS", "'protocol.version'='0'")
    assert resolve(vllm, vllm.history.v0_19_0).version == "0.19.0"
    gone = vllm.history.repository.commit("refs/heads/gone", "Gone", {"a": "1"}, parent=vllm.history.v0_19_0)
    vllm.history.repository.git("update-ref", "-d", "refs/heads/gone")
    with pytest.raises(MissingError, match="no branch or tag of .* holds the commit"):
        resolve(vllm, gone)


def test_a_server_without_filters_gives_everything(vllm: Vllm) -> None:
    vllm.history.repository.git("config", "uploadpack.allowFilter", "false")
    assert resolve(vllm, "main").version.startswith("0.19.2.dev6+g")


def test_a_folder_can_be_an_address(vllm: Vllm) -> None:
    url = str(vllm.history.repository.path)
    assert resolve(vllm, "main", url).git == url


def test_a_repository_without_tags_counts_its_commits(vllm: Vllm) -> None:
    upstream = make_repository(vllm.server.root / "fresh.git")
    upstream.commit("refs/heads/main", "One", {"a": "1"})
    commit = upstream.commit("refs/heads/main", "Two", {"a": "2"})
    assert resolve(vllm, "main", f"{vllm.server.url}/fresh.git").version == f"0.1.dev2+g{commit[:7]}"


def test_several_resolve_at_the_same_time_also_from_one_repository(vllm: Vllm) -> None:
    make_repository(vllm.server.root / "fresh.git").commit("refs/heads/main", "One", {"a": "1"})
    wanted = [(vllm.url, "main"), (vllm.url, "v0.19.0"), (f"{vllm.server.url}/fresh.git", "main"), (vllm.url, "main")]
    pins = mirror.resolve_all(vllm.mirrors, wanted)
    assert list(pins) == wanted[:3]
    first = pins[vllm.url, "main"]
    assert isinstance(first, GitPin)
    assert first.commit == vllm.history.main


def test_a_fault_of_one_keeps_no_other_from_its_pin(vllm: Vllm) -> None:
    wanted = [(vllm.url, "mian"), (f"{vllm.server.url}/none.git", "main"), (vllm.url, "main")]
    pins = mirror.resolve_all(vllm.mirrors, wanted)
    kinds = [type(pins[source]) for source in wanted]
    assert kinds == [MissingError, SourceError, GitPin]
    assert "there is no git repository at" in str(pins[wanted[1]])


@pytest.mark.parametrize("url", ["ext::sh -c true", "--upload-pack=x", "", "foo::bar"])
def test_what_is_no_address_is_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(SourceError, match="git cannot use the address"):
        mirror.resolve_ref(tmp_path, url, "main")
    assert not list(tmp_path.iterdir())


def test_a_hook_that_runs_the_program_does_not_lead_it_astray(vllm: Vllm, monkeypatch: pytest.MonkeyPatch) -> None:
    astray = make_repository(vllm.server.root / "astray.git").path
    monkeypatch.setenv("GIT_DIR", str(astray))
    monkeypatch.setenv("GIT_INDEX_FILE", str(astray / "index"))
    monkeypatch.setenv("GIT_WORK_TREE", str(astray.parent))
    assert resolve(vllm, "main").commit == vllm.history.main
    assert not list((astray / "objects" / "pack").iterdir())


def test_git_that_is_missing_is_named(vllm: Vllm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(vllm.server.root))
    with pytest.raises(SourceError, match="git is not installed"):
        resolve(vllm, "main")


def test_pauses_grow() -> None:
    assert list(git.PAUSES) == sorted(git.PAUSES)
