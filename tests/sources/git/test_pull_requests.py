"""Pull requests vendored as patches, fetched from a real server."""

from __future__ import annotations

import hashlib
import shutil
from typing import TYPE_CHECKING

import pytest

from builder.base.errors import SourceError
from builder.sources import mirror, pulls
from builder.sources.git import MissingError
from builder.sources.pulls import RequestedPull, VendoredPatch
from tests.sources.git_server import DRAFTER, Vllm, lines

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.slow


def vendor(vllm: Vllm, number: int, mirrors: str = "mirrors") -> VendoredPatch:
    return pulls.vendor(vllm.mirrors.with_name(mirrors), vllm.url, RequestedPull(number), vllm.history.main)


def test_a_pull_request_is_its_changes_since_it_left_the_pinned_history(vllm: Vllm) -> None:
    vendored = vendor(vllm, 40898)
    assert (vendored.pin.number, vendored.pin.head) == (40898, vllm.history.pull_40898)
    assert vendored.pin.sha256 == hashlib.sha256(vendored.diff).hexdigest()
    text = vendored.diff.decode()
    names = [line for line in text.splitlines() if line.startswith("diff ")]
    assert names == ["diff --git a/vllm/picture.bin b/vllm/picture.bin", f"diff --git a/{DRAFTER} b/{DRAFTER}"]
    assert "-line 10\n+SLIDING\n" in text
    assert "GIT binary patch" in text


def test_no_setting_changes_a_byte(vllm: Vllm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = vendor(vllm, 40898)
    attributes = tmp_path / "attributes"
    attributes.write_text("*.py -diff\n*.bin diff\n")
    settings = tmp_path / "gitconfig"
    settings.write_text(
        f"[core]\n abbrev = 12\n attributesFile = {attributes}\n quotePath = true\n[color]\n ui = always\n"
        "[diff]\n noprefix = true\n mnemonicPrefix = true\n context = 9\n algorithm = histogram\n renames = copies\n"
        " external = false\n suppressBlankEmpty = true\n interHunkContext = 60\n"
    )
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(settings))
    monkeypatch.setenv("GIT_DIFF_OPTS", "--unified=1")
    monkeypatch.setenv("GIT_EXTERNAL_DIFF", "false")
    monkeypatch.setenv("GIT_CONFIG_PARAMETERS", "'diff.context'='7'")
    assert vendor(vllm, 40898, "other-mirrors") == plain


def test_only_the_contents_of_changed_files_are_fetched(vllm: Vllm) -> None:
    vendor(vllm, 40898)
    kinds = vllm.git("cat-file", "--batch-all-objects", "--batch-check=%(objecttype)").split()
    assert kinds.count("blob") == 3


def test_its_head_outlives_a_force_push_and_the_branch(vllm: Vllm) -> None:
    vendored = vendor(vllm, 40898)
    upstream = vllm.history.repository
    upstream.commit("refs/pull/40898/head", "Rewritten", {DRAFTER: "nothing\n"}, parent=vllm.history.v0_19_0)
    second = vendor(vllm, 40898)
    assert second.pin.head != vendored.pin.head
    upstream.git("update-ref", "-d", "refs/pull/40898/head")
    upstream.git("gc", "--quiet", "--prune=now")
    with pytest.raises(MissingError, match="has no pull request 40898"):
        vendor(vllm, 40898)
    shutil.rmtree(vllm.server.root)
    vllm.git("gc", "--quiet", "--prune=now")
    content = mirror.read_files(vllm.mirrors, vllm.url, vendored.pin.head, [DRAFTER]).get(DRAFTER)
    assert content == lines(1, 60, line10="SLIDING", line50="fifty").encode()


def test_merge_requests_are_found_where_gitlab_keeps_them(vllm: Vllm) -> None:
    upstream = vllm.history.repository
    upstream.git("update-ref", "refs/merge-requests/7/head", vllm.history.pull_40727)
    assert vendor(vllm, 7).pin.head == vllm.history.pull_40727


def test_one_that_is_in_the_history_is_already_in(vllm: Vllm) -> None:
    with pytest.raises(SourceError, match=f"pull request 40001 is already in {vllm.history.main[:7]}: drop it"):
        vendor(vllm, 40001)


def test_one_that_does_not_exist_is_named(vllm: Vllm) -> None:
    with pytest.raises(MissingError, match="has no pull request 5"):
        vendor(vllm, 5)
    assert mirror.resolve_ref(vllm.mirrors, vllm.url, "main").commit == vllm.history.main


def test_one_that_changes_nothing_or_shares_no_history_is_refused(vllm: Vllm) -> None:
    upstream = vllm.history.repository
    upstream.commit("refs/pull/8/head", "Empty", {}, parent=vllm.history.v0_19_1)
    with pytest.raises(SourceError, match="changes nothing"):
        vendor(vllm, 8)
    upstream.commit("refs/pull/9/head", "From nowhere", {"a": "1"})
    with pytest.raises(SourceError, match="shares no history with"):
        vendor(vllm, 9)
