from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from builder.base.errors import FileProblemsError
from builder.definitions import command, recipe_problems
from tests.definitions.recipes import recipe_texts

if TYPE_CHECKING:
    from pathlib import Path

    from builder.definitions.recipe import Recipe


def words(recipe: Recipe) -> tuple[str, ...]:
    return command.render_command(recipe, {}).words


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--gpu-memory-utilization 0,8", "a number has no comma; 0.8 is meant"),
        ("--gpu_memory_utilization=0,8", "a number has no comma; 0.8 is meant"),
        ("--max-model-len 131,072", "a number has no comma; 131072 is meant"),
        ("-tp two", "a whole number is meant"),
        ("--gpu-memory-utilization 85", "a share of the memory is meant: more than 0, and 1 at most"),
        ("--gpu-memory-utilization most", "a number is meant, such as 0.85"),
    ],
)
def test_a_value_that_vllm_refuses(tmp_path: Path, options: str, said: str) -> None:
    recipe = recipe_texts.make(tmp_path, f"vllm serve x {options}")
    (problem,) = map(str, command.option_problems(recipe, words(recipe)))
    assert problem.endswith(f"{options.replace('=', ' ')}: {said}")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--port 80000", "a port is meant: 1 to 65535"),
        ("--port 0", "a port is meant: 1 to 65535"),
        ("--master-port=99999", "a port is meant: 1 to 65535"),
        ("--host 'a b'", "a host name or an address is meant, such as 0.0.0.0"),
        ('--host "a\nb"', "a host name or an address is meant, such as 0.0.0.0"),
        ('--served-model-name m "a\nb"', "a name has no line break and no control character"),
        ("--port 80a", "a port is meant: 1 to 65535"),
    ],
)
def test_a_name_that_is_none_is_in_no_command(tmp_path: Path, options: str, said: str) -> None:
    recipe = recipe_texts.make(tmp_path, f"vllm serve x {options}")
    with pytest.raises(FileProblemsError, match=said):
        command.render_command(recipe, {})
    assert [problem for problem in recipe_problems.recipe_problems(recipe) if said in problem.message]


@pytest.mark.parametrize(
    "options",
    [
        "--host ::1",
        "--host 0.0.0.0 --port 8000",
        "--host fe80::1%eth0",
        "--host my-spark.local",
        '--port "$PORT" --host "$(hostname)"',
        "--served-model-name a b/c:d",
    ],
)
def test_names_that_are_some(tmp_path: Path, options: str) -> None:
    recipe = recipe_texts.make(tmp_path, f"vllm serve x {options}")
    assert command.render_command(recipe, {}).words[:3] == ("vllm", "serve", "x")


def test_a_value_is_told_where_it_comes_from(tmp_path: Path) -> None:
    recipe = recipe_texts.make(
        tmp_path, "vllm serve x --gpu-memory-utilization {gpu}", "defaults: {port: 1, gpu: '0,8'}\n"
    )
    (problem,) = map(str, command.option_problems(recipe, words(recipe)))
    assert problem == "r.yaml:3:27: --gpu-memory-utilization 0,8: a number has no comma; 0.8 is meant"


@pytest.mark.parametrize(
    "text",
    [
        "vllm serve x --port 8000 --max-model-len 128k --gpu-memory-utilization 1 --max-num-batched-tokens auto",
        "vllm serve x --allowed-origins a,b --port 1 --trust-remote-code --seed -1",
        'P=1\nvllm serve x --port "$P"',
    ],
)
def test_values_that_vllm_takes(tmp_path: Path, text: str) -> None:
    recipe = recipe_texts.make(tmp_path, text)
    assert list(command.option_problems(recipe, words(recipe))) == []
    assert list(command.contradictions(recipe, words(recipe))) == []


def test_of_two_equal_options_the_last_counts(tmp_path: Path) -> None:
    recipe = recipe_texts.make(
        tmp_path, "vllm serve x --max-model-len 1 \\\n --a \\\n --max_model_len=2 -tp 1 --no-a -tp 1"
    )
    assert [str(note) for note in command.contradictions(recipe, words(recipe))] == [
        "r.yaml:6:4: `--max_model_len 2` CONTRADICTS `--max-model-len 1` before it; vLLM takes the last one",
        "r.yaml:6:28: `--no-a` CONTRADICTS `--a` before it; vLLM takes the last one",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "vllm serve x --middleware a --middleware b",
        "vllm serve x --a 1 --a 1",
        "if x; then\n vllm serve x --a 1\nelse\n vllm serve x --a 2\nfi",
    ],
)
def test_what_is_no_contradiction(tmp_path: Path, text: str) -> None:
    recipe = recipe_texts.make(tmp_path, text)
    assert list(command.contradictions(recipe, words(recipe))) == []
