"""The mutants that are made of a text."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder.base import yaml_file
from tests.mutation import __main__ as command
from tests.mutation import mutants

MODULE = '''\
"""A page of the program."""
LIMIT: int = 8


def pick(numbers: list[int], name: str, strict: bool = False) -> str:
    """One of them."""
    if not numbers or len(numbers) > LIMIT:
        raise ValueError(f"{name} has {len(numbers)} numbers", "too-many")
    try:
        return name + str(max(numbers))
    except (TypeError, KeyError):
        print(name, "nothing", "is here")
    return name.removeprefix("latest")
'''


@pytest.fixture
def changed(tmp_path: Path) -> set[str]:
    """Each line that a mutant makes of `MODULE`."""
    (tmp_path / "page.py").write_text(MODULE, encoding="utf-8")
    found = mutants.of_file(tmp_path, "page.py")
    assert all(mutants.is_change(tmp_path, mutant) for mutant in found)
    lines = MODULE.splitlines()
    return {
        line.strip()
        for mutant in found
        for line in mutant.apply(MODULE).splitlines()
        if line not in lines and line.strip()
    }


@pytest.mark.parametrize(
    "line",
    [
        "LIMIT: int = 9",
        "def pick(numbers: list[int], name: str, strict: bool = True) -> str:",
        "if (numbers) or len(numbers) > LIMIT:",
        "if not numbers and len(numbers) > LIMIT:",
        "if not numbers or len(numbers) >= LIMIT:",
        "if not (not numbers or len(numbers) > LIMIT):",
        "return name + str(min(numbers))",
        'return ""',
        "except (KeyError,):",
        "except (TypeError,):",
        'print("nothing", name, "is here")',
        "print(name, 'nothingx', \"is here\")",
        'return name.removesuffix("latest")',
        "return name.removeprefix('latestx')",
        "pass",
    ],
)
def test_behaviour_is_changed(changed: set[str], line: str) -> None:
    assert line in changed


def test_words_types_and_errors_are_left_alone(changed: set[str]) -> None:
    assert not [line for line in changed if line.startswith(("raise", '"""'))]
    assert not [line for line in changed if "is here" in line and "is herex" in line]


def test_a_sample_keeps_what_did_not_change(tmp_path: Path) -> None:
    page = tmp_path / "page.py"
    page.write_text(MODULE, encoding="utf-8")
    first = mutants.sample(tmp_path, ["page.py"], 4)
    assert len({mutant.line for mutant in first}) == 4
    page.write_text(f"# a comment\n{MODULE}", encoding="utf-8")
    moved = mutants.sample(tmp_path, ["page.py"], 4)
    assert [(each.key, each.line + 1) for each in first] == [(each.key, each.line) for each in moved]
    assert first != mutants.sample(tmp_path, ["page.py"], 4, seed="another")


def test_each_mutant_judged_to_be_equivalent_still_exists() -> None:
    """A key of changed code would judge nothing, silently."""
    text = command.EQUIVALENT.read_text(encoding="utf-8")
    judged = [" ".join(entry["mutant"].split()) for entry in yaml_file.load(text, command.EQUIVALENT.name)]
    files = sorted({key.split()[0] for key in judged})
    found = {" ".join(mutant.key.split()) for file in files for mutant in mutants.of_file(command.CHECKOUT, file)}
    assert [key for key in judged if key not in found] == []
