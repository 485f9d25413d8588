"""Files of a repository that anybody may have written, from a real git server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from builder.base.errors import SourceError
from builder.definitions import mod
from builder.definitions.mod import PlainFile
from builder.sources import foreign_files
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
        self.mirrors = mirrors

    def commit(self, files: Mapping[str, str | bytes | None]) -> str:
        return self.repository.commit(MAIN, "A change", files)

    def read(self, path: str, commit: str) -> tuple[PlainFile, ...]:
        return foreign_files.read_foreign_files(self.mirrors, self.url, commit, path)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    repository = git_server.make_repository(tmp_path / "served/mods.git")
    with git_server.serve(tmp_path / "served") as server:
        yield Served(server, repository, tmp_path / "mirrors")


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
    assert foreign_files.paths(served.mirrors, served.url, commit) == tuple(sorted(files))


def test_a_ref_is_what_it_is_now(served: Served) -> None:
    first = served.commit({"a": "1"})
    find = foreign_files.find_commit
    assert find(served.mirrors, served.url, "HEAD") == find(served.mirrors, served.url, "main") == first
    second = served.commit({"a": "2"})
    assert find(served.mirrors, served.url, "HEAD") == second
    assert find(served.mirrors, served.url, first.upper()) == first
    with pytest.raises(SourceError, match="no branch or tag `mian`"):
        find(served.mirrors, served.url, "mian")


def test_a_link_within_the_folder_becomes_a_copy(served: Served) -> None:
    files: dict[str, str | bytes | None] = {"m/run.sh": "x", "m/d/link": "../run.sh", "m/again": "d/link"}
    commit = served.repository.commit(MAIN, "x", files, modes={"m/d/link": LINK, "m/again": LINK})
    assert [(file.path, file.content) for file in served.read("m", commit)] == [
        ("again", b"x"),
        ("d/link", b"x"),
        ("run.sh", b"x"),
    ]


@pytest.mark.parametrize(
    ("name", "content", "mode", "message"),
    [
        ("m/link", "/etc/passwd", LINK, "m/link: a link to /etc/passwd, which is no file in the folder"),
        ("m/link", "../other", LINK, "a link to ../other"),
        ("m/link", "missing", LINK, "a link to missing"),
        ("m/link", "link", LINK, "a link to link"),
        ("m/new\nline", "x", "100644", "m/new?line: a name with a control character"),
        ("m/back\\slash", "x", "100644", "a name with a control character or a backslash"),
        (f"m/{'x' * 256}", "x", "100644", "a name that is too long"),
        ("m/big.bin", "version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "100644", "a pointer to Git LFS"),
    ],
)
def test_what_is_no_plain_file_is_refused(served: Served, name: str, content: str, mode: str, message: str) -> None:
    commit = served.repository.commit(MAIN, "x", {"m/run.sh": "x", "other": "y", name: content}, modes={name: mode})
    with pytest.raises(SourceError, match="has what is not copied") as caught:
        served.read("m", commit)
    assert message in caught.value.message


def test_a_submodule_is_refused(served: Served) -> None:
    commit = served.commit({"m/run.sh": "x"})
    served.repository.git("read-tree", commit)
    served.repository.git("update-index", "-z", "--index-info", given=f"{SUBMODULE} {commit}\tm/sub\0".encode())
    tree = served.repository.git("write-tree")
    with_submodule = served.repository.git("commit-tree", tree, "-p", commit, "-m", "x")
    served.repository.git("update-ref", MAIN, with_submodule)
    with pytest.raises(SourceError, match="m/sub: a submodule"):
        served.read("m", with_submodule)


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
    assert not any("evil" in path for path in foreign_files.paths(served.mirrors, served.url, commit))


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
