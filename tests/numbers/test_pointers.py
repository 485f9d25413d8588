"""What differs between the images that a pointer moves between, and which it does not move to."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from builder.base.errors import ConflictError
from builder.lock.model import ImageName, Lock, Pairing
from builder.numbers import pointers
from builder.numbers.pointers import PointerMove
from tests import locks
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


def test_a_bad_image_is_refused_with_what_takes_the_mark_away() -> None:
    name, first = ImageName("small", 1), ImageName("small", 2)
    lock = Lock().with_image(name, locks.numbered()).with_image(first, locks.numbered())
    paired = lock.with_pairing("Org/M", Pairing(name, status="bad", note="loops")).with_pairing("Org/M", Pairing(first))
    moves = [PointerMove("small", False, first, name), PointerMove("Org/M", True, first, name)]
    pointers.refuse_bad(lock, moves)
    with pytest.raises(ConflictError, match="Org/M on small:1 is marked bad: loops$") as refused:
        pointers.refuse_bad(paired, moves)
    assert refused.value.hint == "`--force` uses the image anyway"
    bad = paired.with_image(name, replace(locks.numbered(), status="bad"))
    with pytest.raises(ConflictError, match="small:1 is marked bad$") as refused:
        pointers.refuse_bad(bad, moves)
    assert refused.value.hint.endswith("; `builder mark small:1 unmarked` removes the mark")
