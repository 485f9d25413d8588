"""The colours of `list`: words stand beside them, and columns stay where they are."""

from __future__ import annotations

import pytest

from builder.cli import output


def test_what_is_current_or_bad_has_a_colour_and_the_columns_stay() -> None:
    rows = [("small:2", output.word("current"), "Org/M"), ("small:1", output.word("bad"), "-")]
    plain = [("small:2", "current", "Org/M"), ("small:1", "bad", "-")]
    coloured, without = (output.lines(("IMAGE", "STATE", "MODELS"), each, 80) for each in (rows, plain))
    assert list(map(output.columns_of, coloured)) == list(map(output.columns_of, without))
    assert coloured != without
    assert output.word("untested") == "untested"


@pytest.mark.parametrize("setting", [{"TERM": "dumb"}, {"NO_COLOR": "1"}])
def test_a_terminal_that_knows_no_colours_gets_none(monkeypatch: pytest.MonkeyPatch, setting: dict[str, str]) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert output.colour() is None
    for name, value in setting.items():
        monkeypatch.setenv(name, value)
    assert output.colour() is False
