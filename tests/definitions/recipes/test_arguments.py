from __future__ import annotations

import pytest

from builder.definitions import command


@pytest.mark.parametrize(
    ("words", "port"),
    [
        ("vllm serve x", 8000),
        ("vllm serve x --port 1", 1),
        ("vllm serve x --port=1 --port 2", 2),
        ("vllm serve x --port $PORT", None),
        ("vllm serve x --port ٣", None),
        ("vllm serve x --port", 8000),
    ],
)
def test_the_port(words: str, port: int | None) -> None:
    assert command.port(words.split()) == port


@pytest.mark.parametrize(
    ("words", "model", "served"),
    [
        ("vllm serve Org/M", "Org/M", ("Org/M",)),
        ("vllm serve Org/M --served-model-name a b --port 1", "Org/M", ("a", "b")),
        ("vllm serve Org/M --served-model-name=a", "Org/M", ("a",)),
        ("python3 -m vllm.entrypoints.openai.api_server --model Org/M", "Org/M", ("Org/M",)),
        ("vllm serve --port 1", None, ()),
        ("uvicorn server:app", None, ()),
    ],
)
def test_the_model_and_its_names(words: str, model: str | None, served: tuple[str, ...]) -> None:
    assert command.model(words.split()) == model
    assert command.served(words.split()) == served


def test_an_option_has_the_value_that_counts() -> None:
    words = ["vllm", "serve", "x", "--a", "1", "--a=2", "-b", "3", "--c"]
    assert command.option(words, "--a") == "2"
    assert command.option(words, "--b", "-b") == "3"
    assert command.option(words, "--c") is None
    assert command.option(words, "--d") is None


@pytest.mark.parametrize(
    ("words", "sizes"),
    [
        ("vllm serve x", {}),
        ("vllm serve x -tp 2", {"tp": 2}),
        ("vllm serve x --tensor-parallel-size=2 -pp 3 --data-parallel-size 4", {"tp": 2, "pp": 3, "dp": 4}),
        ("vllm serve x -tp 2 --tensor_parallel_size 4", {"tp": 4}),
        ("vllm serve x -tp $TP", {}),
    ],
)
def test_the_sizes_that_a_model_is_spread_by(words: str, sizes: dict[str, int]) -> None:
    assert command.parallelism(words.split()) == sizes


@pytest.mark.parametrize("option", ["--distributed-executor-backend ray", "--distributed-executor-backend=ray"])
def test_what_joins_machines_is_taken_out(option: str) -> None:
    assert command.without(["-a", *option.split(), "-b"], command.BACKEND) == ("-a", "-b")
    assert command.without([*option.split()[:1]], command.BACKEND) == ()
