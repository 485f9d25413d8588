"""The state of a local checkout: its commit, and its changes as a diff."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from builder.base.errors import SourceError
from builder.definitions.source_patches import local_changes
from builder.sources import foreign_files, mirror, pulls
from tests import projects

pytestmark = pytest.mark.slow


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=Somebody", "-c", "user.email=somebody@example.org", "-c", "protocol.file.allow=always"]
    done = subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "my vllm"
    projects.write(folder / "serve.py", "1\n2\n3\n")
    projects.write(folder / ".gitignore", "*.o\n")
    git(folder, "init", "--quiet", "--initial-branch=main")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", "the first")
    return folder


def test_a_clean_checkout_is_its_commit(checkout: Path) -> None:
    assert foreign_files.read_checkout(checkout) == (git(checkout, "rev-parse", "HEAD"), b"")


def test_changes_are_those_of_tracked_files_and_files_that_are_not_ignored(checkout: Path, tmp_path: Path) -> None:
    projects.write(checkout / "serve.py", "1\ntwo\n3\n")
    projects.write(checkout / "new file.py", "new\n")
    (checkout / "picture").write_bytes(bytes(range(256)))
    projects.write(checkout / "built.o", "ignored\n")
    git(checkout, "add", "picture")
    before = git(checkout, "status", "--porcelain"), sorted((checkout / ".git/objects").rglob("*"))
    commit, diff = foreign_files.read_checkout(checkout)
    assert (commit, diff) == foreign_files.read_checkout(checkout)
    assert (git(checkout, "status", "--porcelain"), sorted((checkout / ".git/objects").rglob("*"))) == before
    assert [name in diff for name in (b"serve.py", b"new file.py", b"picture", b"built.o")] == [True] * 3 + [False]
    # What is frozen applies to the commit, as every patch has to.
    frozen = [(local_changes(diff), diff)]
    pulls.check_patches(mirror.locate(tmp_path / "mirrors", checkout.as_uri()), commit, frozen)


def test_what_is_no_checkout_is_named(checkout: Path, tmp_path: Path) -> None:
    projects.write(checkout / "inside/x.py", "")
    projects.write(tmp_path / "new/x.py", "")
    git(tmp_path / "new", "init", "--quiet")
    for folder, reason in (
        (tmp_path / "none", "is not a git checkout with a commit: the folder does not exist"),
        (tmp_path, "is not a git checkout with a commit: not a git repository"),
        (tmp_path / "new", "is not a git checkout with a commit$"),
        (checkout / "inside", "lies inside the checkout"),
    ):
        with pytest.raises(SourceError, match=reason):
            foreign_files.read_checkout(folder)


def test_the_conflicts_of_an_unfinished_merge_are_no_source(checkout: Path) -> None:
    git(checkout, "switch", "--quiet", "--create", "other")
    projects.write(checkout / "serve.py", "1\ntheirs\n3\n")
    git(checkout, "commit", "--quiet", "--all", "--message", "theirs")
    git(checkout, "switch", "--quiet", "main")
    projects.write(checkout / "serve.py", "1\nours\n3\n")
    git(checkout, "commit", "--quiet", "--all", "--message", "ours")
    subprocess.run(["git", "merge", "other"], cwd=checkout, check=False, capture_output=True)
    with pytest.raises(SourceError, match=r"is in the middle of a merge, with conflicts in serve\.py$"):
        foreign_files.read_checkout(checkout)
    projects.write(checkout / "serve.py", "1\nboth\n3\n")
    git(checkout, "add", "serve.py")
    assert b"+both" in foreign_files.read_checkout(checkout)[1]


def test_no_filter_that_a_checkout_names_itself_is_run(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(checkout, "config", "filter.theirs.clean", f"touch {tmp_path}/theirs; cat")
    git(checkout, "config", "filter.theirs.required", "true")
    projects.write(checkout / ".gitattributes", "serve.py filter=theirs\nmine.py filter=mine\n")
    projects.write(checkout / "serve.py", "1\ntwo\n3\n")
    os.utime(checkout / "serve.py", (4e9, 4e9))  # newer than the index: git reads such a file again
    projects.write(checkout / "mine.py", "secret\n")
    projects.write(tmp_path / "mine.gitconfig", '[filter "mine"]\n\tclean = sed s/secret/cleaned/\n')
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "mine.gitconfig"))
    for _ in range(2):
        diff = foreign_files.read_checkout(checkout)[1]
        assert not (tmp_path / "theirs").exists()
        assert b"+two" in diff
        assert b"+cleaned" in diff
        git(checkout, "config", "filter.mine.clean", "sed s/secret/cleaned/")  # as by `git lfs install --local`


def test_no_program_that_a_submodule_names_is_run(checkout: Path, tmp_path: Path) -> None:
    inner, marker = made_submodule(checkout, tmp_path), tmp_path / "ran"
    deep = made_submodule(inner, tmp_path)
    git(checkout, "add", "inner")
    git(checkout, "commit", "--quiet", "--message", "a deeper submodule")
    for each in (inner, deep):
        program = f"touch {marker}; cat"
        git(each, "config", "core.fsmonitor", program)
        git(each, "config", "filter.theirs.clean", program)
        git(each, "config", "filter.theirs=more.clean", program)
        attributes = Path(git(each, "rev-parse", "--absolute-git-dir"), "info/attributes")
        projects.write(attributes, "a.py filter=theirs\nb.py filter=theirs=more\n")
        for name in ("a.py", "b.py"):
            os.utime(each / name, (4e9, 4e9))
    git(checkout, "status")
    assert marker.exists()
    marker.unlink()
    assert foreign_files.read_checkout(checkout)[1] == b""
    assert not marker.exists()


def made_submodule(outer: Path, tmp_path: Path) -> Path:
    """A submodule ``inner`` of ``outer``, which is committed there."""
    other = tmp_path / f"other-{outer.name}"
    projects.write(other / "a.py", "1\n")
    projects.write(other / "b.py", "1\n")
    git(other, "init", "--quiet")
    git(other, "add", ".")
    git(other, "commit", "--quiet", "--message", "the first")
    git(outer, "submodule", "--quiet", "add", str(other), "inner")
    git(outer, "commit", "--quiet", "--message", "a submodule")
    return outer / "inner"


def test_without_git_no_reason_is_promised(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builder.sources.git.which", lambda _: None)
    with pytest.raises(SourceError, match="is not a git checkout with a commit$"):
        foreign_files.read_checkout(checkout)


def test_a_shallow_clone_cannot_serve_its_commit(checkout: Path, tmp_path: Path) -> None:
    git(tmp_path, "clone", "--quiet", "--depth=1", checkout.as_uri(), "shallow")
    foreign_files.refuse_shallow(checkout)
    with pytest.raises(SourceError, match="is a shallow clone") as caught:
        foreign_files.refuse_shallow(tmp_path / "shallow")
    assert "git fetch --unshallow" in caught.value.hint


def test_a_submodule_or_another_repository_inside_has_to_be_as_it_was_committed(checkout: Path, tmp_path: Path) -> None:
    inner = made_submodule(checkout, tmp_path)
    assert foreign_files.read_checkout(checkout)[1] == b""
    projects.write(inner / "a.py", "2\n")
    with pytest.raises(SourceError, match="differs from its commit: inner"):
        foreign_files.read_checkout(checkout)
    git(inner, "commit", "--quiet", "--all", "--message", "moved")
    with pytest.raises(SourceError, match="differs from its commit: inner"):
        foreign_files.read_checkout(checkout)


def test_the_remotes_that_have_its_commit_are_known_without_logins(checkout: Path) -> None:
    commit = git(checkout, "rev-parse", "HEAD")
    for name, url in (("a", "https://user:token@example.org/vllm.git"), ("b", "git@example.org:me/vllm.git")):
        git(checkout, "remote", "add", name, url)
        assert len(foreign_files.remotes_with(checkout, commit)) == (name == "b")
        git(checkout, "update-ref", f"refs/remotes/{name}/main", commit)
    git(checkout, "remote", "add", "c", "/somewhere/here")
    git(checkout, "update-ref", "refs/remotes/c/main", commit)
    assert foreign_files.remotes_with(checkout, commit) == (
        "https://example.org/vllm.git",
        "ssh://git@example.org/me/vllm.git",
    )
