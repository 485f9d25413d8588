"""Ranges of versions that are held against each other, those that are none by PEP 440 among them."""

from __future__ import annotations

import pytest
from packaging.specifiers import SpecifierSet

from builder.pins import agreement


@pytest.mark.parametrize("version", ["1.0", "2.11.0a0+nv25", "2.11.0a0~nv", "nightly", "0.7.2-dev_abc!x"])
def test_a_version_alone_agrees_with_itself_and_with_no_other(version: str) -> None:
    alone = agreement.only(version)
    assert agreement.exact_version(alone) == version
    assert agreement.agree(alone, agreement.only(version))
    assert not agreement.agree(alone, SpecifierSet("==9.9"))
