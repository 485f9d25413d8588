"""Files of a source, and the commits between two pins."""

from __future__ import annotations

import shutil

import pytest

from builder.base.errors import SourceError
from builder.sources import mirror
from builder.sources.mirror import Commit, CommitFilter, CommitRange
from tests.sources.git_server import DRAFTER, Vllm, lines

pytestmark = pytest.mark.slow


def between(vllm: Vllm, old: str, new: str, wanted: CommitFilter = mirror.ALL_COMMITS) -> CommitRange:
    return mirror.commits_between(vllm.mirrors, vllm.url, old, new, wanted)


def test_the_commits_between_two_pins_are_listed_newest_first(vllm: Vllm) -> None:
    commits = between(vllm, vllm.history.v0_19_1, vllm.history.main)
    assert (commits.total, commits.dropped) == (6, 0)
    assert commits.commits[0] == Commit(vllm.history.main, "2026-02-02T02:51:00Z", "inc.py changes again")
    titles = [commit.title for commit in commits.commits]
    assert titles[-2:] == ["[Model] Unterstützung für Qwen 模型 🚀", "Merged as it is"]
    assert "[Bugfix] ?[31mred?[0m" in titles


def test_only_the_newest_are_listed_and_all_are_counted(vllm: Vllm) -> None:
    commits = between(vllm, vllm.history.v0_19_0, vllm.history.main, CommitFilter(limit=2))
    assert (len(commits.commits), commits.total, commits.matching) == (2, 7, 7)


def test_the_way_back_and_no_way_at_all(vllm: Vllm) -> None:
    assert between(vllm, vllm.history.main, vllm.history.v0_19_1) == CommitRange((), 0, 6, 0)
    assert between(vllm, vllm.history.main, vllm.history.main) == CommitRange((), 0, 0, 0)
    aside = between(vllm, vllm.history.pull_40727, vllm.history.main)
    assert (aside.total, aside.dropped) == (6, 1)


def test_a_file_is_read_as_it_was_and_only_once_fetched(vllm: Vllm) -> None:
    def read() -> bytes | None:
        return mirror.read_files(vllm.mirrors, vllm.url, vllm.history.v0_19_0, ["VERSION"]).get("VERSION")

    assert read() == b"0.19.0\n"
    assert vllm.requests_of(read) == 0
    shutil.rmtree(vllm.server.root)
    assert read() == b"0.19.0\n"


@pytest.mark.parametrize("path", ["nothing.txt", "vllm", "requirements/", "*", "../VERSION", "/etc/passwd"])
def test_what_is_no_file_there_is_none(vllm: Vllm, path: str) -> None:
    assert mirror.read_files(vllm.mirrors, vllm.url, vllm.history.main, [path]).get(path) is None


def test_a_program_run_by_a_hook_reads_the_same_paths(vllm: Vllm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_WORK_TREE", str(vllm.mirrors.parent))
    content = mirror.read_files(vllm.mirrors, vllm.url, vllm.history.main, ["VERSION"]).get("VERSION")
    assert content == b"0.19.1\n"


def test_requirements_are_followed(vllm: Vllm) -> None:
    commit = mirror.resolve_ref(vllm.mirrors, vllm.url, "main").commit
    requirements = mirror.read_requirements(vllm.mirrors, vllm.url, commit, "requirements/cuda.txt")
    assert requirements == ("torch==2.10.0 ; x", "transformers >= 5", "numpy")


def test_a_requirements_file_that_is_missing_is_named(vllm: Vllm) -> None:
    commit = vllm.history.repository.commit("refs/heads/main", "Broken", {"a/b.txt": "-r c.txt\n-r ../a/b.txt\n"})
    with pytest.raises(SourceError, match=f"{commit[:7]} of {vllm.url} has no file a/c.txt"):
        mirror.read_requirements(vllm.mirrors, vllm.url, commit, "a/b.txt")


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


def test_several_files_come_together(vllm: Vllm) -> None:
    old = vllm.history.v0_19_0
    paths = ["README.md", DRAFTER, "none.txt", "vllm"]
    contents = mirror.read_files(vllm.mirrors, vllm.url, old, paths)
    assert contents == {"README.md": b"vLLM\n", DRAFTER: lines(1, 60).encode()}
    assert vllm.requests_of(lambda: mirror.read_files(vllm.mirrors, vllm.url, old, paths)) == 0
    assert mirror.read_files(vllm.mirrors, vllm.url, old, []) == {}
