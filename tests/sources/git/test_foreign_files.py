"""Files of a repository that anybody may have written, from a real git server."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from builder.base.errors import SourceError, UsageError
from builder.definitions import mod
from builder.definitions.mod import PlainFile
from builder.sources import foreign_files, mirror
from tests.sources import git_server

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path


MAIN = "refs/heads/main"
LINK, SUBMODULE = "120000", "160000"


class Served:
    """A repository that is served, and an empty folder for its mirror."""

    def __init__(self, server: git_server.Server, repository: git_server.Repository, mirrors: Path) -> None:
        self.url = f"{server.url}/mods.git"
        self.repository = repository
        self.source = mirror.locate(mirrors, self.url)

    def commit(self, files: Mapping[str, str | bytes | None]) -> str:
        return self.repository.commit(MAIN, "A change", files)

    def read(self, path: str, commit: str) -> tuple[PlainFile, ...]:
        return foreign_files.read_foreign_files(self.source, commit, path)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    repository = git_server.make_repository(tmp_path / "served/mods.git")
    with git_server.serve(tmp_path / "served") as server:
        yield Served(server, repository, tmp_path / "mirrors")


@pytest.mark.slow
def test_a_folder_is_read_as_it_is(served: Served) -> None:
    files: dict[str, str | bytes | None] = {
        "mods/a/run.sh": "run\n",
        "mods/a/data/x.bin": b"\0\r\n",
        "mods/ab/run.sh": "other\n",
        "run.sh": "top\n",
    }
    commit = served.repository.commit(MAIN, "x", files, modes={"mods/a/run.sh": "100755"})
    assert served.read("mods/a", commit) == (
        PlainFile("data/x.bin", executable=False, content=b"\0\r\n"),
        PlainFile("run.sh", executable=True, content=b"run\n"),
    )
    assert served.read("mods/ab/run.sh", commit) == (PlainFile("run.sh", executable=False, content=b"other\n"),)
    assert served.read("run.sh", commit) == (PlainFile("run.sh", executable=False, content=b"top\n"),)
    assert len(served.read("", commit)) == 4
    assert foreign_files.find_commit(served.source, commit) == (commit, tuple(sorted(files)))


@pytest.mark.slow
def test_a_ref_is_what_it_is_now(served: Served) -> None:
    first = served.commit({"a": "1"})

    def find(ref: str) -> str:
        return foreign_files.find_commit(served.source, ref)[0]

    assert find("HEAD") == find("main") == first
    second = served.commit({"a": "2"})
    assert find("HEAD") == second
    assert find(first.upper()) == first
    with pytest.raises(SourceError, match="no branch or tag `mian`"):
        find("mian")


@pytest.mark.slow
def test_a_link_within_the_folder_becomes_a_copy(served: Served) -> None:
    files: dict[str, str | bytes | None] = {"m/run.sh": "x", "m/d/link": "../run.sh", "m/again": "d/link"}
    commit = served.repository.commit(MAIN, "x", files, modes={"m/d/link": LINK, "m/again": LINK})
    assert [(file.path, file.content) for file in served.read("m", commit)] == [
        ("again", b"x"),
        ("d/link", b"x"),
        ("run.sh", b"x"),
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "content", "mode", "message"),
    [
        ("m/link", "/etc/passwd", LINK, "m/link: a link to /etc/passwd, which is not a file in the folder"),
        ("m/link", "../other", LINK, "a link to ../other"),
        ("m/link", "missing", LINK, "a link to missing"),
        ("m/link", "link", LINK, "a link to link"),
        ("m/new\nline", "x", "100644", "m/new?line: its name has a control character"),
        (
            "m/back\\slash",
            "x",
            "100644",
            "its path leads outside the folder or into .git, contains a backslash, or has a name",
        ),
        (
            f"m/{'x' * 256}",
            "x",
            "100644",
            "its path leads outside the folder or into .git, contains a backslash, or has a name",
        ),
        ("m/big.bin", "version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "100644", "a Git LFS pointer"),
    ],
)
def test_what_is_no_plain_file_is_refused(served: Served, name: str, content: str, mode: str, message: str) -> None:
    commit = served.repository.commit(MAIN, "x", {"m/run.sh": "x", "other": "y", name: content}, modes={name: mode})
    with pytest.raises(SourceError, match="has files that cannot be copied") as caught:
        served.read("m", commit)
    assert message in caught.value.message


@pytest.mark.slow
def test_a_submodule_is_refused(served: Served) -> None:
    commit = served.commit({"m/run.sh": "x"})
    served.repository.git("read-tree", commit)
    served.repository.git("update-index", "-z", "--index-info", given=f"{SUBMODULE} {commit}\tm/sub\0".encode())
    tree = served.repository.git("write-tree")
    with_submodule = served.repository.git("commit-tree", tree, "-p", commit, "-m", "x")
    served.repository.git("update-ref", MAIN, with_submodule)
    with pytest.raises(SourceError, match="m/sub: a submodule"):
        served.read("m", with_submodule)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["..", ".git", ".GIT", "."])
def test_trees_that_no_git_would_write_are_refused(served: Served, name: str) -> None:
    blob = served.repository.git("hash-object", "-w", "--stdin", given=b"x")
    inner = served.repository.git("mktree", "-z", given=f"100644 blob {blob}\trun.sh\0".encode())
    entries = f"40000 {name}\0".encode() + bytes.fromhex(inner)
    middle = served.repository.git("hash-object", "-w", "-t", "tree", "--stdin", "--literally", given=entries)
    top = served.repository.git("mktree", "-z", given=f"040000 tree {middle}\tm\0".encode())
    commit = served.repository.git("commit-tree", top, "-m", "x")
    served.repository.git("update-ref", MAIN, commit)
    with pytest.raises(SourceError):
        served.read("m", commit)
    assert not any("evil" in path for path in foreign_files.find_commit(served.source, commit)[1])


@pytest.mark.slow
def test_files_that_are_too_large_or_too_many_are_refused(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign_files, "LARGEST_FILE", 5)
    monkeypatch.setattr(foreign_files, "LARGEST_MOD", 8)
    monkeypatch.setattr(foreign_files, "MOST_FILES", 3)
    with pytest.raises(SourceError, match="m/b: 6 bytes; at most 5 are copied"):
        served.read("m", served.commit({"m/a": "1", "m/b": "123456"}))
    with pytest.raises(SourceError, match="all files together: 10 bytes; at most 8 are copied"):
        served.read("m", served.commit({"m/a": "12345", "m/b": "12345"}))
    with pytest.raises(SourceError, match="4 files in m; at most 3 are copied"):
        served.read("m", served.commit({f"m/{number}": "x" for number in range(2)}))
    assert mod.LARGEST_FILE > 5


def commit(project: Path, files: dict[str, str]) -> Path:
    """A repository with one commit of ``files``, which are executable."""
    for name, content in files.items():
        file = project / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
        file.chmod(0o755)
    for arguments in (
        ["init", "--quiet"],
        ["add", "--all"],
        ["-c", "user.name=t", "-c", "user.email=t@example.org", "commit", "--quiet", "--message=x"],
    ):
        subprocess.run(["git", *arguments], cwd=project, check=True)
    return project


def test_a_folder_as_a_revision_had_it(tmp_path: Path) -> None:
    out = tmp_path / "out"
    project = commit(tmp_path / "project", {"builds/x/1/run.sh": "one\n"})
    (project / "builds/x/1/run.sh").write_text("two\n")
    assert foreign_files.extract_folder(project, "HEAD", "builds/x/1", out)
    assert (out / "builds/x/1/run.sh").read_text() == "one\n"
    assert (out / "builds/x/1/run.sh").stat().st_mode & 0o100
    assert not foreign_files.extract_folder(project, "HEAD", "builds/x/2", tmp_path / "a")
    assert not foreign_files.extract_folder(project, "MERGE_HEAD", "builds/x/1", tmp_path / "b")
    assert not foreign_files.extract_folder(tmp_path, "HEAD", "builds/x/1", tmp_path / "c")


def test_a_file_as_a_revision_had_it(tmp_path: Path) -> None:
    project = commit(tmp_path / "project", {"images.lock": "one\n"})
    (project / "images.lock").write_text("two\n")
    assert foreign_files.read_file(project, "HEAD", "images.lock") == b"one\n"
    assert foreign_files.read_file(project, "HEAD", "other") is None


@pytest.mark.parametrize("revision", ["nothing", "--all", "HEAD~7"])
def test_a_revision_that_git_does_not_know(tmp_path: Path, revision: str) -> None:
    project = commit(tmp_path / "project", {"images.lock": "one\n"})
    with pytest.raises(UsageError, match=f"git has no revision `{revision}`"):
        foreign_files.read_file(project, revision, "images.lock")


def test_a_folder_without_a_repository_has_no_revisions(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not in a git repository"):
        foreign_files.read_file(tmp_path, "HEAD", "images.lock")


def test_without_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not foreign_files.extract_folder(tmp_path, "HEAD", "builds", tmp_path / "out")
    assert not foreign_files.begin(tmp_path)
    assert foreign_files.last_change(tmp_path, "images.lock", "2026-01-01T00:00:00Z") == ""
    assert foreign_files.commit_of(tmp_path) == foreign_files.origin_of(tmp_path) == ""
    with pytest.raises(UsageError, match="git is not installed"):
        foreign_files.read_file(tmp_path, "HEAD", "images.lock")


def test_a_link_in_a_revision_is_left_out(tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / "builds/x/1").mkdir(parents=True)
    (project / "builds/x/1/link").symlink_to("/etc/hostname")
    (project / "builds/x/1/etc").symlink_to("/etc")
    commit(project, {"builds/x/1/plan.json": "{}"})
    out = tmp_path / "out"
    assert foreign_files.extract_folder(project, "HEAD", "builds/x/1", out)
    assert [path.name for path in (out / "builds/x/1").iterdir()] == ["plan.json"]


def hostile_repository(folder: Path, marker: Path) -> None:
    """Makes a repository of ``folder`` with a commit whose objects are partly gone, and settings that name programs for
    everything that git may run one for: each writes ``marker``."""
    program = folder.parent / "program"
    program.write_text(f"#!/bin/sh\necho $0 $* >>{marker}\nexit 1\n")
    program.chmod(0o755)
    commit(folder, {"images.lock": "one\n", "builds/x/1/run.sh": "run\n", "gone": "gone\n"})
    for line in (
        *("core.fsmonitor", "core.sshCommand", "core.gitProxy", "core.alternateRefsCommand", "core.pager"),
        *("filter.f.smudge", "filter.f.clean", "diff.f.textconv", "diff.external", "gpg.program"),
        *("tar.tar.command", "gpg.ssh.program", "credential.helper", "core.askPass", "core.editor"),
    ):
        configure(folder, line, str(program))
    for key, value in {
        "core.repositoryFormatVersion": "1",
        "extensions.partialClone": "origin",
        "remote.origin.url": "ssh://git@host.example/x",
        "remote.origin.promisor": "true",
        "remote.origin.partialCloneFilter": "blob:none",
        "log.showSignature": "true",
        "protocol.allow": "always",
    }.items():
        configure(folder, key, value)
    (folder / ".git/hooks").mkdir(exist_ok=True)
    for hook in ("post-index-change", "reference-transaction", "post-checkout"):
        (folder / ".git/hooks" / hook).symlink_to(program)
    (folder / ".git/info").mkdir(exist_ok=True)
    (folder / ".git/info/attributes").write_text("* filter=f diff=f export-subst\n")
    gone = subprocess.run(["git", "rev-parse", "HEAD:gone"], cwd=folder, check=True, capture_output=True, text=True)
    name = gone.stdout.strip()
    (folder / ".git/objects" / name[:2] / name[2:]).unlink()
    marker.unlink(missing_ok=True)


def configure(folder: Path, key: str, value: str) -> None:
    subprocess.run(["git", "config", "--file", str(folder / ".git/config"), key, value], cwd=folder.parent, check=True)


def runs(marker: Path, folder: Path, *arguments: str) -> bool:
    """True if plain git runs a program of the repository's for this; nothing of it is left."""
    subprocess.run(["git", *arguments], cwd=folder, check=False, capture_output=True, timeout=120)
    ran = marker.exists()
    marker.unlink(missing_ok=True)
    return ran


