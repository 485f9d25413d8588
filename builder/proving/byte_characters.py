"""The characters by which byte-level tokenizers write bytes in their files: themselves where they are printed, else
those from 256 on (https://github.com/openai/gpt-2, src/encoder.py, bytes_to_unicode)."""

from __future__ import annotations

import functools


@functools.cache
def characters() -> tuple[str, ...]:
    """The character of each byte."""
    printed = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = [byte for byte in range(256) if byte not in printed]
    return tuple(chr(byte if byte in printed else 256 + others.index(byte)) for byte in range(256))


def read(text: str) -> bytes:
    """The bytes that a text of such characters stands for. Raises KeyError for another character."""
    values = _values()
    return bytes(values[character] for character in text)


@functools.cache
def _values() -> dict[str, int]:
    return {character: byte for byte, character in enumerate(characters())}
