"""Whole trees that outlive their upstream, submodules included."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from builder.base.errors import SourceError
from builder.sources.mirror import absolute_url, check_out, preserve, resolve_ref
from tests.sources.git_server import Repository, Vllm, make_repository

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.slow


def add(repository: Repository, entries: dict[str, tuple[str, str]]) -> str:
    """A commit on main with entries of any mode: path -> mode, and content or (for a submodule) commit."""
    commit = repository.commit("refs/heads/main", "Start", {})
    lines = ""
    for path, (mode, content) in entries.items():
        name = content if mode == "160000" else repository.git("hash-object", "-w", "--stdin", given=content.encode())
        lines += f"{mode} {name}\t{path}\n"
    repository.git("update-index", "--index-info", given=lines.encode())
    commit = repository.git("commit-tree", repository.git("write-tree"), "-p", commit, given=b"All of it")
    repository.git("update-ref", "refs/heads/main", commit)
    return commit


def gitmodules(**urls: str) -> tuple[str, str]:
    text = "".join(f'[submodule "{name}"]\n\tpath = 3rdparty/{name}\n\turl = {url}\n' for name, url in urls.items())
    return "100644", text


def written(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): p.read_text() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_a_tree_outlives_its_repository(vllm: Vllm, tmp_path: Path) -> None:
    repository = make_repository(vllm.server.root / "tree.git")
    entries = {"run.sh": ("100755", "#!"), "deep/down/a": ("100644", "a\n"), "link": ("120000", "deep/down/a")}
    commit = add(repository, entries)
    url = f"{vllm.server.url}/tree.git"
    preserve(vllm.mirrors, url, commit)
    shutil.rmtree(vllm.server.root)
    check_out(vllm.mirrors, url, commit, tmp_path / "out/tree")
    assert written(tmp_path / "out/tree") == {"run.sh": "#!", "deep/down/a": "a\n", "link": "a\n"}
    assert (tmp_path / "out/tree/link").is_symlink()
    modes = [(tmp_path / "out/tree" / name).stat().st_mode & 0o111 != 0 for name in ("run.sh", "deep/down/a")]
    assert modes == [True, False]
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["tree"]


def test_what_is_kept_takes_no_network_again(vllm: Vllm) -> None:
    preserve(vllm.mirrors, vllm.url, vllm.history.main)
    assert vllm.requests_of(lambda: preserve(vllm.mirrors, vllm.url, vllm.history.main)) == 0


def test_only_the_contents_of_the_trees_that_are_kept_are_fetched(vllm: Vllm) -> None:
    wanted: set[str] = set()
    for commit in (vllm.history.v0_19_0, vllm.history.v0_19_1):
        preserve(vllm.mirrors, vllm.url, commit)
        wanted |= set(vllm.git("ls-tree", "-r", "--format=%(objectname)", commit).split())
        kinds = vllm.git("cat-file", "--batch-all-objects", "--batch-check=%(objecttype) %(objectname)").splitlines()
        assert {line.partition(" ")[2] for line in kinds if line.startswith("blob ")} == wanted


def test_a_tree_that_was_never_kept_is_refused(vllm: Vllm, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="there is no mirror of"):
        check_out(vllm.mirrors, vllm.url, vllm.history.main, tmp_path / "tree")
    resolve_ref(vllm.mirrors, vllm.url, "main")
    for commit in (vllm.history.main, "d" * 40):
        with pytest.raises(SourceError, match=f"does not give all files of {commit}"):
            check_out(vllm.mirrors, vllm.url, commit, tmp_path / "tree")


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
    preserve(vllm.mirrors, url, top)
    assert vllm.requests_of(lambda: preserve(vllm.mirrors, url, top)) == 0
    (mirror,) = (vllm.mirrors / "submodules").glob("*middle*.git")
    assert Repository(mirror).git("rev-list", "--all", "--count") == "1"
    shutil.rmtree(root)
    check_out(vllm.mirrors, url, top, tmp_path / "tree")
    files = written(tmp_path / "tree")
    assert (files["t"], files["3rdparty/middle/3rdparty/deepest/d"]) == ("top\n", "deepest\n")


@pytest.mark.parametrize("url", ["../none.git", "/etc", "ext::sh -c true"])
def test_a_submodule_that_cannot_be_had_is_said_and_keeps_the_tree_from_being_used(
    vllm: Vllm, tmp_path: Path, url: str
) -> None:
    entries = {".gitmodules": gitmodules(x=url), "3rdparty/x": ("160000", "c" * 40), "t": ("100644", "top\n")}
    commit = add(make_repository(vllm.server.root / "top.git"), entries)
    top = f"{vllm.server.url}/top.git"
    preserve(vllm.mirrors, top, commit, vllm.messages.append)
    assert any(line.startswith(f"the submodule 3rdparty/x of {top} is not kept: ") for line in vllm.messages)
    with pytest.raises(SourceError):
        check_out(vllm.mirrors, top, commit, tmp_path / "tree")


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
