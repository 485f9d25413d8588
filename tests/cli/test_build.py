"""The lines that `build` prints of its results."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builder.building.resolve import AlreadyBuilt, Built, ModelOutcome
from builder.cli import build_cli

BUILT = Built("tf5:2", ("Org/M", "Org/N"), (), 1.0, 10**9, 3, 1, 4, 2, (), "x.log")


@pytest.mark.parametrize(
    ("image", "advice"),
    [("tf5:1", "builder rollback Org/M --to 2"), ("node:2", "builder pair Org/M tf5:2")],
)
def test_the_way_to_an_image_that_is_there_leads_to_it(
    capsys: pytest.CaptureFixture[str], image: str, advice: str
) -> None:
    """`rollback` stays in the repository that the model is in, and ended in "is at number 2 already"."""
    build_cli._print_already_built(AlreadyBuilt("tf5:2", False, "", (ModelOutcome("Org/M", "elsewhere", image),)))
    assert capsys.readouterr().out.splitlines()[-1] == f"Org/M stays paired with {image}; `{advice}` moves it"


def test_a_model_that_comes_from_another_repository_is_told_with_that(capsys: pytest.CaptureFixture[str]) -> None:
    build_cli._print_built(replace(BUILT, taken_from={"Org/N": "node:7"}))
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:] == ["  paired with Org/M", "  paired with Org/N, in place of node:7"]
