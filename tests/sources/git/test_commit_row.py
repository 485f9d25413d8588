"""A commit taken back, from a mirror that has no contents of files yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from builder.errors import SourceError
from builder.sources.git import commit_row
from tests.sources.git_server import INC, served_vllm

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow


def test_the_contents_that_a_reversal_takes_are_fetched(tmp_path: Path) -> None:
    with served_vllm(tmp_path) as vllm:
        commit = vllm.history.main
        facts = commit_row.facts(vllm.mirrors, vllm.url, commit)
        assert (facts.title, facts.files) == ("inc.py changes again", (INC,))
        assert commit_row.facts(vllm.mirrors, vllm.url, commit, within=(commit,)) == facts
        with pytest.raises(SourceError, match="is not in the history of"):
            commit_row.facts(vllm.mirrors, vllm.url, commit, within=(vllm.history.v0_19_0,))
        made = vllm.mirror.stat().st_ino
        patch, others = commit_row.reversal(vllm.mirrors, vllm.url, commit, "vllm")
        assert others == ()
        assert [line for line in patch.decode().splitlines() if line[:1] in {"+", "-"} and INC not in line] == [
            "-five", "+line 5", "-29", "-thirty", "+line 29", "+line 30",
        ]  # fmt: skip
        # It is no damage that a mirror lacks them: it is not made anew.
        assert vllm.mirror.stat().st_ino == made
