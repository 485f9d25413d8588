"""Mods against versions: a wheel of a real index, a commit of a real repository, and what is said of each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from builder.base.errors import FileProblemsError, SourceError, UsageError
from builder.building.mod_dry_run import ModVerdict
from builder.commands import mods
from tests.commands.mod_project import INC, NEW, OLD, RELEASES, ModProject, diff, made
from tests.sources import git_server
from tests.sources.wheelhouse import make_simple_index, make_wheel

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


pytestmark = pytest.mark.slow


@pytest.fixture
def there(tmp_path: Path) -> Iterator[ModProject]:
    with made(tmp_path) as there:
        yield there


def run(there: ModProject, *refs: str, names: tuple[str, ...] = ()) -> tuple[ModVerdict, ...]:
    return mods.check_mods(there.project, names, refs, there.environ, there.report)


def test_each_version_tells_whether_the_patch_applies(there: ModProject) -> None:
    there.add_mod("fix")
    verdicts = run(there, *RELEASES)
    assert [(verdict.target, verdict.state, verdict.holds) for verdict in verdicts] == [
        ("vllm 0.20.0", "applies", True),
        ("vllm 0.21.0", "applies", True),
        ("vllm 0.22.0", "applies", True),
        ("vllm 0.23.0", "fails", False),
        ("vllm 0.24.0", "in place", True),
        ("vllm 0.25.0", "fails", False),
    ]
    outcomes = [verdict.tried[0].outcome for verdict in verdicts]
    assert [shift.offset for shift in outcomes[1].shifts] == [2, 2]
    assert [shift.context for shift in outcomes[2].shifts] == [(2, 2)]
    assert outcomes[3].problem == f"{INC}, hunk 2 of 2 (@@ -37,7 +37,7 @@)"
    assert outcomes[5].problem == f"{INC} does not exist"


def test_what_was_looked_at_once_takes_no_network(there: ModProject) -> None:
    there.add_mod("fix")
    first = run(there, "0.20.0", "0.21.0")
    there.server.sent.clear()
    assert run(there, "0.20.0", "0.21.0") == first
    assert there.server.sent == []


def test_a_version_that_is_not_required_is_told_apart(there: ModProject) -> None:
    there.add_mod("fix", 'requires: {vllm: ">=0.21,<0.23"}')
    states = [
        (verdict.state, verdict.excluded, verdict.tried[0].outcome.state)
        for verdict in run(there, "0.20.0", "0.21.0", "0.23.0")
    ]
    excluded = "it requires vllm >=0.21,<0.23"
    assert states == [("excluded", excluded, "applies"), ("applies", "", "applies"), ("excluded", excluded, "fails")]


def test_every_mod_is_tried_alone_and_those_without_patches_are_shown(there: ModProject) -> None:
    there.add_mod("one")
    there.add_mod("two", patch=diff(NEW, NEW.replace("ten\n", "TEN\n")))
    there.add_mod("other", package="elsewhere")
    states = {verdict.mod.name: verdict.state for verdict in run(there, "0.20.0")}
    assert states == {"one": "applies", "other": "no patches", "two": "fails"}
    assert [verdict.mod.name for verdict in run(there, "0.20.0", names=("mods/two", "one"))] == ["two", "one"]


def test_patches_of_one_mod_build_on_each_other(there: ModProject) -> None:
    there.add_mod("fix", patch=diff())
    folder = there.project.mods / "fix"
    (folder / "b.patch").write_text(diff(NEW, NEW.replace("ten\n", "TEN\n")))
    (folder / "mod.yaml").write_text(
        "description: A mod\npatches: [{file: a.patch, package: vllm}, {file: b.patch, package: vllm}]\n"
    )
    old, gone = run(there, "0.20.0", "0.25.0")
    assert [tried.outcome.state for tried in old.tried] == ["applies", "applies"]
    assert [tried.outcome.state for tried in gone.tried] == ["fails", "fails"]


def test_another_package_is_named(there: ModProject) -> None:
    make_wheel(there.wheels, "flashinfer_python", "0.6.7", files={"flashinfer/a.py": "a\n"})
    make_simple_index(there.wheels)
    there.add_mod("fix", package="flashinfer", patch=diff("a\n", "b\n", "flashinfer/a.py"))
    (verdict,) = run(there, "flashinfer=0.6.7")
    assert (verdict.target, verdict.state) == ("flashinfer-python 0.6.7", "applies")


def test_a_ref_means_the_repository_of_a_definition(there: ModProject, tmp_path: Path) -> None:
    there.add_mod("fix", 'requires: {vllm: "<0.19.1"}', diff(OLD, NEW, git_server.DRAFTER))
    with git_server.served_vllm(tmp_path) as vllm:
        there.define_git("git", vllm.url)
        old, main = vllm.history.v0_19_0, vllm.history.main
        verdicts = run(there, "v0.19.0", "main", old, main)
        assert [(verdict.target, verdict.state) for verdict in verdicts] == [
            ("vllm v0.19.0", "applies"),
            ("vllm main", "excluded"),
            (f"vllm {old[:12]}", "applies"),
            (f"vllm {main[:12]}", "excluded"),
        ]
        assert vllm.requests_of(lambda: run(there, old, main)) == 0


def test_all_that_is_no_version_is_told_at_once(there: ModProject) -> None:
    there.add_mod("fix")
    with pytest.raises(SourceError) as caught:
        run(there, "0.20.0", "7.1", "7.2")
    assert "vllm==7.1" in caught.value.message
    assert "vllm==7.2" in caught.value.message


def test_mistakes_are_told_with_what_to_do(there: ModProject) -> None:
    there.add_mod("fix")
    with pytest.raises(UsageError, match="`fix` is a mod, not a version"):
        run(there, "0.20.0", "fix")
    with pytest.raises(UsageError, match="`main` is no version, and no definition takes vllm from git"):
        run(there, "main")
    with pytest.raises(UsageError, match="no mod `fx`"):
        run(there, "0.20.0", names=("fx",))
    there.add_mod("fix", "after: [nothing]")
    with pytest.raises(FileProblemsError, match=r"mods/fix/mod\.yaml:3:9: no mod `nothing` in mods/"):
        run(there, "0.20.0")
