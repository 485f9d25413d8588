"""The compare command as it is typed, and as it prints: never wider than a terminal of eighty columns."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from builder.cli import measure_cli
from builder.commands.comparing import KeptLikeness
from builder.lab.measure import image_likeness
from builder.lab.measure.image_likeness import ImageLikeness
from tests import json_outputs, projects
from tests.conftest import WITHOUT_ENGINE, run_command
from tests.lab.measure.openai_server import Behaviour
from tests.lab.measure.test_image_likeness import SMALL, First, compare, rate, rater

if TYPE_CHECKING:
    from pathlib import Path


def kept(first: First, likeness: ImageLikeness, within: float | None = 0.005) -> KeptLikeness:
    sides = (first[1],) * 2
    outcome = image_likeness.likeness_outcome(likeness, SMALL, sides, {"reference": "small:1"}, within)
    return KeptLikeness(
        "small:1", "small:2", "Org/Model", likeness, outcome, None, within, ("small:2 has an FP8 cache",)
    )


@pytest.mark.slow
def test_a_difference_is_printed_and_is_json(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = rate(Behaviour(rater=rater()))
    result = kept(first, compare(first, Behaviour(rater=rater(loss=0.6))))
    measure_cli.print_likeness(result, "")
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines[:15])) <= 80  # the table; what comes below is folded
    assert lines[0].startswith("small:2 compared with small:1, Org/Model: different (")
    assert lines[1].split() == ["texts", "to", "1k"]
    assert "arithmetic  different" in lines
    assert 'they first differ at prompt 1, token 2: "!" instead of "?"' in " ".join(line.strip() for line in lines)
    assert "required: within 0.5 % (failed)" in lines
    json_outputs.parsed("compare", _printed(result, capsys))


@pytest.mark.slow
def test_more_texts_are_counted_from_the_texts_of_this_run(capsys: pytest.CaptureFixture[str]) -> None:
    first = rate(Behaviour(rater=rater()))
    likeness = compare(first, Behaviour(rater=rater()))
    total = likeness.totals[0]
    twice = replace(total.compared, verdict="cannot tell", needed=2 * total.texts)
    result = kept(first, replace(likeness, verdict="cannot tell", totals=(replace(total, compared=twice),)))
    for times, said in (
        (1, "`--times 2` uses enough"),
        (3, "`--times 6` uses enough"),
        (60, "even `--times 100` does not"),
    ):
        outcome = replace(result.outcome, sampling={**result.outcome.sampling, "times": times})
        measure_cli.print_likeness(replace(result, outcome=outcome), "")
        assert said in capsys.readouterr().err


def _printed(result: KeptLikeness, capsys: pytest.CaptureFixture[str]) -> str:
    from builder.cli.output import print_json

    print_json(measure_cli.likeness_document(result))
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("1", "2", "3"), "expected one or two numbers, and at most one model or recipe"),
        (("1", "Org/A", "Org/B"), "expected one or two numbers, and at most one model or recipe"),
        (("small:1", "--set", "x"), "--set"),
        (("1", "chat"), "images.lock has no image `small:1`"),
        (("small:latest", "2", "chat"), "images.lock has no image `small:latest`"),
        (("small", "2"), "a number is written IMAGE:N"),
        (("1", "--sessions", "nowhere"), "nowhere"),
    ],
)
def test_what_names_no_two_sides_is_refused(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    project = projects.make(tmp_path)
    done = run_command(project, "compare", *arguments, code=2, environ=WITHOUT_ENGINE)
    assert message in done.stderr
