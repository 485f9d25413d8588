from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.definitions.recipes import recipe_texts

if TYPE_CHECKING:
    from pathlib import Path

RECIPE = "name: x\ncontainer: c\ncommand: x\n"


def notes(folder: Path, text: str) -> list[str]:
    parsed = recipe_texts.read(folder, text)
    assert parsed.recipe is not None, parsed.problems
    return [str(note) for note in parsed.notes]


def test_a_key_that_stands_twice_is_told(tmp_path: Path) -> None:
    text = f"{RECIPE}container: c\ndefaults:\n  port: 1\n  tp: 2\n  port: 2\n"
    assert notes(tmp_path, text) == [
        "r.yaml:4:1: `container` stands in line 2 already, with the same value",
        "r.yaml:8:3: `defaults.port` CONTRADICTS line 6: the last one counts: 2, and not 1",
    ]


def test_of_blocks_the_last_counts_as_a_whole(tmp_path: Path) -> None:
    text = f"{RECIPE}env: {{A: 1}}\nenv: {{B: 1}}\n"
    assert notes(tmp_path, text) == [
        "r.yaml:5:1: `env` CONTRADICTS line 4: the last one counts as a whole, and nothing of the earlier one does"
    ]
    loaded = recipe_texts.read(tmp_path, text).recipe
    assert loaded is not None
    assert loaded.env == {"B": 1}


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("builder", "it is ignored"),
        ("min_nodes", "it is ignored"),
        ("solo", "did you mean `solo_only`?"),
        ("default", "did you mean `defaults`?"),
        ("Mods", "it is ignored"),
        ("containers", "it is ignored"),
    ],
)
def test_an_unknown_key_is_told_with_what_is_near_and_lacking(tmp_path: Path, key: str, said: str) -> None:
    assert notes(tmp_path, f"{RECIPE}{key}: 1\n") == [f"r.yaml:4:1: unknown key `{key}`; {said}"]


def test_a_key_that_is_needed_and_misspelled(tmp_path: Path) -> None:
    parsed = recipe_texts.read(tmp_path, "name: x\ncontainer: c\ncomand: x\n")
    assert [str(problem) for problem in parsed.problems] == ["r.yaml:1:1: the key `command` is missing"]
    assert [str(note) for note in parsed.notes] == ["r.yaml:3:1: unknown key `comand`; did you mean `command`?"]
