from __future__ import annotations

import subprocess
from itertools import groupby
from pathlib import Path, PurePath

import pytest

from tests import ordering, projects, workers


@pytest.mark.parametrize(
    ("changed", "distance"),
    [
        ("builder/plan/making.py", 0),
        ("tests/plan/test_making.py", 0),
        ("builder/plan/rules.py", 1),
        ("tests/plan/golden.py", 1),
        ("builder/lock/text.py", 2),
        ("README.md", 2),
    ],
)
def test_what_a_test_file_has_to_do_with_a_change(changed: str, distance: int) -> None:
    assert ordering.distance(PurePath("tests/plan/test_making.py"), [PurePath(changed)]) == distance


def test_a_change_is_what_git_does_not_have(tmp_path: Path) -> None:
    for name in ("same.py", "edited file.py", "moved.py"):
        projects.write(tmp_path / name, "1\n")
    identity = ["-c", "user.name=Somebody", "-c", "user.email=somebody@example.org"]
    for argv in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "--message=all"]):
        subprocess.run(["git", *identity, *argv], cwd=tmp_path, check=True)
    assert ordering.changed(tmp_path) == frozenset()
    projects.write(tmp_path / "edited file.py", "2\n")
    projects.write(tmp_path / "new/added.py", "2\n")
    (tmp_path / "moved.py").rename(tmp_path / "elsewhere.py")
    names = ("edited file.py", "new/added.py", "moved.py", "elsewhere.py")
    assert ordering.changed(tmp_path) == {PurePath(name) for name in names}


def test_without_git_nothing_is_known_to_have_changed(tmp_path: Path) -> None:
    assert ordering.changed(tmp_path) == frozenset()


@pytest.mark.slow
def test_an_order_that_a_word_gives(request: pytest.FixtureRequest) -> None:
    items = request.session.items
    first, again, other = (ordering.shuffled(items, workers.group, seed) for seed in ("a", "a", "b"))
    assert first == again
    assert first != other
    assert sorted(map(id, first)) == sorted(map(id, items))
    groups = [group for group, _ in groupby(first, workers.group)]
    assert len(groups) == len(set(groups))  # a group stays together
