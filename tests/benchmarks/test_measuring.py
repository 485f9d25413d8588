"""The tables of measurements: medians, ranges, ratios, and targets reached or missed."""

from __future__ import annotations

from benchmarks.measuring import RATIO, Grid, Row, Table, in_turn, markdown


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def last_cells(row: Row) -> list[str]:
    return cells(markdown(Table("A title", "How.", [row])).splitlines()[-1])


def test_a_row_has_both_medians_their_ranges_and_the_ratio() -> None:
    shown = last_cells(Row("`ours`", [0.2, 0.1, 0.4], "`theirs`", [0.4, 0.5, 0.3], 0.6, RATIO))
    assert shown == [
        "`ours`",
        "200 ms (100-400)",
        "`theirs`",
        "400 ms (300-500)",
        "0.50",
        "≤ 0.6 times: reached",
    ]


def test_what_is_missed_is_said() -> None:
    assert last_cells(Row("slow", [0.3], reach=0.25))[-1] == "≤ 250 ms: **missed**"
    assert last_cells(Row("slow", [0.3], "quick", [0.1], 1.5, RATIO))[-1] == "≤ 1.5 times: **missed**"


def test_long_times_are_seconds_and_small_ratios_keep_their_digits() -> None:
    assert last_cells(Row("long", [2.04], "longer", [90.0]))[1:5] == ["2.0 s", "longer", "90.0 s", "0.023"]


def test_a_grid_has_a_column_for_each_size() -> None:
    shown = markdown(Grid("Growth", "How.", ["1 mod", "10 mods"], {"build": [[0.1, 0.2, 0.3], [2.0, 3.0, 4.0]]}))
    assert [cells(line) for line in shown.splitlines()[4:]] == [
        ["what", "1 mod", "10 mods"],
        ["---", "--:", "--:"],
        ["build", "200 ms (100-300)", "3.0 s (2.0-4.0)"],
    ]


def test_actions_take_turns_after_one_of_each_that_does_not_count() -> None:
    done: list[str] = []
    ours, theirs = in_turn(2, lambda: done.append("a"), lambda: done.append("b"))
    assert done == ["a", "b"] * 3
    assert len(ours) == len(theirs) == 2
