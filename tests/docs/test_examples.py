"""Finding the examples in a page, running them in a terminal, and what is the same in every run."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from docs import examples, terminal

if TYPE_CHECKING:
    from pathlib import Path

PAGE = """\
# Title

```console
$ one
first
$ two \\
> more
$ three
```

```sh
$ not one
```

```console
$ four
second

third
```
"""


def test_the_examples_of_a_page() -> None:
    parsed = [(example.command, example.output) for example in examples.examples(PAGE)]
    assert parsed == [("one", "first"), ("two \\\nmore", ""), ("three", ""), ("four", "second\n\nthird")]


def test_a_page_is_filled_with_what_was_printed() -> None:
    page = examples.filled(PAGE, ["1", "2\n2", "", "4"])
    assert [example.output for example in examples.examples(page)] == ["1", "2\n2", "", "4"]
    assert page.startswith(
        "# Title\n\n```console\n$ one\n1\n$ two \\\n> more\n2\n2\n$ three\n```\n\n```sh\n$ not one\n"
    )


@pytest.mark.parametrize(
    ("output", "otherwise"),
    [
        ("built x:1 in 2 min 04 s: 5.3 GB, 0 of 8 steps cached", "built x:1 in 31.5 s: 990 MB, 6 of 9 steps cached"),
        (
            "      cached  [a 1/2] b\nbuilt x:1 in 1.0 s",
            "      12.4 s  [a 1/2] b\n 3 min 04 s  [a 2/2] c\nbuilt x:1 in 2 s",
        ),
        ("x:1  just now   5.3 GB", "x:1  12 min ago  5 GB"),
        ("hash  sha256:" + "a1" * 32, "hash\n  sha256:" + "b2" * 32),
        ("built x:1 in 1 s, of 9 steps all\n  cached", "built x:1 in 11 min 04 s, of\n  9 steps all cached"),
        ("built x:1 in 1 min 19 s, 7 of 9 steps\n  cached", "built x:1 in 20.6 s, 7 of 9 steps cached"),
        ("on linux/amd64 at 2026-11-20T22:00:00Z", "on linux/arm64 at 2027-01-01T00:00:00Z"),
        (
            "building x, because\n  it is new",
            "debian:12 is pinned to the image in this engine, because the\n  request to its registry failed: refused;\n"
            "  `builder lock --update base` asks the registry again\nbuilding x, because\n  it is new",
        ),
    ],
)
def test_what_differs_between_runs_is_taken_out(output: str, otherwise: str) -> None:
    assert examples.normal(output) == examples.normal(otherwise)


@pytest.mark.parametrize(
    ("output", "otherwise"),
    [("built x:1 in 1.0 s", "built x:2 in 1.0 s"), ("x:1  good", "x:1  bad"), ("vllm 0.32.0", "vllm 0.33.0")],
)
def test_what_matters_stays(output: str, otherwise: str) -> None:
    assert examples.normal(output) != examples.normal(otherwise)


def test_a_terminal_shows_what_a_user_would_see(tmp_path: Path) -> None:
    line = "tput cols; printf 'gone\\rhere\\n' >&2; printf '%0100d\\n' 7; test -t 1 && echo terminal"
    output = terminal.text(terminal.run(line, tmp_path, os.environ))
    assert output.splitlines() == ["80", "here", "7".rjust(100, "0"), "terminal"]


RAN = """\
building x
       0.1 s  [base 1/3] FROM docker.io/library/debian:bookworm-slim
      cached  [base 2/3] the Debian packages
      12.4 s  [mod-1 1/1] mod one
       0.1 s  exporting to image
built x:1 in 1.0 s
"""


@pytest.mark.parametrize(
    "shown",
    [
        RAN,
        RAN.replace("cached", "1 min 04 s"),
        RAN.replace("       0.1 s  [base 1/3] FROM docker.io/library/debian:bookworm-slim\n", ""),
        RAN.replace("       0.1 s  exporting to image\n", ""),
    ],
)
def test_steps_are_the_same_whatever_time_they_took(shown: str) -> None:
    assert examples.differing_steps(shown, RAN) == frozenset()


@pytest.mark.parametrize(
    "shown",
    [
        RAN.replace("[base 1/3]", "[toolchain 1/3]"),
        RAN.replace("[base 1/3]", "[base 1/4]"),
        RAN.replace("mod one", "mod two"),
        RAN.replace("      cached  [base 2/3] the Debian packages\n", ""),
        RAN.replace("[base 2/3] the", "[base 2/3] all"),
    ],
    ids=["a stage that there is not", "another number of steps", "another step", "one less", "other words"],
)
def test_a_step_that_an_image_does_not_have_is_found(shown: str) -> None:
    assert examples.differing_steps(shown, RAN) != frozenset()
