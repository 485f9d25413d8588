from __future__ import annotations

import pytest

from builder.base.words import did_you_mean


@pytest.mark.parametrize(
    ("word", "suggestion"),
    [("bild", "did you mean build?"), ("build", "did you mean build?"), ("xyz", ""), ("", "")],
)
def test_the_nearest_choice_is_suggested(word: str, suggestion: str) -> None:
    assert did_you_mean(word, ["build", "rollback"]) == suggestion


def test_several_are_suggested_where_several_are_wanted() -> None:
    assert did_you_mean("model-1", iter(["model-2", "model-3", "other"]), most=2, code=True) in {
        "did you mean `model-2` or `model-3`?",
        "did you mean `model-3` or `model-2`?",
    }