@pytest.mark.slow
def test_no_program_that_the_repository_around_the_project_names_is_run(tmp_path: Path) -> None:
    project, marker = tmp_path / "project", tmp_path / "ran"
    hostile_repository(project, marker)
    assert runs(marker, project, "archive", "--format=tar", "HEAD", "--", "builds/x/1/")
    assert runs(marker, project, "cat-file", "blob", "HEAD:./gone")
    assert foreign_files.read_file(project, "HEAD", "images.lock") == b"one\n"
    assert foreign_files.read_file(project, "HEAD", "gone") is None
    assert foreign_files.extract_folder(project, "HEAD", "builds/x/1", tmp_path / "out")
    assert (tmp_path / "out/builds/x/1/run.sh").read_text() == "run\n"
    assert not foreign_files.extract_folder(project, "HEAD", ".", tmp_path / "all")
    assert not marker.exists()


@pytest.mark.slow
def test_a_repository_that_is_a_folder_of_a_clone_is_none(tmp_path: Path) -> None:
    """A bare repository committed as plain files, which git takes for the one that a command in its folder is about."""
    made, marker = tmp_path / "made", tmp_path / "ran"
    hostile_repository(made, marker)
    clone = commit(tmp_path / "clone", {"ex/dockerfiles/x": ""}) / "ex"
    for part in ("HEAD", "config", "objects", "refs"):
        (made / ".git" / part).rename(clone / part)
    configure_bare = ("config", "--file", str(clone / "config"))
    subprocess.run(["git", *configure_bare, "core.bare", "false"], cwd=tmp_path, check=True)
    subprocess.run(["git", *configure_bare, "core.worktree", "."], cwd=tmp_path, check=True)
    assert runs(marker, clone, "cat-file", "blob", "HEAD:./gone")
    with pytest.raises(UsageError):
        foreign_files.read_file(clone, "HEAD", "gone")
    assert not foreign_files.extract_folder(clone, "HEAD", ".", tmp_path / "all")
    assert not marker.exists()


def test_a_repository_of_another_user_is_named_with_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert foreign_files.begin(tmp_path)
    assert foreign_files.unmerged_stages(tmp_path, "images.lock") == frozenset()
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    for read in (
        lambda: foreign_files.unmerged_stages(tmp_path, "images.lock"),
        lambda: foreign_files.read_file(tmp_path, "HEAD", "images.lock"),
    ):
        with pytest.raises(
            UsageError, match=f"git does not read {tmp_path}, because it belongs to another user"
        ) as caught:
            read()
        assert f"safe.directory {tmp_path}" in caught.value.hint
