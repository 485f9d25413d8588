"""``.env`` as bash reads simple assignments; what bash reads of the same text is the judge."""

from __future__ import annotations

import subprocess

import pytest

from builder.moving import checkout


def read(text: str) -> dict[str, str]:
    return checkout.parse_env_file(text, ".env").values


def problems(text: str) -> list[str]:
    return [f"{problem.location.line}: {problem.message}" for problem in checkout.parse_env_file(text, ".env").problems]


@pytest.mark.parametrize(
    "line",
    [
        "X=plain",
        "X='single $HOME `ls` \"quoted\"'",
        'X="double \'quoted\' and \\"escaped\\" \\\\ \\$HOME"',
        "export X=exported",
        "X=a'b'\"c\"d",
        "X=value # a comment",
        "X=no#comment",
        "X='# none' # one",
        "X=",
        "X=a\\ b\\#c",
        'X="one # two"',
        "  X=indented  ",
        "X=10.0.0.1,10.0.0.2",
        "X=a=b",
        'X="cost: 5$"',
    ],
)
def test_a_value_is_the_one_that_bash_gives_it(line: str) -> None:
    script = f'{line}\nprintf "%s" "$X"'
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, env={"HOME": "/h"})
    assert read(line) == {"X": done.stdout}


def test_blanks_are_taken_as_the_launcher_takes_them() -> None:
    assert read("X = spaced out\r\nY=two words # and a comment\n") == {"X": "spaced out", "Y": "two words"}


def test_what_bash_would_compute_is_a_problem_and_nothing_runs() -> None:
    text = 'A=$HOME/x\nB=$(touch /tmp/never)\nC=`date`\nD="${E}"\nF=fine\n'
    assert read(text) == {"F": "fine"}
    assert len(problems(text)) == 4
    assert problems(text)[0] == "1: A: bash would compute its value, which is not done here: left out"


def test_a_backslash_may_stand_for_itself_before_what_bash_computes_or_before_a_quote() -> None:
    assert problems('A="\\\\$HOME"\nB=\\\\$HOME\nC="open\\"\n') == [
        "1: A: bash would compute its value, which is not done here: left out",
        "2: B: bash would compute its value, which is not done here: left out",
        '3: C: its quote " is not closed: left out',
    ]


def test_lines_that_are_no_assignment_leave_the_others_alone() -> None:
    text = "# comment\n\nsource other\nA=1\nB='open\n9X=1\nA=2\n"
    assert read(text) == {"A": "2"}
    assert problems(text) == [
        "3: no assignment NAME=VALUE: left out",
        "5: B: its quote ' is not closed: left out",
        "6: no assignment NAME=VALUE: left out",
        "7: A stands in line 4 already: the last one counts",
    ]


def test_no_message_and_no_repr_shows_a_value() -> None:
    parsed = checkout.parse_env_file("CONTAINER_TOKEN=geheim1\nCONTAINER_TOKEN='geheim2\nX geheim3\n", ".env")
    assert "geheim" not in repr(parsed)
    assert len(parsed.problems) == 2
