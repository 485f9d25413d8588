"""Mods against the pins of images.lock: where they are used, or else where they could be used."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from builder.base.errors import FileProblemsError
from builder.building.mod_dry_run import ModVerdict
from builder.commands import mods
from builder.lock.model import GitPin
from builder.sources import mirror, pulls
from builder.sources.pulls import RequestedPull
from tests import projects
from tests.commands.mod_project import NEW, ModProject, diff, made
from tests.sources import git_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


pytestmark = pytest.mark.slow


@pytest.fixture
def there(tmp_path: Path) -> Iterator[ModProject]:
    with made(tmp_path) as there:
        there.define("wheel", "0.20.0")
        yield there


def run(there: ModProject, *names: str) -> tuple[ModVerdict, ...]:
    return mods.check_pinned_mods(there.project, names, there.environ, there.report)


def add_recipe(there: ModProject, name: str, *mods: str) -> None:
    projects.add_recipe(there.project.root, name, "vllm-node-wheel", "Org/Model", list(mods))


def said(verdicts: tuple[ModVerdict, ...]) -> list[tuple[str, str, str, bool]]:
    return [(verdict.mod.name, verdict.target, verdict.state, verdict.holds) for verdict in verdicts]


def test_one_that_nobody_asks_for_is_tried_wherever_it_could_be_used(there: ModProject) -> None:
    there.define("newer", "0.23.0")
    there.add_mod("fix")
    there.add_mod("other", package="elsewhere")
    assert said(run(there)) == [
        ("fix", "newer", "fails", False),
        ("fix", "wheel", "applies", True),
        ("other", "", "not tried", True),
    ]
    assert run(there, "other")[0].missing == "no definition that is pinned has elsewhere"
    assert run(there)[0].tried[0].against == "vllm 0.23.0"


def test_a_recipe_may_name_mods_that_are_not_here(there: ModProject) -> None:
    there.add_mod("fix")
    add_recipe(there, "theirs", "mods/not-here", "mods/fix")
    projects.write(there.project.recipes / "bad.yaml", "name: [\n")
    assert said(run(there)) == [("fix", "wheel, recipe theirs without not-here", "applies", True)]


def test_one_that_nobody_asks_for_may_be_for_another_version(there: ModProject) -> None:
    there.add_mod("fix", 'requires: {vllm: ">=0.21"}')
    (verdict,) = run(there)
    assert (verdict.state, verdict.holds) == ("excluded", True)
    assert verdict.excluded == "fix requires vllm >=0.21, but 0.20.0 is pinned"
    add_recipe(there, "chat", "mods/fix")
    assert said(run(there)) == [("fix", "wheel, recipe chat", "excluded", False)]


def test_in_a_recipe_it_comes_after_those_before_it(there: ModProject) -> None:
    there.add_mod("one")
    there.add_mod("two", patch=diff(NEW, NEW.replace("ten\n", "TEN\n")))
    assert said(run(there, "two")) == [("two", "wheel", "fails", False)]
    add_recipe(there, "chat", "one", "two")
    assert said(run(there, "two")) == [("two", "wheel, recipe chat", "applies", True)]
    add_recipe(there, "chat", "two", "one")
    assert said(run(there)) == [
        ("one", "wheel, recipe chat", "applies", True),
        ("two", "wheel, recipe chat", "fails", False),
    ]
    there.add_mod("two", "after: [one]", diff(NEW, NEW.replace("ten\n", "TEN\n")))
    assert {verdict.state for verdict in run(there)} == {"applies"}


def test_a_mod_that_is_invalid_keeps_no_other_from_being_tried(there: ModProject) -> None:
    there.add_mod("fix")
    projects.write(there.project.mods / "bad/mod.yaml", "descripton: x\n")
    assert said(run(there)) == [("fix", "wheel", "applies", True)]
    with pytest.raises(FileProblemsError, match="unknown key `descripton`"):
        mods.require_valid(there.project)
    with pytest.raises(FileProblemsError, match="unknown key `descripton`"):
        run(there, "bad")
    add_recipe(there, "chat", "mods/fix", "mods/bad")
    add_recipe(there, "well", "mods/fix")
    untried, applies = run(there)
    assert untried.missing.startswith("mods/bad/mod.yaml:1:1: ")
    assert (untried.state, applies.state) == ("not tried", "applies")


def test_the_mods_of_a_definition_come_before_those_of_a_recipe(there: ModProject) -> None:
    there.define("wheel", "0.20.0", "[one]")
    there.add_mod("one")
    there.add_mod("two", patch=diff(NEW, NEW.replace("ten\n", "TEN\n")))
    add_recipe(there, "chat", "two")
    assert said(run(there)) == [("one", "wheel", "applies", True), ("two", "wheel, recipe chat", "applies", True)]


def test_what_excludes_another_is_told_where_both_are_asked_for(there: ModProject) -> None:
    there.add_mod("one", "conflicts: [two]")
    there.add_mod("two", patch=diff(file="vllm/none.py"))
    add_recipe(there, "chat", "one", "two")
    one, two = run(there)
    assert one.excluded == "one and two cannot be in one image; leave one out"
    assert two.state == "fails"


def test_mods_that_wait_for_each_other_are_a_mistake(there: ModProject) -> None:
    there.add_mod("one", "after: [two]")
    there.add_mod("two", "after: [one]")
    with pytest.raises(FileProblemsError, match="a cycle: one after two after one"):
        run(there)


def test_what_is_not_pinned_is_said(there: ModProject) -> None:
    there.define_git("git", "https://example.org/vllm.git")
    there.add_mod("fix")
    assert said(run(there)) == [("fix", "git", "not tried", True), ("fix", "wheel", "applies", True)]
    assert run(there)[0].missing == "it is not pinned yet: `builder lock git` does that"


def test_one_without_patches_has_nothing_to_try(there: ModProject) -> None:
    projects.add_mod(there.project.root, "bare", "echo\n", {})
    assert said(run(there)) == [("bare", "", "no patches", True)]
    add_recipe(there, "chat", "bare")
    assert said(run(there)) == [("bare", "wheel, recipe chat", "no patches", True)]


def test_a_source_that_does_not_answer_is_no_failure_of_the_mod(there: ModProject) -> None:
    there.add_mod("fix")
    there.withdraw("0.20.0")
    (verdict,) = run(there)
    assert (verdict.state, verdict.holds) == ("not tried", True)
    assert "no wheel of vllm==0.20.0 is found" in verdict.tried[0].outcome.problem


def test_a_commit_has_the_pull_requests_that_it_is_built_with(there: ModProject, tmp_path: Path) -> None:
    window = {"line10": "SLIDING", "line50": "fifty"}
    with_pull = git_server.lines(1, 60, **window)
    there.add_mod("fix", patch=diff(with_pull, with_pull.replace("SLIDING\n", "GLIDING\n"), git_server.DRAFTER))
    with git_server.served_vllm(tmp_path) as vllm:
        pin = mirror.resolve_ref(there.project.mirrors, vllm.url, "main")
        there.define_git("git", vllm.url, pin)
        assert said(run(there))[0] == ("fix", "git", "fails", False)
        taken = pulls.vendor(there.project.mirrors, vllm.url, RequestedPull(40898), pin.commit)
        file = there.project.dockerfiles / "git/pulls" / f"vllm-40898-{taken.pin.sha256[:12]}.patch"
        file.parent.mkdir()
        file.write_bytes(taken.diff)
        there.define_git("git", vllm.url, replace(pin, pulls=(taken.pin,)))
    assert isinstance(pin, GitPin)
    verdict = run(there)[0]
    assert said((verdict,)) == [("fix", "git", "applies", True)]
    assert verdict.tried[0].against == f"vllm {pin.version} ({pin.commit[:12]}) with pull request 40898"


def test_one_that_recipes_are_built_without_has_nothing_to_try(there: ModProject) -> None:
    there.add_mod("fix")
    projects.add_mod(there.project.root, "words", "echo nothing\n", {})
    add_recipe(there, "chat", "mods/words", "mods/fix")
    assert said(run(there)) == [
        ("fix", "wheel, recipe chat", "applies", True),
        ("words", "wheel, recipe chat", "no patches", True),
    ]
