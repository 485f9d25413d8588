"""The steps of a mixture that BuildKit has not run: those of what changed, and all that stand on them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from builder.lab.bisect import search
from tests.bisecting.test_mixture import between, git_plan, small_plan

if TYPE_CHECKING:
    from pathlib import Path

    from builder.lab.bisect.search import Difference


VALUES = {"vllm commit": "0" * 40}


def steps(found: Difference, taken: set[str], values: dict[str, str] | None = None) -> dict[str, str]:
    given = values or {}
    return search.titles(search.files(found, taken, given), search.targets(found, taken, given))


def test_a_commit_is_compiled_and_what_stands_on_it_is_made_anew(tmp_path: Path) -> None:
    found = between(
        tmp_path,
        git_plan("1" * 40, "0.19.1", "2026-10-01T10:00:00Z"),
        git_plan("2" * 40, "0.19.2", "2026-11-01T10:00:00Z"),
    )
    old, new = steps(found, set()), steps(found, {"vllm"})
    fresh = search.new_titles(steps(found, {"vllm"}, VALUES), old, new)
    assert fresh == ("the vllm wheel", "the built wheels", "build-metadata.yaml")
    assert search.new_titles(new, old, new) == ()


def test_a_file_of_a_mod_is_baked_anew_with_the_mods_after_it(tmp_path: Path) -> None:
    old = {"one": {"x": "1\n"}, "two": {"y": "1\n"}, "three": {"z": "1\n"}}
    found = between(tmp_path, small_plan(tmp_path / "a", old), small_plan(tmp_path / "b", {**old, "two": {"y": "2\n"}}))
    (axis,) = found.axes
    assert search.new_titles(steps(found, set(axis.units)), steps(found, set())) == ("mod two", "mod three")
