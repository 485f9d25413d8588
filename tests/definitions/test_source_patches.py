"""Pull requests and patch files as a definition names them."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from builder.base.errors import FileProblemsError, UnsafePathError, UsageError
from builder.definitions import image
from builder.definitions.source_patches import SourcePatch
from tests import projects

SHA256 = hashlib.sha256(b"diff\n").hexdigest()


def patches(root: Path, *lines: str) -> tuple[SourcePatch, ...]:
    """The patches of a source with these ``lines`` beside its address and ref."""
    project = projects.make(root)
    source = "".join(f"    {line}\n" for line in ("git: https://github.com/Vllm-project/vllm.git", "ref: main", *lines))
    text = projects.IMAGE.format(repository="small") + f"sources:\n  vllm:\n{source}"
    projects.write(root / "dockerfiles/small/image.yaml", text)
    return image.load_image(project, "small", "linux/amd64").git_sources["vllm"].patches


def put(root: Path, **texts: str) -> None:
    for name, text in texts.items():
        projects.write(root / "dockerfiles/small/fixes" / name.replace("_", "."), text)


@pytest.mark.parametrize("page", ["", "/files", "/commits"])
def test_the_address_of_a_request_of_the_repository_itself_is_its_number(tmp_path: Path, page: str) -> None:
    address = f"https://github.com/vllm-project/vllm/pull/40898{page}"
    assert patches(tmp_path, f"pulls: [{address}]") == (SourcePatch("40898"),)


def test_a_request_of_another_repository_is_called_by_its_address(tmp_path: Path) -> None:
    fork = "https://github.com/somebody/vllm/pull/7"
    seven, own = patches(tmp_path, f"pulls: [{{number: '{fork}/files', base: fast}}, 7]")
    assert (seven, own) == (SourcePatch(fork, base="fast"), SourcePatch("7"))
    assert (seven.repository, seven.number, seven.stem) == ("https://github.com/somebody/vllm", 7, "somebody-vllm-7")
    assert (seven.label, own.label, own.stem) == (f"pull request {fork}", "pull request 7", "7")
    assert (
        patches(tmp_path / "gitlab", "pulls: [https://gitlab.com/a/vllm.git/-/merge_requests/3]")[0].stem
        == "a-vllm.git-3"
    )


@pytest.mark.parametrize(
    "address", ["https://github.com/a/b/issues/7", "https://x/$(id)/pull/7", "https://a:b@x/y/pull/7", "ext::sh/pull/7"]
)
def test_another_address_is_refused(tmp_path: Path, address: str) -> None:
    with pytest.raises(FileProblemsError, match="image.yaml:"):
        patches(tmp_path, f"pulls: ['{address}']")


def test_a_series_gives_the_order_and_what_to_strip(tmp_path: Path) -> None:
    put(
        tmp_path,
        series="# ours\n\nb.patch -p0\na.patch  # the second\n",
        a_patch="diff\n",
        b_patch="diff\n",
        c_patch="",
    )
    first, second = patches(tmp_path, "patches: fixes")
    assert first == SourcePatch("fixes/b.patch", sha256=SHA256, strip=0)
    assert second == SourcePatch("fixes/a.patch", sha256=SHA256)
    assert (second.label, second.stem, second.requested) == ("patch fixes/a.patch", "fixes-a", second)


def test_files_stand_in_their_order_after_the_pull_requests(tmp_path: Path) -> None:
    put(tmp_path, a_patch="diff\n", b_diff="diff\n")
    named = patches(tmp_path, "patches: [fixes/b.diff, fixes/a.patch]", "pulls: [7]")
    assert [patch.name for patch in named] == ["7", "fixes/b.diff", "fixes/a.patch"]


@pytest.mark.parametrize("line", ["../a.patch", "/a.patch", "a.patch -R", "a.patch -p1 x", "$(id).patch", "-p1"])
def test_a_line_of_a_series_that_names_no_patch_is_named(tmp_path: Path, line: str) -> None:
    put(tmp_path, series=f"a.patch\n{line}\n", a_patch="diff\n")
    with pytest.raises(
        FileProblemsError, match=r"dockerfiles/small/fixes/series:2:1: .*expected the name of a patch file"
    ):
        patches(tmp_path, "patches: fixes")


@pytest.mark.parametrize("path", ["../x.patch", "/etc/passwd", "a b.patch", "'`id`.patch'", "-x.patch"])
def test_a_path_that_leads_elsewhere_or_reaches_a_shell_is_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(FileProblemsError, match="image.yaml:"):
        patches(tmp_path, f"patches: [{path}]")


def test_a_file_that_is_missing_or_lies_outside_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"small/fixes/a.patch cannot be read: No such file"):
        patches(tmp_path, "patches: [fixes/a.patch]")
    projects.write(tmp_path / "outside.patch", "diff\n")
    root = tmp_path / "project"
    put(root, series="a.patch\n")
    (root / "dockerfiles/small/fixes/a.patch").symlink_to(tmp_path / "outside.patch")
    with pytest.raises(UnsafePathError, match="leads out of"):
        patches(root, "patches: fixes")


def test_two_of_one_name_are_refused(tmp_path: Path) -> None:
    put(tmp_path, a_patch="diff\n")
    projects.write(tmp_path / "dockerfiles/small/fixes-a.patch", "diff\n")
    with pytest.raises(FileProblemsError, match=r"patch fixes-a.patch is listed twice, or two files"):
        patches(tmp_path, "patches: [fixes/a.patch, fixes-a.patch]")
