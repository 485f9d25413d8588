"""Bake files mean what the plan says, word for word."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

import pytest

from builder.plan import making

if TYPE_CHECKING:
    from pathlib import Path

    from builder.engine.client import Endpoint


TEXTS = ["${HOME}", "$${HOME}", "$$${x} %{ if true }y%{ endif }", "%%{", "$", "100 % {sure}", "a\n${b}", "§ ${"]


@pytest.mark.parametrize("text", TEXTS)
def test_what_is_written_is_read(text: str) -> None:
    document = {"target": {"image": {"labels": {text: text}, "platforms": [text], "epoch": 1}}}
    assert making.load_bake(making.dump_bake(document)) == document


@pytest.mark.parametrize("text", ['{"a": 1, "a": 2}', '{"a": {"b": 1, "b": 1}}', '{"a": "${b}"}', '{"%{b}": 1}', "{"])
def test_what_was_never_written_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is repeated|an expression|Expecting"):
        making.load_bake(text)


@pytest.mark.engine
def test_bake_takes_no_text_for_an_expression(endpoint: Endpoint, tmp_path: Path) -> None:
    labels = {f"builder.{number}": text for number, text in enumerate(TEXTS)}
    (tmp_path / "Dockerfile").write_text("FROM scratch\n")
    (tmp_path / "bake.json").write_text(making.dump_bake({"target": {"image": {"context": ".", "labels": labels}}}))
    argv = [*endpoint.buildx, "bake", "-f", "bake.json", "--print", "image"]
    printed = subprocess.run(argv, cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    # It prints what can be read again.
    assert making.load_bake(printed)["target"]["image"]["labels"] == labels
    assert json.loads(printed)["target"]["image"]["labels"] != labels


@pytest.mark.parametrize(
    ("text", "field"), [("src=a", "src=a"), ("src=a,b", '"src=a,b"'), ('a"b', '"a""b"'), ("a\nb", '"a\nb"')]
)
def test_a_field_of_an_option_is_quoted_if_buildx_would_split_it(text: str, field: str) -> None:
    assert making.csv_field(text) == field
