"""The moves that a rollback plans; its effects in the engine are tested with the builds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder.base.errors import NothingToDoError, UsageError
from builder.commands.rollback import RollbackSubject, planned_moves
from builder.lock.lock_file import read_lock
from builder.lock.model import ImageName, Lock, Model, NumberedImage, Pairing, Repository, Status, Version
from builder.lock.text import dump_lock
from builder.numbers.pointers import apply_moves
from tests import locks, projects
from tests.conftest import WITHOUT_ENGINE, run_command

REPO = "vllm-node-tf5"
STATUSES: tuple[Status, ...] = ("good", "bad", "untested")


def image(status: Status = "untested") -> NumberedImage:
    return NumberedImage("2026-11-20T12:00:00Z", "tf5", "linux/arm64", f"sha256:{15:064x}", "sha256:i", 1, status)


def lock(*statuses: Status, previous: tuple[int, ...] = ()) -> Lock:
    """Numbers 1, 2 … of one repository, the last one current, and a model that was paired with each in turn."""
    numbers = {n: image(status) for n, status in enumerate(statuses, start=1)}
    count = len(numbers)
    earlier = previous or tuple(range(count - 1, 0, -1))
    record = Repository(next=count + 1, current=count, previous=earlier, numbers=numbers)
    pairings = tuple(Pairing(ImageName(REPO, n)) for n in range(count - 1, 0, -1))
    return Lock(images={REPO: record}, models={"Org/M": Model(Pairing(ImageName(REPO, count)), pairings)})


BOTH = RollbackSubject("recipe", REPO, "Org/M")
MODEL = RollbackSubject("Org/M", None, "Org/M")
TAG = RollbackSubject(REPO, REPO, None)


def where(now: Lock) -> tuple[int | None, int]:
    return now.images[REPO].current, now.models["Org/M"].pairing.image.number


@pytest.mark.parametrize(("subject", "after"), [(BOTH, (2, 2)), (MODEL, (3, 2)), (TAG, (2, 3))])
def test_only_what_was_named_moves_to_the_one_before(subject: RollbackSubject, after: tuple[int, int]) -> None:
    start = lock("good", "good", "good")
    there = apply_moves(start, planned_moves(start, subject, None))
    assert where(there) == after
    assert apply_moves(there, planned_moves(there, subject, None)) == start


@pytest.mark.slow
@given(st.data())
def test_twice_is_the_identity(data: st.DataObject) -> None:
    """Whatever lies between is bad or pruned, as long as the image left is neither."""
    start = lock(*data.draw(st.lists(st.sampled_from(STATUSES), min_size=1, max_size=7)), "good")
    for number in data.draw(st.sets(st.integers(1, len(start.images[REPO].numbers) - 1))):
        pruned = replace(start.images[REPO].numbers[number], pruned="2026-11-21T12:00:00Z")
        start = start.with_image(ImageName(REPO, number), pruned)
    for subject in (BOTH, MODEL, TAG):
        try:
            there = apply_moves(start, planned_moves(start, subject, None))
        except NothingToDoError:
            continue
        assert there != start
        assert apply_moves(there, planned_moves(there, subject, None)) == start
        assert dump_lock(apply_moves(there, planned_moves(there, subject, None))) == dump_lock(start)


def test_images_that_were_pruned_are_passed_over() -> None:
    start = lock("good", "good", "good")
    pruned = replace(start.images[REPO].numbers[2], pruned="2026-11-21T12:00:00Z")
    start = start.with_image(ImageName(REPO, 2), pruned)
    assert where(apply_moves(start, planned_moves(start, BOTH, None))) == (1, 1)


def test_a_number_may_be_named_even_one_that_never_served_the_model() -> None:
    start = lock("good", "bad", "good")
    there = apply_moves(start, planned_moves(start, BOTH, 2))
    assert where(there) == (2, 2)
    assert there.images[REPO].previous == (3, 1)


def test_images_marked_bad_are_passed_over() -> None:
    start = lock("good", "bad", "good")
    assert where(apply_moves(start, planned_moves(start, BOTH, None))) == (1, 1)


def test_a_bad_image_is_not_returned_to() -> None:
    start = lock("good", "good", "bad")
    there = apply_moves(start, planned_moves(start, BOTH, None))
    assert where(apply_moves(there, planned_moves(there, BOTH, None))) == (1, 1)


def test_where_all_before_is_bad_that_is_said() -> None:
    start = lock("bad", "good")
    with pytest.raises(NothingToDoError, match=rf"has no image to go back to: {REPO}:1 is marked bad"):
        planned_moves(start, TAG, None)


def test_a_model_marked_bad_on_the_image_before_is_named_as_the_reason() -> None:
    start = lock("good", "good")
    model = start.models["Org/M"]
    earlier = tuple(replace(pairing, status="bad") for pairing in model.previous)
    start = replace(start, models={**start.models, "Org/M": replace(model, previous=earlier)})
    because = rf"{REPO}:1 is marked bad for Org/M"
    with pytest.raises(NothingToDoError, match=because):
        planned_moves(start, MODEL, None)
    with pytest.raises(UsageError, match=because):
        planned_moves(start, BOTH, None)


def test_where_there_is_nothing_before_it_is_said() -> None:
    start = lock("good")
    for subject in (BOTH, MODEL, TAG):
        with pytest.raises(NothingToDoError, match="has no image to go back to"):
            planned_moves(start, subject, None)
    with pytest.raises(NothingToDoError, match="is already at number 1"):
        planned_moves(start, BOTH, 1)
    for to in (None, 1):
        with pytest.raises(NothingToDoError, match="new has no image to go back to"):
            planned_moves(start, RollbackSubject("new", "new", None), to)


def test_an_unknown_number_is_a_mistake() -> None:
    with pytest.raises(UsageError, match="images.lock has no image vllm-node-tf5:9"):
        planned_moves(lock("good"), BOTH, 9)


def test_a_model_keeps_its_recipe_on_a_number_it_never_had() -> None:
    start = lock("good", "good")
    start = start.with_model("Org/M", Model(Pairing(ImageName(REPO, 2), recipe="recipes/m.yaml", status="good")))
    pairing = apply_moves(start, planned_moves(start, MODEL, 1)).models["Org/M"].pairing
    assert pairing == Pairing(ImageName(REPO, 1), recipe="recipes/m.yaml", status="untested")


def test_a_recipe_whose_two_pointers_would_come_apart_is_not_guessed_at() -> None:
    start = lock("good", "good", "good")
    once = start.with_model("Org/M", Model(Pairing(ImageName(REPO, 3)), (Pairing(ImageName(REPO, 1)),)))
    with pytest.raises(UsageError, match=f"latest would go back to {REPO}:2, but Org/M would go back to {REPO}:1"):
        planned_moves(once, BOTH, None)
    new = start.with_model("Org/M", Model(Pairing(ImageName(REPO, 3))))
    with pytest.raises(UsageError, match=f"{REPO}:latest would go back to {REPO}:2, but Org/M would stay"):
        planned_moves(new, BOTH, None)


def test_a_recipe_whose_two_pointers_are_apart_is_not_guessed_at() -> None:
    start = lock("good", "good", "good")
    apart = apply_moves(start, planned_moves(start, TAG, None))
    with pytest.raises(UsageError, match=f"{REPO}:latest is {REPO}:2, while Org/M is paired with {REPO}:3") as caught:
        planned_moves(apart, BOTH, None)
    assert caught.value.hint == f"roll back one of them: `builder rollback {REPO}` or `builder rollback Org/M`"
    assert where(apply_moves(apart, planned_moves(apart, BOTH, 1))) == (1, 1)


def test_a_number_of_a_recipe_in_two_repositories_is_not_guessed_at() -> None:
    """Number 1 of the other repository has nothing to do with number 1 of the recipe's repository."""
    start = lock("good", "good")
    for number in (1, 2):
        start = start.with_image(ImageName("other", number), image())
    apart = start.with_pairing("Org/M", Pairing(ImageName("other", 2)))
    with pytest.raises(UsageError, match=f"{REPO}:latest is {REPO}:2, while Org/M is paired with other:2") as caught:
        planned_moves(apart, BOTH, 1)
    ways = f"`builder rollback {REPO} --to 1` or `builder rollback Org/M --to 1`"
    assert caught.value.hint == f"roll back one of them: {ways}"


