from __future__ import annotations

import pytest

from builder import yamlfile
from builder.errors import FileProblemsError, Place

TEXT = "a: 1\nb:\n  - x\n  - {c: y}\n7: z\n"


def test_keys_stay_text_and_dates_too() -> None:
    assert yamlfile.load("7: 2026-11-20\n", "f") == {"7": "2026-11-20"}


def test_every_value_has_a_place() -> None:
    assert yamlfile.places(TEXT, "f") == {
        (): Place("f", 1, 1),
        ("a",): Place("f", 1, 1),
        ("b",): Place("f", 2, 1),
        ("b", 0): Place("f", 3, 5),
        ("b", 1): Place("f", 4, 5),
        ("b", 1, "c"): Place("f", 4, 6),
        ("7",): Place("f", 5, 1),
    }


def test_what_has_no_place_has_that_of_what_is_around_it() -> None:
    known = yamlfile.places(TEXT, "f")
    assert yamlfile.place_of(("b", 1, "gone"), known, "f") == Place("f", 4, 5)
    assert yamlfile.place_of((), {}, "f") == Place("f", 1, 1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\n  b: 2\n", "f:2:4: mapping values are not allowed in this context"),
        ("a: 1\na: 2\n", "f:2:1: the key `a` stands twice"),
        ("? [1]\n: 2\n", "f:1:3: a key must be plain text"),
        ("a: \x00\n", "f:1:1: "),
        ("[" * 100_000, "f:1:1: blocks within blocks, too deep"),
        ("a: !!python/object/apply:os.system [id]\n", "f:1:4: could not determine a constructor"),
    ],
)
def test_what_is_not_yaml_is_refused_with_its_place(text: str, said: str) -> None:
    with pytest.raises(FileProblemsError) as caught:
        yamlfile.load(text, "f")
    assert str(caught.value).startswith(said)
