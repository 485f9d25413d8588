"""Ranges of versions that are held against each other, those that are none by PEP 440 among them."""

from __future__ import annotations

import pytest
from packaging.specifiers import SpecifierSet

from builder.pinning import version_ranges


@pytest.mark.parametrize("version", ["1.0", "2.11.0a0+nv25", "2.11.0a0~nv", "nightly", "0.7.2-dev_abc!x"])
def test_a_version_alone_agrees_with_itself_and_with_no_other(version: str) -> None:
    alone = version_ranges.only(version)
    assert version_ranges.exact(alone) == version
    assert version_ranges.agree(alone, version_ranges.only(version))
    assert not version_ranges.agree(alone, SpecifierSet("==9.9"))