def with_vllm(start: Lock, *numbers: int) -> Lock:
    """``start`` where these numbers hold a vLLM."""
    for number in numbers:
        record = replace(start.images[REPO].numbers[number], versions={"vllm": Version("0.25.1")})
        start = start.with_image(ImageName(REPO, number), record)
    return start


def test_an_image_without_a_vllm_is_passed_over_by_one_that_has_it() -> None:
    start = with_vllm(lock("untested", "untested", "untested"), 1, 3)
    for subject in (BOTH, MODEL, TAG):
        assert {move.to.number for move in planned_moves(start, subject, None)} == {1}
        assert {move.to.number for move in planned_moves(start, subject, 2)} == {2}
    without = with_vllm(lock("untested", "untested"), 2)
    with pytest.raises(NothingToDoError, match=f"{REPO}:1 contains no known vLLM"):
        planned_moves(without, TAG, None)
    good = with_vllm(lock("good", "untested"), 2)
    assert [move.to.number for move in planned_moves(good, TAG, None)] == [1]


def test_images_none_of_which_has_a_vllm_are_gone_back_to_as_ever() -> None:
    start = with_vllm(lock("untested", "untested", "untested"), 1)
    assert [move.to.number for move in planned_moves(start, TAG, None)] == [2]


def test_a_recipe_that_cannot_be_read_is_told_and_hinders_no_rollback(tmp_path: Path) -> None:
    project = projects.make(tmp_path)
    locks.write(project, (1, 2), current=2)
    start = read_lock(project.lock)
    record = replace(start.images["small"].numbers[1], recipe=locks.RECIPE)
    projects.write(project.lock, dump_lock(start.with_image(ImageName("small", 1), record)))
    projects.write(project.root / locks.RECIPE, "name: [")
    arguments = ("rollback", "small", "--to", "1", "--force", "--dry-run")
    printed = run_command(project, *arguments, code=5, environ=WITHOUT_ENGINE).stderr
    assert "small:1: its evidence is unknown, because a file cannot be read: recipes/chat.yaml:2:1" in printed
    assert "no Docker engine answers" in printed


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["small:1"], 2, "`builder rollback small --to 1`"),
        (["nothing"], 2, "`nothing` is not a model, definition, repository or recipe"),
        (["nothing:1"], 2, "`nothing:1` is not a model, definition, repository or recipe"),
        (["chat", "--to", "7"], 2, "images.lock has no image small:7"),
        (["small"], 1, "small has no image to go back to"),
        (["small", "--to", "2"], 1, "small is already at number 2"),
        (["chat"], 1, "chat has no image to go back to"),
        (["Org/Model-1B", "--to", "2"], 1, "Org/Model-1B is already at number 2"),
    ],
)
def test_what_cannot_go_back_is_said_before_an_engine_is_asked(
    tmp_path: Path, arguments: list[str], code: int, message: str
) -> None:
    project = projects.make(tmp_path)
    locks.write(project, (1, 2), current=2, paired=2)
    before = project.lock.read_bytes()
    for dry in ((), ("--dry-run",)):
        said = run_command(project, "rollback", *arguments, *dry, code=code, environ=WITHOUT_ENGINE).stderr
        assert message in said
    assert project.lock.read_bytes() == before
