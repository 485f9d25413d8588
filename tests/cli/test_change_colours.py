"""Colours beside the words and signs for what changed: no width changes, and no text."""

from __future__ import annotations

import click
import pytest

from builder.cli import diff_cli, output
from builder.lab.compare.changes import FileChange, PackageChange


def plain(text: str) -> str:
    return click.unstyle(output.visible(text))


@pytest.mark.parametrize(("word", "colour"), [("added", "green"), ("gone", "red"), ("changed", "yellow")])
def test_a_word_has_its_colour(word: str, colour: str) -> None:
    shown = output.word(word)
    assert output.visible(shown) == click.style(word, fg=colour)
    assert output.columns_of(shown) == len(word)


def test_other_words_and_lines_have_none() -> None:
    assert output.word("other files") == "other files"
    assert output.line(" as before") == " as before"


def test_the_lines_of_a_file_are_as_they_were_but_for_their_colour() -> None:
    lines = ("@@ -1 +1 @@", "-one", "+two")
    shown = list(diff_cli.of_files([FileChange("chat.jinja", "changed", lines, "")], full=True))
    assert [plain(line) for line in shown] == ["chat.jinja: changed", *(f"  {line}" for line in lines)]
    assert output.visible(shown[-1]) == f"  {click.style('+two', fg='green')}"


def test_packages_stay_in_their_columns() -> None:
    changes = [PackageChange("torch", "up", "2.10", "2.11"), PackageChange("triton", "in", None, "3.0")]
    shown = [plain(line) for line in diff_cli.packages("Python packages", changes, full=True)]
    assert shown[2:] == ["  up   torch   2.10 → 2.11", "  new  triton  3.0"]


def test_where_a_pointer_went_is_told_in_words() -> None:
    assert plain(output.moved("small:1", "small:2")) == "small:1 → small:2"
