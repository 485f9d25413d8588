# ruff: noqa: RUF001
from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from builder.definitions.recipes import repair
from builder.errors import Location, Problem

KEYS = ("name", "container", "mods", "defaults", "env", "command")


def test_a_broken_text_is_repaired() -> None:
    text = "mods:\n  • a\nenv:\nA: “1”\ncommand: |\nx\u00a0\u200b–host ‘b’\n"
    repaired = repair.repair(text, "r.yaml", KEYS)
    assert repaired.text == "mods:\n  - a\nenv:\n  A: \"1\"\ncommand: |\n  x --host 'b'\n"
    assert [str(problem.location) for problem in repaired.problems] == [
        *("r.yaml:2:3", "r.yaml:4:4", "r.yaml:4:6", "r.yaml:6:2", "r.yaml:6:3", "r.yaml:6:4", "r.yaml:6:10"),
        *("r.yaml:6:12", "r.yaml:4:1", "r.yaml:6:1"),
    ]


def test_a_repaired_text_needs_no_repair() -> None:
    text = "name: “x”\nmods:\n• a\ndefaults:\n\tport: 1\nhost: h\ncommand: |\n–a\n"
    once = repair.repair(text, "r.yaml", KEYS).text
    assert repair.repair(once, "r.yaml", KEYS).problems == ()


@given(st.text("ab –—“”\u200b\u00a0\t-:'\n", max_size=40))
def test_locations_lead_back_to_the_file(body: str) -> None:
    text = f"command: |\n{body}\nenv:\n{body}"
    repaired = repair.repair(text, "r.yaml", KEYS)
    before, after = text.split("\n"), repaired.text.split("\n")
    assert len(before) == len(after)
    for number, (old, new) in enumerate(zip(before, after, strict=True), 1):
        for column, char in enumerate(new, 1):
            (problem,) = repaired.written([Problem(Location("r.yaml", number, column), "")])
            assert problem.location.line == number
            if char in "ab":
                assert old[problem.location.column - 1] == char


def test_a_clean_text_stays_as_it_is() -> None:
    text = "name: x\ndefaults:\n  a: 'größe – x'\ncommand: |\n  x\n"
    repaired = repair.repair(text, "r.yaml", KEYS)
    assert (repaired.text, repaired.problems) == (text, ())
