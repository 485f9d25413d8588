"""What ^C has left is told with what to do next."""

from __future__ import annotations

import pytest

from builder.cli import main
from builder.cli.main import TABLE


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["build", "chat"], "interrupted: nothing changed; run it again, finished steps are cached"),
        (["--project", "x", "download", "chat"], "interrupted: run it again, and it goes on where it was"),
        (["list"], "interrupted"),
        ([], "interrupted"),
    ],
)
def test_a_command_says_what_it_left(arguments: list[str], told: str) -> None:
    assert main.sentence(arguments, KeyboardInterrupt()) == told


def test_what_a_command_knows_itself_comes_first() -> None:
    assert main.sentence(["build"], KeyboardInterrupt("one stays")) == "interrupted: one stays"


def test_only_commands_are_told_of() -> None:
    assert set(main._LEFT) <= set(TABLE)
