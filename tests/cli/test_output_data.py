"""Values that commands return, as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from builder.cli import output
from builder.lock.model import ImageName


@dataclass(frozen=True)
class Part:
    name: str
    note: str = ""
    seconds: float | None = None
    whole: Part | None = None
    image: ImageName | None = None


WHOLE = Part("whole", "fine", 1.26)
PART = Part("part", whole=WHOLE, image=ImageName("tf5", 2))


def test_a_dataclass_is_its_fields_and_one_with_a_text_is_that() -> None:
    inner = {"name": "whole", "note": "fine", "seconds": 1.26, "whole": None, "image": None}
    assert output.data(PART) == {"name": "part", "note": "", "seconds": None, "whole": inner, "image": "tf5:2"}


def test_keys_choose_rename_reach_inside_and_round() -> None:
    keys = "title=name note? seconds~ above=whole.name took=whole.seconds~ top=whole.whole.name"
    expected = {"title": "part", "note": None, "seconds": None, "above": "whole", "took": 1.3, "top": None}
    assert output.data(PART, keys) == expected
    assert list(output.data(PART, keys)) == list(expected)


def test_sequences_and_mappings_hold_what_each_item_is() -> None:
    assert output.data([PART, WHOLE], "name") == [{"name": "part"}, {"name": "whole"}]
    assert output.data({ImageName("tf5", 1): (Path("a/b"), None)}) == {"tf5:1": ["a/b", None]}
    assert output.data(None, "name") is None


def test_keys_in_parentheses_choose_within() -> None:
    whole = Part("all", whole=PART)
    keys = "name inner=whole(title=name whole(name seconds~))"
    assert output.data([whole], keys) == [
        {"name": "all", "inner": {"title": "part", "whole": {"name": "whole", "seconds": 1.3}}}
    ]
    assert output.data(WHOLE, "whole(name) note?") == {"whole": None, "note": "fine"}
