"""Quoting keeps every string, and what it leaves plain is a string to PyYAML too."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.errors import UsageError
from builder.lock.quoting import quote, unquote
from builder.yaml.yaml_file import load

if TYPE_CHECKING:
    from hypothesis.strategies import DataObject, SearchStrategy


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        ("debian:bookworm-slim", "debian:bookworm-slim"),
        ("transformers>=5", "transformers>=5"),
        ("ray[default]", "ray[default]"),
        ("two words", "two words"),
        ("2026-11-20T22:00:00Z", "2026-11-20T22:00:00Z"),
        ("0.32.0", "0.32.0"),
        ("", '""'),
        ("0.32", '"0.32"'),
        ("1e3", '"1e3"'),
        ("0o17", '"0o17"'),
        ("12:30", '"12:30"'),
        ("2026-11-20", '"2026-11-20"'),
        ("Null", '"Null"'),
        ("off", '"off"'),
        ("-x", '"-x"'),
        ("a: b", '"a: b"'),
        ("a #b", '"a #b"'),
        ("läuft", '"läuft"'),
        ('say "no"\\\n', '"say \\"no\\"\\\\\\n"'),
        ("\x00\x85\u2028\ufeff", '"\\u0000\\u0085\\u2028\\ufeff"'),
    ],
)
def test_what_is_quoted(text: str, quoted: str) -> None:
    assert quote(text) == quoted
    assert (unquote(quoted) if quoted.startswith('"') else quoted) == text


@settings(deadline=None)
@given(data=st.data())
def test_every_text_is_one_line_and_reads_back(texts: SearchStrategy[str], data: DataObject) -> None:
    text = data.draw(texts)
    quoted = quote(text)
    assert quoted.isprintable() or any(ord(character) > 0xA0 for character in quoted)
    assert len(quoted.splitlines()) == 1
    assert load(f"- {quoted}\n- a:\n    b: {quoted}\n", "x") == [text, {"a": {"b": text}}]


@settings(deadline=None)
@given(data=st.data())
def test_pyyaml_sees_the_same_text_but_for_times(texts: SearchStrategy[str], data: DataObject) -> None:
    text = data.draw(texts)
    seen = yaml.safe_load(f"a: {quote(text)}")["a"]
    assert seen == text or isinstance(seen, datetime)


def test_bytes_that_are_not_text_are_refused() -> None:
    with pytest.raises(UsageError, match=r"'caf\\udce9' is not UTF-8 text"):
        quote(b"caf\xe9".decode(errors="surrogateescape"))
