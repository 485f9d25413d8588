"""The facts of a commit, from a mirror."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from builder.base.errors import SourceError
from builder.sources import vllm_versions
from tests.sources.git_server import INC, served_vllm

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.slow


def test_the_facts_of_a_commit_are_those_of_a_history(tmp_path: Path) -> None:
    with served_vllm(tmp_path) as vllm:
        commit = vllm.history.main
        facts = vllm_versions.commit_facts(vllm.mirrors, vllm.url, commit)
        assert (facts.title, facts.files) == ("inc.py changes again", (INC,))
        assert vllm_versions.commit_facts(vllm.mirrors, vllm.url, commit, within=(commit,)) == facts
        with pytest.raises(SourceError, match="is not in the history of"):
            vllm_versions.commit_facts(vllm.mirrors, vllm.url, commit, within=(vllm.history.v0_19_0,))
