"""Contents of a mirror: one fetch for many files, refs that stay, and damage that is detected."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from builder.sources import mirror
from builder.sources.git import DamagedError, GitRepository
from tests.sources.git_server import DRAFTER, INC, Vllm

if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.slow


@pytest.fixture
def place(vllm: Vllm) -> GitRepository:
    mirror.resolve_ref(vllm.mirrors, vllm.url, "main")
    return mirror.locate(vllm.mirrors, vllm.url)


def blob(vllm: Vllm, file: str) -> str:
    return vllm.history.repository.git("rev-parse", f"main:{file}")


def test_contents_come_together_and_once(vllm: Vllm, place: GitRepository) -> None:
    wanted = [blob(vllm, DRAFTER), blob(vllm, INC), blob(vllm, "README.md"), blob(vllm, INC)]
    assert vllm.requests_of(lambda: mirror.ensure_blobs(place, wanted)) <= 2  # the greeting and the contents
    assert vllm.requests_of(lambda: mirror.ensure_blobs(place, wanted)) == 0
    assert vllm.requests_of(lambda: mirror.ensure_blobs(place, [])) == 0


def test_a_commit_that_a_ref_holds_is_there_and_one_that_nothing_holds_is_not(vllm: Vllm, place: GitRepository) -> None:
    assert mirror.has_commit(place, vllm.history.v0_19_0)
    assert f"{mirror.PINS}/{vllm.history.v0_19_0}" in vllm.git("for-each-ref")
    assert not mirror.has_commit(place, "d" * 40)
    vllm.git("update-ref", "-d", f"{mirror.PINS}/{vllm.history.main}")
    assert not mirror.has_commit(place, vllm.history.main)


def test_a_commit_that_is_gone_though_a_ref_names_it_is_damage(vllm: Vllm, place: GitRepository) -> None:
    (place.path / mirror.PINS / ("d" * 40)).write_text("d" * 40 + "\n")
    with pytest.raises(DamagedError, match="is damaged"):
        mirror.has_commit(place, "d" * 40)


def test_settings_of_the_person_for_fetching_take_no_pin_away(
    vllm: Vllm, place: GitRepository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tmp_path / "gitconfig"
    settings.write_text("[fetch]\n prune = true\n pruneTags = true\n[transfer]\n fsckObjects = true\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(settings))
    mirror.ensure_commit(place, vllm.history.pull_40898)
    mirror.fetch_mirror(place, mirror.ALL_TAGS)
    assert mirror.has_commit(place, vllm.history.main)
    assert mirror.has_commit(place, vllm.history.pull_40898)


def test_names_tell_mirrors_apart_and_credentials_do_not(tmp_path: Path) -> None:
    def name(url: str) -> str:
        return mirror.locate(tmp_path, url).path.name

    assert name("https://me:x@host/vllm-project/vllm.git") == name("https://host/vllm-project/vllm.git")
    assert name("https://host/vllm-project/vllm.git").startswith("vllm-project-vllm-")
    assert name("https://host/a/vllm.git") != name("https://host/b/vllm.git")
    assert name("https://host/" + "x" * 300)
    assert not name("/a/..").startswith(".")
