"""What differs between the images that a pointer moves between."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from builder.numbers import pointers
from builder.numbers.pointers import PointerMove
from tests.commands import kept
from tests.plan.test_making import cpu_plan

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("gone", [1, 2])
def test_where_a_build_directory_is_gone_nothing_is_said_to_differ(tmp_path: Path, gone: int) -> None:
    numbers = kept.start(tmp_path)
    first, second = numbers.add(cpu_plan()), numbers.add(cpu_plan("linux/arm64"))
    moves = [PointerMove("cpu", False, second, first)]
    assert pointers.differences(numbers.project, numbers.lock, moves)
    shutil.rmtree(numbers.folder((first, second)[gone - 1]))
    assert pointers.differences(numbers.project, numbers.lock, moves) == ()
