from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from builder.definitions import command, recipe_problems
from tests.definitions.recipes import recipe_texts

if TYPE_CHECKING:
    from pathlib import Path


def problems(folder: Path, text: str, head: str = "") -> list[str]:
    recipe = recipe_texts.make(folder, text, head)
    return [
        str(problem) for problem in recipe_problems.json_option_problems(recipe, command.render_command(recipe, {}))
    ]


@pytest.mark.parametrize(
    ("value", "column", "said"),
    [
        ("'{{\"a\": 1,}}'", 25, 'a comma before the closing `}`: {"a": 1,}'),
        ("\"{{'a': 1}}\"", 18, "names and texts take double quotes, not single ones: {'a': 1}"),
        ("'{{\"a\": True}}'", 24, 'JSON writes `true` for `True`: {"a": True}'),
        ("'{{\"a\": 1'", 25, 'it has no end; a bracket, brace or quote is not closed: {"a": 1'),
        ("'{{\"a\" 1}}'", 23, "Expecting ':' delimiter: {\"a\" 1}"),
        ("'{{\"a\": 1}} x'", 28, 'Extra data: {"a": 1} x'),
        ("'{{\"a\": \\d}}'", 25, 'Expecting value: {"a": \\d}'),
    ],
)
def test_a_fault_is_told_where_it_stands(tmp_path: Path, value: str, column: int, said: str) -> None:
    (problem,) = problems(tmp_path, f"vllm serve x \\\n  --spec {value}")
    assert problem.startswith("r.yaml:5:")
    assert problem.endswith(f"the value of --spec is no JSON: {said}")


def test_the_column_is_that_of_the_file(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, 'vllm serve x \\\n  --a 1 --spec \'{{"n": 1, "m": oh}}\'')
    line, column = map(int, problem.split(":")[1:3])
    written = (tmp_path / "r.yaml").read_text(encoding="utf-8").splitlines()[line - 1]
    assert written[column - 1 :].startswith("oh")


def test_a_value_from_the_defaults_is_told_there(tmp_path: Path) -> None:
    head = "defaults:\n  port: 1\n  spec: '{\"n\": oh}'\n"
    (problem,) = problems(tmp_path, "vllm serve x --port {port} --spec '{spec}'", head)
    assert problem.startswith("r.yaml:5:16: the value of --spec is no JSON: ")


def test_a_backslash_that_bash_keeps_is_told(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, "vllm serve x --spec '{{\\\"n\\\": 1}}'")
    assert "bash keeps a backslash inside single quotes" in problem


def test_quotes_that_bash_takes_away_are_told(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, 'vllm serve x --spec {{"n":1}}')
    assert "put single quotes around the whole value" in problem


def test_a_value_that_bash_ends_at_a_space_is_told(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, 'vllm serve x --spec {{\\"n\\": 1}}')
    assert "bash ends it at a space" in problem


def test_only_the_part_around_the_fault_of_a_long_value_is_shown(tmp_path: Path) -> None:
    value = ", ".join(f'"name{n}": {n}' for n in range(30))
    (problem,) = problems(tmp_path, f"vllm serve x --spec '{{{{{value}, oh}}}}'")
    assert len(problem) < 160
    assert problem.endswith("oh}")


@pytest.mark.parametrize(
    "text",
    [
        "vllm serve x --spec '{{\"n\": 1}}'",
        "vllm serve x --chat-template '{{% x %}}'",
        'export N=1\nvllm serve x --spec "{{\\"n\\": $N}}"',
        "vllm serve x --spec=",
    ],
)
def test_what_is_no_fault(tmp_path: Path, text: str) -> None:
    assert problems(tmp_path, text) == []


def test_text_over_several_lines(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, 'vllm serve x \\\n  --spec \'{{\n    "a": 1,\n    "b": oh\n  }}\' --y 1')
    assert problem.startswith("r.yaml:7:12: ")
