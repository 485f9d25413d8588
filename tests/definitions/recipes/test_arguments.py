from __future__ import annotations

import pytest

from builder.definitions.recipes import arguments


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
    assert arguments.port(words.split()) == port


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
    assert arguments.model(words.split()) == model
    assert arguments.served(words.split()) == served


def test_an_option_has_the_value_that_counts() -> None:
    words = ["vllm", "serve", "x", "--a", "1", "--a=2", "-b", "3", "--c"]
    assert arguments.option(words, "--a") == "2"
    assert arguments.option(words, "--b", "-b") == "3"
    assert arguments.option(words, "--c") is None
    assert arguments.option(words, "--d") is None
