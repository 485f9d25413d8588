"""The drawing of a history: axes that hold what is drawn, lines that join only what can be compared."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from builder.lab.report import html
from builder.lab.report.page import PageFigure, PageRun, PageStep


def figure(mean: float, std: float = 1.0, name: str = "tg", unit: str = "tokens/s", **at: Any) -> PageFigure:
    return PageFigure(name, at, unit, "higher", mean, std, 3)


def run(*figures: PageFigure, **changes: Any) -> PageRun:
    made = PageRun("bench", "quick", "pass", "proven", (), "", "", "2026", 60, "1", "p", "GB10", "f", figures)
    return replace(made, **changes)


def step(number: int, *runs: PageRun, **changes: Any) -> PageStep:
    made = PageStep(f"small:{number}", "2026", "0.30", "", "", 0, False, "untested", "", None, runs)
    return replace(made, **changes)


def heights(path: str) -> list[int]:
    """The heights that a path of moves and relative lines goes through."""
    y, gone = 0, []
    for letter, _, down in re.findall(r"([Ml])(\d+)\s?(-?\d+)", path):
        y = int(down) if letter == "M" else y + int(down)
        gone.append(y)
    return gone


def test_more_is_higher_and_all_of_it_is_inside() -> None:
    plot = html.plot_steps([step(n, run(figure(mean, depth=0))) for n, mean in enumerate((40.0, 50.0, 45.0))])
    panel = plot.panels[0]
    first, second, third = heights(panel.lines[0].line)
    assert second < third < first
    assert all(panel.top <= y <= panel.bottom for y in (first, second, third))
    assert all(panel.top <= y <= panel.bottom for y, _ in panel.ticks)
    assert 2 <= len(panel.ticks) <= 6


def test_equal_values_and_one_value_have_an_axis_too() -> None:
    for steps in ([step(1, run(figure(0.0, 0.0, depth=0)))], [step(n, run(figure(7.0, 0.0))) for n in (1, 2)]):
        panel = html.plot_steps(steps).panels[0]
        assert panel.ticks
        assert all(panel.top <= y <= panel.bottom for y in heights(panel.lines[0].line))


def test_a_line_breaks_where_runs_cannot_be_compared() -> None:
    steps = [step(n, run(figure(40 + n, depth=0), protocol=protocol)) for n, protocol in enumerate("aabb")]
    assert html.plot_steps(steps).panels[0].lines[0].line.count("M") == 2


def test_a_stale_run_is_told_apart() -> None:
    steps = [step(1, run(figure(40, depth=0))), step(2, run(figure(41, depth=0), stale=("the image",)))]
    line = html.plot_steps(steps).panels[0].lines[0]
    assert (line.dots.count("M"), line.stale.count("M")) == (1, 1)


def test_runs_of_others_are_not_drawn() -> None:
    assert not html.plot_steps([step(1, run(figure(40, depth=0), foreign="elsewhere"))]).panels


def test_one_line_for_each_depth_with_the_fewest_requests() -> None:
    every = [figure(40, depth=depth, concurrency=count) for depth in (0, 32768, 131072) for count in (8, 1, 4)]
    lines = html.plot_steps([step(1, run(*every))]).panels[0].lines
    assert [line.label for line in lines] == ["at 0", "at 32k", "at 128k"]
    assert len({line.label_y for line in lines}) == 3  # beside each other, though the values are the same


def test_the_profile_with_most_numbers_is_drawn() -> None:
    steps = [step(1, run(figure(40), name="rare")), *(step(n, run(figure(9), name="usual")) for n in (2, 3))]
    assert html.plot_steps(steps).profile == "usual"


def test_a_step_back_is_an_arc_of_its_own_kind() -> None:
    steps = [step(1), step(2, origin="small:3", event="rolled back", place=3), step(3, origin="small:1", place=2)]
    assert [move.is_back for move in html.plot_steps(steps).moves] == [True, False]


def test_numbers_of_several_repositories_are_told_apart() -> None:
    first, second = step(1, image="vllm-node-theirs:1"), step(1, image="vllm-node-ours:1")
    assert [(column.label, column.repository) for column in html.plot_steps([first, second]).columns] == [
        ("1", "theirs"),
        ("1", "ours"),
    ]
    assert [column.repository for column in html.plot_steps([step(1), step(2)]).columns] == ["", ""]


def test_only_a_drawing_whose_newest_number_a_phone_would_not_show_begins_at_its_end() -> None:
    """At its end a short one is blank."""
    assert [html.plot_steps([step(n) for n in range(count)]).is_long for count in (1, 3, 4, 12)] == [
        False,
        False,
        True,
        True,
    ]
