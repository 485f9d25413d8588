"""The vocabulary of GPT-OSS's format, made of a model's tokenizer."""

from __future__ import annotations

import base64
import hashlib
import json

import pytest

from builder.lab.prove import model_files, prove

TOKENS = {b"!": 0, b" ": 1, b"\x00": 2, "ü".encode(): 3, b"\n\n": 4, b" the": 5}


def tokenizer(vocabulary: object) -> dict[str, bytes]:
    return {"tokenizer.json": json.dumps({"model": {"vocab": vocabulary}}).encode()}


def test_it_is_the_file_that_tiktoken_has(monkeypatch: pytest.MonkeyPatch) -> None:
    file = b"".join(base64.b64encode(token) + f" {rank}\n".encode() for token, rank in TOKENS.items())
    monkeypatch.setattr(prove, "SHA256", hashlib.sha256(file).hexdigest())
    # As byte-level tokenizers write them: https://huggingface.co/docs/tokenizers/api/pre-tokenizers, ByteLevel.
    written = {"Ġthe": 5, "ĊĊ": 4, "Ã¼": 3, "Ā": 2, "Ġ": 1, "!": 0}
    assert prove.harmony_vocabulary(tokenizer(written)) == file
    assert prove.harmony_vocabulary(tokenizer({**written, "x": 6})) is None


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"tokenizer.json": b"{"},
        {"tokenizer.json": b"[]"},
        {"tokenizer.json": b'{"model": {}}'},
        tokenizer(["a"]),
        tokenizer({"a": "b"}),
        tokenizer({"a": None}),
        tokenizer({"→": 0}),
        model_files.files(),
    ],
)
def test_another_tokenizer_has_none(files: dict[str, bytes]) -> None:
    assert prove.harmony_vocabulary(files) is None


@pytest.mark.parametrize(
    ("config", "spoken"),
    [(b'{"model_type": "gpt_oss"}', True), (b'{"model_type": "qwen3"}', False), (b"[]", False), (b"{", False)],
)
def test_it_is_the_config_that_decides(config: bytes, spoken: bool) -> None:
    assert prove.is_spoken({"config.json": config}) == spoken
    assert not prove.is_spoken({})
