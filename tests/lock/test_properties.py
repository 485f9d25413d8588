"""Properties of every lock that keeps the rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from builder.lock.lock_file import writing
from builder.lock.text import dump_lock

if TYPE_CHECKING:
    from hypothesis.strategies import DataObject, SearchStrategy

    from builder.lock.model import Lock


pytestmark = pytest.mark.slow


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_an_unchanged_lock_is_not_written_again(
    tmp_path_factory: pytest.TempPathFactory, locks: SearchStrategy[Lock], data: DataObject
) -> None:
    path = tmp_path_factory.mktemp("lock") / "images.lock"
    lock = data.draw(locks)
    with writing(path) as transaction:
        transaction.commit(lock)
        lock = transaction.lock  # each model has got the time since when its image serves it
    written, number = path.read_bytes(), path.stat().st_ino
    with writing(path) as transaction:
        assert transaction.lock == lock
        assert not transaction.commit(transaction.lock)
    assert (path.read_bytes(), path.stat().st_ino) == (written, number)
    assert written == dump_lock(lock).encode()
